import contextlib
import gzip

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import parser
from tests.support.needs import FIXTURES
from tests.support.onnx_builder import (
    body,
    complaint,
    constants,
    either,
    info,
    model,
    node,
    reads,
    save,
    shapes,
)
from tests.support.tables import cases

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.frontends.onnx import file as onnx_file


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello, this is not a network\n",
        b"\x00" * 100,
        bytes(range(256)),
        b"\x1f\x8b",
        b"\x1f\x8b\x08junk",
    ],
)
def test_what_is_no_onnx_file_is_refused(tmp_path, content):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    assert any(
        word in complaint(path)
        for word in ("not an ONNX file", "holds no network", "not a complete gzip file")
    )


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert "cannot be read (No such file or directory): give the path" in complaint(
        tmp_path / "absent.onnx"
    )
    assert "is not a file" in complaint(tmp_path)
    complaint("a\0b.onnx")


def test_white_space_in_paths_is_kept_and_names_are_one_line(tmp_path):
    for name in ("a  net", " net", "a\nnet"):
        path = save(tmp_path, model("y = Relu(x)", "float[4] x", "y")).rename(
            tmp_path / f"{name}.onnx"
        )
        assert load(path).name == " ".join(name.split())


def test_an_unknown_shipped_network_lists_those_that_exist():
    assert "choose one of bvlc_alexnet, densenet121, inception_v1" in complaint("onnx:yolo")
    assert "did you mean resnet50?" in complaint("onnx:resnet")


def test_an_unknown_precision_lists_those_that_exist():
    assert "choose one of int8, fp16, fp32" in complaint("onnx:resnet50", precision="fp8")


def test_a_decompression_bomb_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "LARGEST_FILE", 2**20)
    path = tmp_path / "bomb.onnx.gz"
    path.write_bytes(gzip.compress(bytes(2**22)))
    assert "larger than" in complaint(path)
    monkeypatch.setattr(onnx_file, "_FIRST_BYTES", 2**21)
    monkeypatch.setattr(onnx_file, "_LARGEST_RATIO", 64)
    assert "unpacks to more than 64 times its size" in complaint(path)


def test_a_circle_names_the_operators_on_it(tmp_path):
    nodes = """
        [fine] ok = Relu(x)
        [one] b = Add(ok, c)
        [two] c = Relu(b)
    """
    text = complaint(save(tmp_path, model(nodes, "float[4] x", "c")))
    assert "'one'" in text
    assert "'two'" in text
    assert "'fine'" not in text


RELU = "y = Relu(x)"
TWICE = body(["[a] t = Relu(c)", "u = Relu(t)", "[b] t = Neg(c)", "r = Add(u, t)"], "", "r")


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (
            model([either("c", "y", TWICE)], "bool c", "y"),
            "tensor 't' is defined twice, by operator 'a' (Relu) and operator 'b' (Neg): export",
        ),
        (model(RELU, [info("x", (4,), 99)], "y"), "tensor 'x' has the unknown element type 99"),
        (
            model("y = Slice(x, a, a)", "float[4] x", "y", constants(a=[1])),
            "tensor 'y' is empty, its shape is [0]",
        ),
        (
            model("y = GatherND<batch_dims=-5>(x, i)", "float[4,4] x", "y", constants(i=[[1]])),
            "its batch_dims -5 is out",
        ),
        *(
            (model(*parts, value_info=noted), reason)
            for *parts, noted, reason in cases("""
            [a] y = Relu(x); [b] y = Neg(x) | float[4] x | y | | | \
                tensor 'y' is defined twice, by operator 'a' (Relu) and operator 'b' (Neg): export
            y = Relu(x) | float[4] x | y | float[4] y | | tensor 'y' is defined twice
            y = Relu(x) | float[4] x | y | float[4] w, float[4] w | | tensor 'w' is defined twice
            y = Relu(x) | float[4] x, float[4] x | y | | | tensor 'x' is defined twice
            [n] y = Add(x, gone) | float[4] x | y | | | \
                operator 'n' (Add) reads tensor 'gone', which nothing produces
            y = Relu(x) | float[4] x | z | | | output 'z' is produced by nothing
            y = Relu(x) | float[4,0] x | y | | | dimension 1 of input 'x' is 0: give --dim x.1=N
            y = Relu(x) | float[4,-3] x | y | | | dimension 1 of input 'x' is -3
            y = Relu(x) | float[2147483648,2147483648] x | y | | | \
                tensor 'x' of shape [2147483648, 2147483648] would take 2^62 bytes or more
            y = Relu(x) | float[] x | y | | | input 'x' has no shape
            y = Relu(x) | float[4] x | y | float[4,-1] w | | tensor 'w' has a negative dimension
            [k] y = Constant() | | y | | | operator 'k' (Constant) holds no value
            [m] y = MatMul(x, x) | float[4,5] x | y | | | \
            operator 'm' (MatMul): its operands of shapes [4, 5] and [4, 5] do not fit together (
            y = Add(x, w); z = Relu(y) | float[1,3,12] x, float[1,3,13] w | z | | float[1,3,13] y | \
                its operands of shapes [1, 3, 12] and [1, 3, 13] do not fit together (
            y = Concat<axis=1>(x, w); z = Relu(y) | float[1,3,12] x, float[1,3,13] w | z | | \
                float[1,3,13] y | \
                its operands of shapes [1, 3, 12] and [1, 3, 13] do not fit together (
            y = Transpose<perm=[0,0,7]>(x); z = Relu(y) | float[2,3,4] x | z | | float[2,2,4] y | \
                perm [0, 0, 7] is no order of the 3 dimensions of its operand
            [m] y = RNN<hidden_size=4>(x, w, r) | float[5,1,8] x | y | \
                float[1,4,7] w, float[1,4,4] r | | \
                its operands differ along a dimension that they share, 8 and 7
            [m] y = acme.Odd(x) | float[4] x | y | | | \
                output of operator 'm' (acme.Odd), is unknown: run shape
            y, z = Split<num_outputs=1>(x) | float[4] x | y, z | | | \
                it has 2 outputs and says that it has 1
            y = LayerNormalization<axis=2147483648>(x, x) | float[4] x | y | | | \
                its axis 2147483648 is out of range
            s = SequenceConstruct(x); y = ConcatFromSequence<axis=0>(s) | float[4] x | y | | | \
                is of type sequence: only tensors can be planned
            y = Conv(x, w) | float[1,3,8,8] x | y | float[8,4,3,3] w | | \
                its input of 3 channels, weights of shape [8, 4, 3, 3] and 1 groups do not fit
            [c] y = Conv<group=0>(x, w) | float[1,8,6,6] x | y | float[16,8,1,1] w | \
                float[1,16,6,6] y | 'c' (Conv): its input of 8 channels, weights of shape
            [t] y = ConvTranspose<output_padding=[1], auto_pad="SAME_UPPER", strides=[2,2]>(x, w) | \
                float[1,4,8,8] x | y | float[4,4,3,3] w | float[1,4,16,16] y | \
                't' (ConvTranspose): its output_padding [1] is not
            # Inference rounds to 1 what is less than one stride too small.
            [c] y = Conv<strides=[7], pads=[1, 0], dilations=[2]>(x, w) | float[1,2,4] x | y | \
                float[3,2,5] w | | \
                'c' (Conv): its kernel [5] with dilations [2] is larger than its padded input
            [c] y = Conv<strides=[7], auto_pad="VALID">(x, w) | float[1,2,4] x | y | \
                float[3,2,5] w | | \
                'c' (Conv): its kernel [5] with dilations [1] is larger than its padded input
            """)
        ),
    ],
)
def test_what_cannot_be_planned_is_named(tmp_path, proto, reason):
    assert reason in complaint(save(tmp_path, proto))


@pytest.mark.parametrize("size", [2**40, 2**60, 2**62])
def test_huge_constants_are_refused_before_they_are_computed(tmp_path, size):
    limits = constants(a=0, b=size, c=1, n=[size])
    for made in ("r = Range(a, b, c)", "r = ConstantOfShape(n)", "r = Expand(c, n)"):
        text = complaint(save(tmp_path, model([made, "y = Neg(r)"], "float[4] x", "y", limits)))
        assert "'r'" in text


def test_an_empty_constant_is_legal(tmp_path):
    nodes = "y = Resize(x, roi, scales)"
    weights = constants(roi=np.zeros(0), scales=[1.0, 1.0, 2.0, 2.0])
    graph = load(save(tmp_path, model(nodes, "float[1,3,4,4] x", "y", weights)))
    assert shapes(graph, "y") == "1x3x8x8"
    assert [*reads(graph.ops[0])] == ["x"]


def test_a_name_that_is_no_text_is_named(tmp_path):
    path = save(tmp_path, model("y = Relu(x)", "float[4] x", "y"))
    path.write_bytes(path.read_bytes().replace(b"Relu", b"Re\xd8u"))
    assert r"the name b'Re\xd8u' is not text in UTF-8" in complaint(path)


def test_a_gathered_element_has_the_shape_of_a_scalar(tmp_path):
    proto = model(["a = GatherND(x, i)", "y = Relu(a)"], "float[7,6] x", "y", constants(i=[3, 4]))
    assert shapes(load(save(tmp_path, proto)), "y") == ""


def nested_bodies(depth):
    """A model with bodies inside bodies, written byte by byte: the protobuf library refuses to
    build it."""
    content = node("Relu", ["x"], "y").SerializeToString()
    for _ in range(depth):
        for field in (1, 6, 5):  # GraphProto.node, AttributeProto.g, NodeProto.attribute
            content = bytes([field << 3 | 2]) + varint(len(content)) + content
    graph = bytes([1 << 3 | 2]) + varint(len(content)) + content
    return bytes([7 << 3 | 2]) + varint(len(graph)) + graph


def varint(number):
    return (bytes([number & 127 | 128]) + varint(number >> 7)) if number > 127 else bytes([number])


@pytest.mark.parametrize("depth", [40, 5000])
def test_bodies_nested_too_deeply_are_refused(tmp_path, depth):
    path = tmp_path / "deep.onnx"
    path.write_bytes(nested_bodies(depth))
    assert "is not an ONNX file, or is cut off or damaged" in complaint(path)


def test_bodies_nested_as_deeply_as_protobuf_allows_are_counted(tmp_path):
    inner = body("t = Relu(x)", "", "t")
    for _ in range(25):
        inner = body([node("If", ["c"], "t", then_branch=inner)], "", "t")
    proto = model(inner.node, "bool c, float[4] x", "t", value_info="float[4] t")
    assert dict(load(save(tmp_path, proto)).subgraph_ops) == {"If": 24, "Relu": 1}


def functions(calls):
    """Functions of one operand, each a chain of two calls."""
    head = '<domain: "acme", opset_import: ["": 21, "acme": 1]>'
    return [
        parser.parse_function(f"{head} {name} (x) => (y) {{ v = {one}(x) y = {other}(v) }}")
        for name, (one, other) in calls.items()
    ]


def test_local_functions_are_inlined(tmp_path):
    proto = model(
        "y = acme.F(x)",
        "float[4] x",
        "y",
        functions=functions({"F": ["acme.G", "acme.G"], "G": ["Relu", "Relu"]}),
    )
    graph = load(save(tmp_path, proto))
    assert [op.kind for op in graph.ops] == ["Relu"] * 4


def test_functions_that_call_themselves_or_explode_are_refused(tmp_path):
    call = "y = acme.F0(x)"
    calls = {"F0": ["acme.F1", "Relu"], "F1": ["acme.F0", "Relu"]}
    circle = model(call, "float[4] x", "y", functions=functions(calls))
    assert "calls itself" in complaint(save(tmp_path, circle))
    chain = {f"F{level}": [f"acme.F{level + 1}"] * 2 for level in range(40)}
    bomb = model(call, "float[4] x", "y", functions=functions(chain | {"F40": ["Relu", "Abs"]}))
    assert f"expand to {2**41} operators" in complaint(save(tmp_path, bomb))


SAMPLES = [
    gzip.decompress((FIXTURES / f"{name}.onnx.gz").read_bytes())
    for name in (
        "dlrm",
        "traced-bert-opset14",
        "onnxruntime-blocks",
        "onnxruntime-quantised-optimised",
    )
]


@pytest.mark.slow
@example(SAMPLES[0], 1.0, [(112.5 / len(SAMPLES[0]), 16)])  # an operator whose name is no text
@given(
    sample=st.sampled_from(SAMPLES),
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4),
)
def test_a_damaged_file_gives_a_graph_or_a_model_error(tmp_path, sample, cut, flips):
    data = bytearray(sample)
    for position, mask in flips:
        data[int(position * len(data))] ^= mask
    path = tmp_path / "damaged.onnx"
    path.write_bytes(data if flips else data[: int(cut * len(data))])
    with contextlib.suppress(ModelError):
        load(path, dims={"batch": 2, "steps": 16} if sample is SAMPLES[1] else {})


@pytest.mark.slow
def test_two_thousand_operators_load(tmp_path):
    nodes = [
        f"t{n + 1} = Conv(t{n}, w)" if n % 2 else f"t{n + 1} = Relu(t{n})" for n in range(2000)
    ]
    path = save(tmp_path, model(nodes, "float[1,8,32,32] t0", "t2000", "float[8,8,1,1] w"))
    assert len(load(path).ops) == 2000
