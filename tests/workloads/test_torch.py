"""Torch modules as graphs: what is recorded is what eager execution does, tensor by tensor;
mistakes are one line."""

import sys
import textwrap
from pathlib import Path

import pytest
from tests.support.onnx_builder import only
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.core.errors import OutputError
from loadmaster.core.files import replace_file
from loadmaster.cost.kernels.kernel_costs import kernel_sequence
from loadmaster.placement.sequence import StoredKind
from loadmaster.workloads.graph import OpClass, TensorKind

torch = pytest.importorskip("torch")


HEAD = """
import torch
from torch import nn
from torch.nn import functional
"""

CONVOLUTIONS = """
def net(batch=4):
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1800, 10)]
    return nn.Sequential(*layers), torch.rand(batch, 3, 32, 32)

def adam(batch=4):
    return (*net(batch), torch.optim.Adam)
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Writes code into a module of the current folder and loads a factory from there."""
    monkeypatch.chdir(tmp_path)

    def loader(code, factory="net", **options):
        name = f"networks_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(code))
        try:
            return lm.load(f"torch:{name}:{factory}", **options)
        finally:
            sys.modules.pop(name, None)

    return loader


def test_the_file_of_a_factory_is_not_written_over(load, tmp_path):
    """It is an input of the command, though none of its words is the file's name."""
    load(CONVOLUTIONS)
    (file,) = tmp_path.glob("networks_*.py")
    with pytest.raises(OutputError, match="is an input of this command"):
        replace_file(file, "times", "the times")


def kernels(graph):
    return " ".join(op.kind for op in graph.ops if op.op_class is not OpClass.VIEW)


def sequence(graph):
    return kernel_sequence(graph, lm.target("optane-server"))


def uses(steps, kernel):
    """Access to each tensor of a kernel, by name."""
    found = next(k for k in steps.kernels if k.name == kernel)
    return {steps.tensors[o.tensor].name: "r" * o.read + "w" * o.write for o in found.operands}


@pytest.mark.slow
def test_a_training_step_is_recorded_as_eager_execution_runs_it(load):
    graph = load(CONVOLUTIONS, training=True, batch=16)
    assert graph.batch == 16
    assert kernels(graph) == (
        "convolution add native_batch_norm relu max_pool2d_with_indices addmm sum"
        " ones_like mm mm sum max_pool2d_with_indices_backward threshold_backward"
        " native_batch_norm_backward convolution_backward"
    )
    assert not graph.unknown_ops
    products = {op.name: op.macs for op in graph.ops if op.nests}
    forward = 16 * 30 * 30 * 8 * 3 * 9
    # No gradient of the images is asked for.
    assert products == {
        "convolution": forward,
        "addmm": 16 * 1800 * 10,
        "mm": 16 * 1800 * 10,
        "mm_1": 16 * 1800 * 10,
        "convolution_backward": forward,
    }
    assert graph.tensors["0.weight"].kind is TensorKind.WEIGHT
    assert graph.tensors["input[0]"].kind is TensorKind.INPUT
    assert len(graph.outputs) == 1 + 5


def test_updates_in_place_are_uses_of_one_tensor(load):
    steps = sequence(load(CONVOLUTIONS, training=True))
    normalised = "native_batch_norm.0"
    assert uses(steps, "relu_") == {normalised: "rw"}
    assert uses(steps, "native_batch_norm")["1.running_mean"] == "rw"
    assert uses(steps, "threshold_backward")[normalised] == "r"
    kinds = {tensor.name: tensor.kind for tensor in steps.tensors}
    assert kinds["1.running_mean"] is StoredKind.WEIGHT
    assert kinds["convolution_backward.1"] is StoredKind.OUTPUT
    assert kinds["input[0]"] is StoredKind.INPUT
    assert kinds[normalised] is StoredKind.INTERMEDIATE


def test_an_optimiser_updates_weights_and_its_state(load):
    steps = sequence(load(CONVOLUTIONS, "adam", training=True))
    weights = {
        tensor.name: tensor.bytes for tensor in steps.tensors if tensor.kind is StoredKind.WEIGHT
    }
    assert weights["5.weight.exp_avg"] == weights["5.weight"] == 4 * 18000
    assert not any(
        tensor.kind is StoredKind.OUTPUT and tensor.bytes > 4 for tensor in steps.tensors
    )
    written = {
        steps.tensors[o.tensor].name
        for kernel in steps.kernels
        for o in kernel.operands
        if o.read and o.write
    }
    assert {"0.weight", "0.weight.exp_avg", "0.weight.exp_avg_sq", "5.bias"} <= written


def test_inference_keeps_no_gradients_and_no_statistics_change(load):
    graph = load(CONVOLUTIONS)
    expected = "convolution native_batch_norm relu max_pool2d_with_indices addmm"
    assert kernels(graph) == expected
    assert uses(sequence(graph), "native_batch_norm")["1.running_mean"] == "r"


def test_a_step_of_many_terabytes_needs_no_memory(load):
    steps = sequence(load(CONVOLUTIONS, training=True, batch=10**8))
    assert steps.peak_bytes > 10**12


def test_views_of_one_tensor_are_one_tensor_and_parts_add_up(load):
    code = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.Linear(64, 192)

        def forward(self, x):
            parts = self.attend(x).split(64, dim=2)
            q, k, v = (part.view(2, 16, 4, 16).transpose(1, 2) for part in parts)
            return functional.scaled_dot_product_attention(q, k, v)

    def net():
        return Net(), torch.rand(2, 16, 64)
    """
    graph = load(code, training=True)
    attention = next(op for op in graph.ops if "attention" in op.kind and "backward" not in op.kind)
    assert {graph.tensors[access.tensor].storage for access in attention.reads} == {"addmm"}
    assert sum(access.bytes for access in attention.reads) == graph.tensors["addmm"].bytes
    assert attention.macs == 2 * 2 * 4 * 16 * 16 * 16
    backward = next(op for op in graph.ops if "attention" in op.kind and "backward" in op.kind)
    assert backward.macs == 5 * 2 * 4 * 16 * 16 * 16
    assert not graph.unknown_ops


def test_tensors_whose_size_or_storage_changes_are_what_they_are_when_used(load):
    code = """
    class Net(nn.Module):
        def forward(self, x):
            grown = x.new_empty(0).resize_(8, 64).copy_(x)
            added = torch.add(grown, 1, out=torch.empty(0))
            other = torch.zeros(8, 64)
            other.data = added * 2
            return other.exp(), x.new_ones(8, 64)

    def net():
        return Net(), torch.rand(8, 64)
    """
    graph = load(code)
    steps = sequence(graph)
    assert kernels(graph) == "copy add mul exp new_ones"
    assert uses(steps, "copy_") == {"input[0]": "r", "new_empty": "w"}
    assert uses(steps, "add") == {"new_empty": "r", "empty": "w"}
    assert uses(steps, "exp") == {"mul": "r", "exp": "w"}
    assert {each.bytes for each in steps.tensors} == {4 * 8 * 64}


def test_results_without_elements_are_made_by_no_kernel(load):
    code = """
    class Net(nn.Module):
        def forward(self, x):
            return x[:0] + 1, *torch._foreach_add([x[:0], x], 1.0), (x[:0] * 2)[None]

    def net():
        return Net(), torch.rand(8, 64)
    """
    graph = load(code)
    assert kernels(graph) == "_foreach_add"
    assert lm.verify(lm.plan([graph], "edge-npu", effort="quick")) == ()


def test_a_partial_write_needs_the_rest_of_the_tensor(load):
    code = """
    class Net(nn.Module):
        def forward(self, x):
            whole = torch.empty(2, 8, 64)
            whole[0] = x
            whole[1] = x * 2
            return whole

    def net():
        return Net(), torch.rand(8, 64)
    """
    steps = sequence(load(code))
    assert uses(steps, "copy_") == {"input[0]": "r", "empty": "w"}
    assert uses(steps, "copy__1") == {"mul": "r", "empty": "rw"}


def test_gathers_touch_what_they_take_and_strided_gradients_count_their_own_loops(load):
    code = """
    def net():
        return nn.Embedding(1000, 16), torch.zeros(4, dtype=torch.long)

    def strided():
        layers = nn.Conv2d(4, 8, 3, 2, 1), nn.ConvTranspose2d(8, 4, 2, 2, groups=2)
        return nn.Sequential(*layers), torch.rand(1, 4, 8, 8)
    """
    (lookup,) = load(code).ops
    assert {access.tensor: access.bytes for access in lookup.reads} == {
        "weight": 4 * 16 * 4,
        "input[0]": 32,
    }
    macs = [op.macs for op in load(code, "strided", training=True).ops if op.nests]
    down, up = 4 * 4 * 8 * 4 * 9, 4 * 4 * 8 * 2 * 4
    assert macs == [down, up, 2 * up, down]


@pytest.mark.parametrize(
    "build", ["with torch.device('meta'):\n        return made()", "return SAVED"]
)
def test_modules_on_the_meta_device_and_modules_with_values_are_recorded_alike(load, build):
    code = f"""
def made():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), torch.rand(4, 8)

SAVED = made()

def net():
    {build}
"""
    plain = load(CONVOLUTIONS.replace("net", "other") + code, "made", training=True)
    other = load(code, training=True)
    assert [(op.name, op.reads, op.writes) for op in other.ops] == [
        (op.name, op.reads, op.writes) for op in plain.ops
    ]


def test_inputs_by_name_and_losses_of_several_results(load):
    code = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, *, x, y):
            count = torch.ones(3, dtype=torch.long)
            return {"a": self.inner(x), "b": self.inner(y), "count": count}

    def net():
        return Net(), {"x": torch.rand(2, 4), "y": torch.rand(3, 4)}
    """
    graph = load(code, training=True)
    assert graph.inputs == ("input['x']", "input['y']")
    assert kernels(graph).count("addmm") == 2
    assert " sum " in kernels(graph)


@pytest.mark.slow
def test_plans_of_training_steps_hold(load):
    graph = load(CONVOLUTIONS, "adam", training=True)
    for machine in ("edge-npu", "optane-server"):
        assert lm.verify(lm.plan([graph], lm.target(machine))) == ()


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            "torch:good:fixed",
            {"batch": 2},
            "got an unexpected keyword argument 'batch'): --batch N and",
        ),
        ("torch:good:frozen", {"training": True}, "depends on no parameter that is trained"),
        ("torch:good:whole", {"training": True}, "needs a loss"),
        ("torch:good:wrapped", {}, "returns no tensor, nor a tuple, list or dict of tensors"),
        ("torch:good:odd", {"training": True}, "must make an optimiser"),
        (
            "torch:good:fixed",
            {"precision": "int8"},
            "--precision is for files: cast what the factory makes",
        ),
        ("onnx:squeezenet", {"training": True}, "holds no training step"),
        *(
            (source, {}, message)
            for source, message in cases("""
            torch: | write torch:module.path:factory
            torch:nowhere.to.be:found | no module 'nowhere'
            torch:broken:net | importing broken failed: ZeroDivisionError
            torch:lacking:net | importing lacking failed: ModuleNotFoundError
            torch:good:missing | has no function 'missing': it has net, fixed, failing, exiting
            torch:good:net | missing a required argument: 'batch'): --batch N and --dim
            torch:good:failing | the factory failed: ValueError: no luck
            torch:good:exiting | the factory failed: SystemExit: 3
            torch:good:looking | the factory looks at values
            torch:good:alone | must return a module and its inputs
            torch:good:deciding | depends on values
            torch:good:mismatched | cannot be run: RuntimeError
            torch:good:sparse | cannot be
            """)
        ),
    ],
)
def test_mistakes_are_one_line(source, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "lacking.py").write_text("import nothing_of_that_name")
    (tmp_path / "good.py").write_text(
        HEAD
        + textwrap.dedent("""
        def net(batch):
            return nn.Linear(4, 4), torch.rand(batch, 4)

        def fixed():
            return net(2)

        def failing():
            raise ValueError("no luck")

        def exiting():
            raise SystemExit(3)

        def looking():
            return nn.Dropout(torch.rand(1).item()), torch.rand(3)

        def alone():
            return nn.Linear(4, 4)

        class Wrapping(nn.Module):
            def forward(self, x):
                return object()

        def wrapped():
            return Wrapping(), torch.rand(3)

        class Deciding(nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        def deciding():
            return Deciding(), torch.rand(3)

        def mismatched():
            return nn.Linear(4, 4), torch.rand(2, 5)

        def frozen():
            return nn.Linear(4, 4).requires_grad_(False), torch.rand(2, 4)

        def whole():
            return nn.Flatten(), torch.zeros(2, 4, dtype=torch.long)

        def odd():
            return nn.Linear(4, 4), torch.rand(2, 4), "adam"

        class Sparse(nn.Module):
            def forward(self, x):
                return x.to_sparse()

        def sparse():
            return Sparse(), torch.rand(3, 3)
        """)
    )
    try:
        with pytest.raises(lm.ModelError) as caught:
            lm.load(source, **options)
    finally:
        for name in ("broken", "lacking", "good"):
            sys.modules.pop(name, None)
    assert message in str(caught.value)
    assert str(caught.value).startswith(source)
    assert "\n" not in str(caught.value)


def test_another_release_of_torch_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.12.0")
    with pytest.raises(lm.ModelError, match=r"needs torch 2\.13;"):
        lm.load("torch:any:thing")


@pytest.mark.slow
def test_resnet_200_has_the_kernels_and_the_peak_that_are_published(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    steps = sequence(
        lm.load("torch:benchmarks.networks.resnet:resnet200", batch=512, training=True)
    )
    assert len(steps.kernels) == 1558
    # AutoTM's table has 132 GB.
    assert 128e9 < steps.peak_bytes < 134e9


@pytest.mark.parametrize(
    "factory",
    ["unet:unet", "gpt:gpt2_small", "densenet:densenet264", "inception:inception_v4", "vgg:vgg19"],
)
@pytest.mark.slow
def test_networks_of_the_benchmarks_are_understood(factory, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    graph = lm.load(f"torch:benchmarks.networks.{factory}", batch=2)
    assert not graph.unknown_ops
    assert graph.macs > 10**9


TRANSFORMERS = """
from transformers import (
    BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig,
    LlamaForCausalLM, MambaConfig, MambaForCausalLM, SwinConfig, SwinModel, T5Config,
    T5ForConditionalGeneration, ViTConfig, ViTForImageClassification,
)

WIDE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
def ids():
    return torch.zeros(2, 16, dtype=torch.long)

def texts():
    return {"input_ids": ids(), "attention_mask": torch.ones(2, 16, dtype=torch.long)}

def vit():
    images = {"pixel_values": torch.rand(2, 3, 32, 32), "labels": torch.zeros(2, dtype=torch.long)}
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, **WIDE)), images

def bert():
    model = BertForSequenceClassification(BertConfig(vocab_size=100, **WIDE))
    return model, {**texts(), "labels": torch.zeros(2, dtype=torch.long)}, torch.optim.AdamW

def gpt2():
    config = GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4)
    return GPT2LMHeadModel(config), {**texts(), "labels": ids()}

def llama():
    config = LlamaConfig(vocab_size=100, num_key_value_heads=2, **WIDE)
    return LlamaForCausalLM(config), {**texts(), "labels": ids()}

def t5():
    sizes = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    config = T5Config(vocab_size=100, decoder_start_token_id=0, **sizes)
    return T5ForConditionalGeneration(config), {**texts(), "labels": ids()}

def mamba():
    config = MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, state_size=8)
    return MambaForCausalLM(config), {"input_ids": ids(), "labels": ids()}

def swin():
    sizes = dict(image_size=32, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    return SwinModel(SwinConfig(**sizes)), torch.rand(2, 3, 32, 32)
"""

LAYER = 32 * (4 * 32 * 32 + 2 * 16 * 32 + 2 * 32 * 64)
"""Multiply-accumulates of a layer of two texts of 16 steps: projections, attention, two layers
behind it."""
FORWARD = {
    "vit": (
        2 * 16 * 32 * 192
        + 2 * (34 * (4 * 32 * 32 + 2 * 32 * 64) + 2 * 2 * 17 * 17 * 32)
        + 2 * 2 * 32
    ),
    "bert": 2 * LAYER + 2 * 32 * (32 + 2),
    "gpt2": 2 * (LAYER + 32 * 2 * 32 * 64) + 32 * 32 * 100,
    "llama": 2 * (LAYER - 32 * 32 * 32 + 32 * 32 * 64) + 32 * 32 * 100,
    "t5": 2 * LAYER + 2 * (LAYER + 32 * (4 * 32 * 32 + 2 * 16 * 32)) + 32 * 32 * 100,
}


@pytest.mark.parametrize("factory", ["vit", "bert", "gpt2", "llama", "t5", "mamba", "swin"])
@pytest.mark.slow
def test_networks_of_hugging_face_are_understood_forward_and_in_training(load, factory):
    pytest.importorskip("transformers")
    forward, step = load(TRANSFORMERS, factory), load(TRANSFORMERS, factory, training=True)
    assert forward.unknown_ops == step.unknown_ops == {}
    assert forward.macs == FORWARD.get(factory, forward.macs)
    assert 2 * forward.macs < step.macs <= 3.1 * forward.macs


def test_initialisers_that_look_at_values_do_not_stop_a_factory(load):
    code = """
    from torch.nn.init import trunc_normal_

    def net():
        layer = nn.Linear(8, 8)
        trunc_normal_(layer.weight, std=0.02)
        nn.init.trunc_normal_(layer.bias)
        nn.init.orthogonal_(layer.weight)
        return layer, torch.rand(2, 8)
    """
    assert kernels(load(code)) == "addmm"
    assert torch.nn.init.trunc_normal_(torch.zeros(1000)).std() > 0.5


def test_shapes_that_change_in_place_are_views_and_constants_are_there_before(load):
    code = """
    class Net(nn.Module):
        def forward(self, x):
            x = (x * 2).unsqueeze_(0).transpose_(1, 2)
            x = functional.softplus(x.masked_fill(x < 0, torch.tensor(3.0)))
            return x.squeeze_(0) @ torch.ones(4, 2)

    def net():
        return Net(), torch.rand(4, 6)

    class Trained(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x):
            return functional.softplus(self.inner(x))

    def trained():
        return Trained(), torch.rand(4, 6)
    """
    graph = load(code)
    assert kernels(graph) == "mul lt masked_fill softplus ones mm"
    assert only(graph, "mm").macs == 6 * 4 * 2
    assert graph.unknown_ops == {}
    fill = only(graph, "masked_fill")
    assert (fill.op_class, fill.elements) == (OpClass.ELEMENTWISE, 24)
    assert graph.tensors[fill.reads[-1].tensor].kind is TensorKind.WEIGHT
    backward = only(load(code, "trained", training=True), "softplus_backward")
    assert (backward.op_class, backward.elements) == (OpClass.ELEMENTWISE, 24)
