"""Architectures of the library transformers, small and with random weights, as PyTorch's exporters
write them: each loads, with the work that the PyTorch frontend counts without the exporter."""

import pytest
from tests.support.nightly import by_night

from loadmaster.workloads.frontends.load import load

pytest.importorskip("transformers")
import torch
import transformers as tf

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
PICTURE = {**SIZES, "image_size": 32, "patch_size": 16}
SEGFORMER = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "hidden_sizes": [8, 16],
    "num_attention_heads": [1, 2],
    "sr_ratios": [2, 1],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
}
WAV2VEC2 = {
    **SIZES,
    "conv_dim": [16, 16],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}


def tokens(count):
    return torch.zeros(1, count, dtype=torch.long)


def picture():
    return {"pixel_values": torch.zeros(1, 3, 32, 32)}


ARCHITECTURES = {
    "ViT": lambda: (tf.ViTModel(tf.ViTConfig(**PICTURE)), picture()),
    "DeiT": lambda: (tf.DeiTModel(tf.DeiTConfig(**PICTURE)), picture()),
    "Swin": lambda: (
        tf.SwinModel(
            tf.SwinConfig(
                image_size=32,
                patch_size=4,
                embed_dim=16,
                depths=[2, 1],
                num_heads=[2, 2],
                window_size=4,
            )
        ),
        picture(),
    ),
    "ConvNeXt": lambda: (
        tf.ConvNextModel(tf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)),
        picture(),
    ),
    "SegFormer": lambda: (
        tf.SegformerForSemanticSegmentation(tf.SegformerConfig(**SEGFORMER)),
        picture(),
    ),
    "BERT": lambda: (
        tf.BertModel(tf.BertConfig(**SIZES, vocab_size=50, use_cache=False)),
        {"input_ids": tokens(8)},
    ),
    "ALBERT": lambda: (
        tf.AlbertModel(tf.AlbertConfig(**SIZES, vocab_size=50, embedding_size=16)),
        {"input_ids": tokens(8)},
    ),
    "T5": lambda: (
        tf.T5Model(
            tf.T5Config(
                vocab_size=50,
                d_model=32,
                d_kv=16,
                d_ff=64,
                num_layers=1,
                num_heads=2,
                use_cache=False,
            )
        ),
        {"input_ids": tokens(8), "decoder_input_ids": tokens(4)},
    ),
    "Qwen": lambda: (
        tf.Qwen2ForCausalLM(
            tf.Qwen2Config(**SIZES, vocab_size=50, num_key_value_heads=1, use_cache=False)
        ),
        {"input_ids": tokens(8)},
    ),
    "wav2vec2": lambda: (
        tf.Wav2Vec2Model(tf.Wav2Vec2Config(**WAV2VEC2)),
        {"input_values": torch.zeros(1, 800)},
    ),
}
TRACED = ("Swin", "T5")
"""Those that the newer exporter refuses."""
SWIN_MACS = (
    64 * 48 * 16  # patches
    + 2 * (4 * 64 * 16**2 + 2 * 64 * 16 * 16 + 2 * 64 * 16 * 64)  # windows of 16 of 64 patches
    + 16 * 64 * 32  # four patches become one
    + (4 * 16 * 32**2 + 2 * 16 * 16 * 32 + 2 * 16 * 32 * 128)
)
"""The PyTorch frontend refuses it: its shapes follow from values."""


class Positional(torch.nn.Module):
    """A model of transformers, called by position, that returns one tensor."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs):
        return self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=True)[0]


SIMILAR = ("DeiT", "ALBERT", "ViT", "ConvNeXt", "wav2vec2")
"""Architectures that load as others of the list do, by the same lines of the readers."""


@pytest.mark.parametrize("name", [*sorted(ARCHITECTURES.keys() - {*SIMILAR}), *by_night(*SIMILAR)])
def test_an_architecture_loads_with_the_work_that_pytorch_does(name, tmp_path):
    model, inputs = ARCHITECTURES[name]()
    module, operands = Positional(model.eval(), list(inputs)), tuple(inputs.values())
    path = tmp_path / f"{name}.onnx"
    torch.onnx.export(module, operands, path, dynamo=name not in TRACED, verbose=False)
    graph = load(path)
    assert graph.macs == (SWIN_MACS if name == "Swin" else load((module, operands)).macs)
    assert graph.unknown_ops == {}
