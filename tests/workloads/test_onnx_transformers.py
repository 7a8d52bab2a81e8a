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


IMAGE = {"pixel_values": torch.zeros(1, 3, 32, 32)}
TOKENS = torch.zeros(1, 8, dtype=torch.long)
TEXT = {"input_ids": TOKENS}
SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
T5 = {
    "vocab_size": 50,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 2,
    "use_cache": False,
}
QWEN = {**SIZES, "vocab_size": 50, "num_key_value_heads": 1, "use_cache": False}
ARCHITECTURES = {
    "ViT": (tf.ViTModel, PICTURE, IMAGE),
    "DeiT": (tf.DeiTModel, PICTURE, IMAGE),
    "Swin": (tf.SwinModel, SWIN, IMAGE),
    "ConvNeXt": (
        tf.ConvNextModel,
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        IMAGE,
    ),
    "SegFormer": (tf.SegformerForSemanticSegmentation, SEGFORMER, IMAGE),
    "BERT": (tf.BertModel, {**SIZES, "vocab_size": 50, "use_cache": False}, TEXT),
    "ALBERT": (tf.AlbertModel, {**SIZES, "vocab_size": 50, "embedding_size": 16}, TEXT),
    "T5": (tf.T5Model, T5, {**TEXT, "decoder_input_ids": TOKENS[:, :4]}),
    "Qwen": (tf.Qwen2ForCausalLM, QWEN, TEXT),
    "wav2vec2": (tf.Wav2Vec2Model, WAV2VEC2, {"input_values": torch.zeros(1, 800)}),
}
"""Class, configuration and inputs."""
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
    kind, sizes, inputs = ARCHITECTURES[name]
    model = kind(kind.config_class(**sizes)).eval()
    module, operands = Positional(model, list(inputs)), tuple(inputs.values())
    path = tmp_path / f"{name}.onnx"
    torch.onnx.export(module, operands, path, dynamo=name not in TRACED, verbose=False)
    graph = load(path)
    assert graph.macs == (SWIN_MACS if name == "Swin" else load((module, operands)).macs)
    assert graph.unknown_ops == {}
