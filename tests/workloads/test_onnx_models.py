import gzip
import math

import onnx
import pytest
from tests.support.needs import FIXTURES
from tests.support.onnx_builder import constants, model, node, shapes
from tests.support.tables import cases

from loadmaster.core.errors import LoadmasterError
from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.frontends.onnx.file import light_names, light_path
from loadmaster.workloads.graph import TensorKind

# Published multiply-accumulates and parameters, in millions. AlexNet is published at 227 x 227; its
# file has 224 x 224.
LIGHT = cases("""
    bvlc_alexnet | 724 | 61.0
    densenet121 | 2870 | 8.0
    inception_v1 | 1500 | 7.0
    inception_v2 | 2000 | 11.2
    resnet50 | 4100 | 25.6
    shufflenet | 137 | 1.4
    squeezenet | 350 | 1.24
    vgg19 | 19600 | 143.7
    zfnet512 | 1482 | 87.3
""")


def naive_macs(proto):
    """Output elements times the weights behind each, with shapes from onnx's inference over the
    whole file."""
    graph = onnx.shape_inference.infer_shapes(proto).graph
    known = {
        item.name: [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        for item in (*graph.value_info, *graph.output)
    }
    total = 0
    for each in graph.node:
        if each.op_type in ("Conv", "Gemm"):
            result, weight = known[each.output[0]], known[each.input[1]]
            total += math.prod(result) * math.prod(weight) // result[1]
    return total


def bert_macs(layers=12, width=768, steps=128, inner=3072):
    """Four projections, two products of attention and two of the MLP in every layer; the pooler at
    the end."""
    return (
        layers * (4 * steps * width**2 + 2 * steps**2 * width + 2 * steps * width * inner)
        + width**2
    )


def gpt2_macs(vocabulary=50257, width=768, steps=128):
    return bert_macs() - width**2 + steps * width * vocabulary


def dlrm_macs(batch=64):
    bottom, top = 13 * 512 + 512 * 256 + 256 * 64, (64 + 351) * 512 + 512 * 256 + 256
    return batch * (bottom + 27 * 27 * 64 + top)


FIXTURE_MACS = {"bert-base": bert_macs(), "gpt2": gpt2_macs(), "dlrm": dlrm_macs()}


def assert_consistent(graph):
    """Operands exist, aliases end at owners, nests name operands, and producers come before their
    users."""
    ready = set(graph.inputs) | {
        tensor.name for tensor in graph.tensors.values() if tensor.kind is TensorKind.WEIGHT
    }
    for op in graph.ops:
        reads, writes = (
            {access.tensor for access in op.reads},
            {access.tensor for access in op.writes},
        )
        assert reads <= ready, op
        ready |= writes
        assert ready <= graph.tensors.keys()
        assert all(
            0 <= access.bytes <= graph.tensors[access.tensor].bytes
            for access in (*op.reads, *op.writes)
        )
        for nest in op.nests:
            assert {nest.input, nest.weight} - {""} <= reads
            assert {nest.output} - {""} <= writes
    assert set(graph.outputs) <= ready
    assert all(graph.tensors[tensor.storage].alias_of is None for tensor in graph.tensors.values())
    assert len({op.name for op in graph.ops}) == len(graph.ops)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "macs", "parameters"), LIGHT)
def test_the_networks_of_the_onnx_package_load_with_their_published_work(name, macs, parameters):
    graph = load(f"onnx:{name}")
    assert graph.macs == naive_macs(onnx.load(light_path(name)))
    assert graph.macs / 1e6 == pytest.approx(float(macs), rel=0.1)
    assert graph.bytes_of(TensorKind.WEIGHT) / 4e6 == pytest.approx(float(parameters), rel=0.02)
    assert (graph.name, graph.precision, graph.batch, graph.unknown_ops) == (name, "fp32", 1, {})
    assert_consistent(graph)


def test_the_table_of_this_test_covers_every_shipped_network():
    assert light_names() == [name for name, *_ in LIGHT]


@pytest.mark.parametrize("name", FIXTURE_MACS)
def test_the_fixtures_do_exactly_the_work_of_their_architecture(name):
    graph = load(FIXTURES / f"{name}.onnx.gz")
    assert graph.macs == FIXTURE_MACS[name]
    assert (graph.name, graph.unknown_ops) == (name, {})
    assert_consistent(graph)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mobilenetv2", 3.5),
        ("mobilebert", 24.6),
        ("bert-base", 109.5),
        ("gpt2", 124.4),
        # Two tables for users and films, and three layers.
        ("ncf", ((138_493 + 26_744) * (64 + 128) + 256 * 257 + 128 * 257 + 64 * 129) / 1e6),
    ],
)
def test_the_fixtures_hold_the_published_parameters(name, parameters):
    """In millions; transformers tie their embeddings."""
    graph = load(FIXTURES / f"{name}.onnx.gz")
    assert graph.bytes_of(TensorKind.WEIGHT) / 4e6 == pytest.approx(parameters, rel=0.02)
    assert_consistent(graph)


def test_mobilenet_does_three_hundred_million_multiply_accumulates():
    graph = load(FIXTURES / "mobilenetv2.onnx.gz", precision="int8")
    assert graph.macs / 1e6 == pytest.approx(300, rel=0.01)
    assert any(nest.groups > 1 and nest.k == nest.c == 1 for op in graph.ops for nest in op.nests)


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.onnx.gz")), ids=lambda path: path.name)
def test_the_fixtures_are_small_and_say_nothing_about_the_machine_that_made_them(path):
    content = gzip.decompress(path.read_bytes())
    assert path.stat().st_size < 80_000
    assert not any(
        word in content for word in (b"/home/", b"/tmp/", b"/work/", b"/root/", b"site-packages")
    )


@pytest.mark.parametrize("opset", range(11, 16))
def test_an_ordinary_bert_of_the_exporter_that_traces_loads_at_every_opset(opset):
    """With an attention mask, which it compares by operators that are functions."""
    graph = load(FIXTURES / f"traced-bert-opset{opset}.onnx.gz", batch=3, dims={"steps": 24})
    assert graph.macs == 3 * bert_macs(layers=2, width=32, steps=24, inner=64)
    assert shapes(graph) == "3x24x32 3x32"
    assert graph.unknown_ops == {}
    assert_consistent(graph)


def test_a_path_may_be_text_or_a_path_and_a_name_may_be_given():
    path = FIXTURES / "mobilenetv2.onnx.gz"
    assert load(str(path), name="mobile").name == "mobile"
    assert load(path).source == str(path)


def reshape_with_its_shape_beside_it(folder):
    proto = model("y = Reshape(x, shape)", "float[4,8] x", "y", constants(shape=[2, 16]))
    path = folder / "reshape.onnx"
    onnx.save(proto, path, save_as_external_data=True, size_threshold=0, location="data.bin")
    return path


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("length", [False, True])
def test_shapes_are_read_from_files_beside_the_model(tmp_path, constant, length):
    """Also without a length, and where a Constant has the shape."""
    path = reshape_with_its_shape_beside_it(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    (shape,) = proto.graph.initializer
    if not length:
        (entry,) = (each for each in shape.external_data if each.key == "length")
        shape.external_data.remove(entry)
    if constant:
        proto.graph.node.insert(0, node("Constant", [], "shape", value=shape))
        del proto.graph.initializer[:]
    path.write_bytes(proto.SerializeToString())
    assert shapes(load(str(path))) == "2x16"


@pytest.mark.parametrize(
    ("key", "value"),
    [("length", "many"), ("length", "-1"), ("location", "../data.bin"), ("location", "none.bin")],
)
def test_shapes_that_cannot_be_read_beside_the_model_are_unknown(tmp_path, key, value):
    folder = tmp_path / "model"
    folder.mkdir()
    path = reshape_with_its_shape_beside_it(folder)
    (tmp_path / "data.bin").write_bytes((folder / "data.bin").read_bytes())
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(LoadmasterError, match="the shape of 'y'") as refusal:
        load(str(path))
    assert "the elements of 'shape' are missing" in str(refusal.value)
