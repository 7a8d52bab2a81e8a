"""Networks of the library transformers with random weights, in the size that is published or a
small one, and a batch for each.

A factory returns the module and a batch as keyword arguments, with labels where the network has a
loss of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, dict[str, Any]]

_SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}


def bert(batch: int, small: bool = False) -> Made:
    """BERT-base with a classifier, on sequences of 128 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=1024, **_SMALL) if small else BertConfig()
    tokens = torch.randint(config.vocab_size, (batch, 32 if small else 128))
    inputs = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": torch.randint(2, (batch,)),
    }
    return BertForSequenceClassification(config), inputs


def gpt2(batch: int, small: bool = False) -> Made:
    """GPT-2 small, on sequences of 256 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=1024, n_embd=128, n_layer=2, n_head=4) if small else GPT2Config()
    tokens = torch.randint(config.vocab_size, (batch, 32 if small else 256))
    return GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def vit(batch: int, small: bool = False) -> Made:
    """ViT-B/16 at 224 x 224."""
    from transformers import ViTConfig, ViTForImageClassification

    config = (
        ViTConfig(image_size=32, patch_size=8, **_SMALL) if small else ViTConfig(num_labels=1000)
    )
    images = torch.rand(batch, 3, config.image_size, config.image_size)
    return ViTForImageClassification(config), {
        "pixel_values": images,
        "labels": torch.randint(2, (batch,)),
    }


def t5(batch: int, small: bool = False) -> Made:
    """T5-small, 128 tokens in and 64 out."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = (
        {
            "vocab_size": 1024,
            "d_model": 128,
            "d_kv": 32,
            "d_ff": 512,
            "num_layers": 2,
            "num_heads": 4,
        }
        if small
        else {}
    )
    config = T5Config(decoder_start_token_id=0, **sizes)
    tokens = torch.randint(config.vocab_size, (batch, 128))
    return T5ForConditionalGeneration(config), {
        "input_ids": tokens,
        "labels": tokens[:, :64].contiguous(),
    }


def llama(
    batch: int,
    small: bool = False,
    layers: int = 16,
    width: int = 2048,
    inner: int = 8192,
    vocabulary: int = 32000,
) -> Made:
    """A decoder with the proportions of Llama 3.2 1B (grouped queries, tied embeddings) and a
    prompt of 16 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 1024, "num_key_value_heads": 2, **_SMALL}
    if not small:
        heads = {"num_attention_heads": width // 64, "num_key_value_heads": width // 256}
        sizes = {
            "vocab_size": vocabulary,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "intermediate_size": inner,
            **heads,
        }
    config = LlamaConfig(max_position_embeddings=2048, tie_word_embeddings=True, **sizes)
    return LlamaForCausalLM(config), {"input_ids": torch.randint(config.vocab_size, (batch, 16))}


def diffusion(batch: int, small: bool = False) -> Made:
    """A U-Net that predicts noise, with the width and the latents' size of Stable Diffusion 1."""
    from benchmarks.networks.diffusion import denoising_unet

    return denoising_unet(batch, 16, 32, 3) if small else denoising_unet(batch)


def llama_300m(batch: int = 1) -> Made:
    """A decoder with 250 million parameters: 12 layers 1,024 wide, in single precision 1 GB."""
    return llama(batch, layers=14, width=1024, inner=4096)


def llama_1b(batch: int = 1) -> Made:
    """A decoder with the proportions of Llama 3.2 1B and a smaller vocabulary, 1.04 billion
    parameters, in bfloat16 2.1 GB."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return llama(batch)
    finally:
        torch.set_default_dtype(before)


def llama_tiny(batch: int = 1) -> Made:
    """A decoder for tests."""
    return llama(batch, small=True)
