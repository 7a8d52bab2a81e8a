import numpy as np
import pytest
from onnx import TensorProto
from tests.support.onnx_builder import (
    absent,
    body,
    constants,
    graph_of,
    node,
    only,
    reads,
    shapes,
    sizes,
)
from tests.support.tables import cases

from loadmaster.workloads.graph import LoopNest, OpClass
from loadmaster.workloads.window import Window


def test_a_convolution_is_one_nest_with_padding_stride_and_dilation():
    conv = "y = Conv<strides=[2, 1], dilations=[2, 1], pads=[2, 2, 2, 2]>(x, w)"
    graph = graph_of(conv, "float[2,8,20,30] x", "y", "float[16,8,3,5] w")
    (nest,) = graph.ops[0].nests
    assert nest == LoopNest(
        16, 8, 10, 30, 3, 5, 1, 2, (2, 1), (2, 1), 1, "x", "w", "y", ("batch", "channels", "y", "x")
    )
    assert nest.macs == 2 * 16 * 8 * 10 * 30 * 3 * 5


NESTS = """
    # Channels of a group.
    Conv<group=4> | 1x8x6x6 w:16x2x1x1 | groups=4 k=4 c=2
    Conv<group=8> | 1x8x6x6 w:16x1x3x3 | groups=8 k=2 c=1
    # Padding that the operator works out.
    Conv<strides=[2,2],auto_pad="SAME_UPPER"> | 1x8x9x9 w:16x8x3x3 | y=5 x=5
    Conv<strides=[2,2],auto_pad="SAME_LOWER"> | 1x8x9x9 w:16x8x3x3 | y=5 x=5
    Conv<strides=[2,2],auto_pad="VALID"> | 1x8x9x9 w:16x8x3x3 | y=4 x=4
    # One dimension and three are folded into rows and taps.
    Conv<strides=[2]> | 1x3x100 w:4x3x7 | y=1 x=47 r=1 s=7
    Conv | 1x3x6x7x8 w:4x3x2x3x3 | y=25 x=6 r=6 s=3
    # A transposed one runs over the pixels of its input.
    ConvTranspose<strides=[2,2],group=2> | 1x8x5x6 w:8x4x3x3 | groups=2 k=4 c=4 y=5 x=6
    # Leading dimensions are rows of a matrix, groups of two operands, or a batch if one has none.
    MatMul | 2x5x7x16 w:16x32 | groups=1 y=70 c=16 k=32
    MatMul | 2x12x7x16 2x12x16x9 | groups=24 batch=1 y=7
    MatMul | 2x12x7x16 12x16x9 | groups=12 batch=2 y=7
    MatMul | 16 16 | macs=16
    MatMul | 4x16 16 | macs=64
    MatMul | 16 3x16x5 | macs=240
    Gemm | 4x8 w:8x6 | y=4 c=8 k=6
    Gemm<transA=1,transB=1> | 8x4 w:6x8 | y=4 c=8 k=6
    com.microsoft.FusedMatMul<transA=1,transB=1> | 2x8x4 2x6x8 | groups=2 y=4 c=8 k=6
    Einsum<equation="ij,jk->ik"> | 4x8 8x6 | y=4 c=8 k=6
    Einsum<equation="bhqd,bhkd->bhqk"> | 2x3x5x8 2x3x7x8 | groups=6 y=5 c=8 k=7
    Einsum<equation="...ij,...jk->...ik"> | 2x3x4x8 2x3x8x6 | groups=6
    Einsum<equation="...ij,jk"> | 2x4x8 8x6 | groups=1 y=8
    Einsum<equation="bi,bj->bij"> | 2x4 2x6 | groups=2 c=1 k=6
    Einsum<equation="ij, kj -> i"> | 4x8 6x8 | y=4 c=8 k=1
"""


@pytest.mark.parametrize(("text", "operands", "expected"), cases(NESTS))
def test_a_product_is_one_nest_of_loops(text, operands, expected):
    shapes = dict(zip("ab", operands.split(), strict=False))
    weights = {
        name: sizes(shapes.pop(name)[2:]) for name in "ab" if shapes.get(name, "")[:1] == "w"
    }
    inputs = {name: sizes(shape) for name, shape in shapes.items()}
    graph = graph_of(f"y = {text}({','.join([*inputs, *weights])})", inputs, "y", weights)
    (nest,) = graph.ops[-1].nests
    for each in expected.split():
        name, value = each.split("=")
        assert getattr(nest, name) == int(value), name


def test_einsum_of_three_operands_goes_from_left_to_right():
    inputs = "float[4,8] a, float[8,6] b, float[6,3] c"
    graph = graph_of('y = Einsum<equation="ij,jk,kl->il">(a, b, c)', inputs, "y")
    first, second = only(graph, "Einsum").nests
    assert (first.macs, first.output) == (4 * 8 * 6, "")
    assert (second.macs, second.input, second.weight, second.output) == (4 * 6 * 3, "", "c", "y")


def test_einsum_of_one_operand_moves_or_reduces():
    for equation, expected in (("ij->ji", OpClass.MOVEMENT), ("ij->i", OpClass.REDUCTION)):
        graph = graph_of(f'y = Einsum<equation="{equation}">(a)', "float[4,8] a", "y")
        assert only(graph, "Einsum").op_class is expected


def test_attention_with_grouped_heads_and_a_past():
    inputs = """
        float[2,8,5,64] q, float[2,2,5,64] k, float[2,2,5,32] v,
        float[2,2,11,64] pk, float[2,2,11,32] pv
    """
    attention = "y, nk, nv = Attention(q, k, v, , pk, pv)"
    graph = graph_of(attention, inputs, "y, nk, nv", opset=23)
    scores, result = only(graph, "Attention").nests
    assert scores.macs == 2 * 8 * 5 * 16 * 64
    assert result.macs == 2 * 8 * 5 * 16 * 32
    assert (scores.input, scores.weight, scores.output, result.weight, result.output) == (
        "q",
        "k",
        "",
        "v",
        "y",
    )
    assert (scores.groups, scores.y) == (4, 20)
    assert shapes(graph, "nk") == "2x2x16x64"


def test_attention_with_packed_heads_takes_their_number_from_attributes():
    inputs = "float[1,5,256] q, float[1,9,64] k, float[1,9,64] v"
    attention = "y = Attention<q_num_heads=8, kv_num_heads=2>(q, k, v)"
    graph = graph_of(attention, inputs, "y", opset=23)
    assert graph.macs == 2 * (8 * 5 * 9 * 32)


GROUPED = "y, a, b = com.microsoft.GroupQueryAttention<num_heads=8,kv_num_heads=2>(q,k,v,pk,pv,s,t)"
CACHED = """
    float[1,1,128] q, float[1,1,32] k, float[1,1,32] v, float[1,2,31,16] pk, float[1,2,31,16] pv
"""


def test_microsoft_multi_head_and_grouped_attention():
    inputs = "float[1,7,64] q, float[1,9,64] k, float[1,9,32] v"
    graph = graph_of("y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v)", inputs, "y")
    assert graph.macs == 7 * 9 * 64 + 7 * 9 * 32
    lengths = constants(s=np.int32([31]), t=np.int32(32))
    graph = graph_of(GROUPED, CACHED, "y, a, b", lengths)
    assert graph.macs == 2 * (8 * 32 * 16)
    assert shapes(graph, "a") == "1x2x32x16"


def test_a_cache_with_room_for_all_steps_keeps_its_size():
    """As onnxruntime-genai calls these operators: the new step is written into the cache."""
    for total in (5, 31, 32):
        lengths = constants(s=np.int32([total - 1]), t=np.int32([total]))
        graph = graph_of(GROUPED, CACHED, "y, a, b", lengths)
        assert graph.macs == 2 * (8 * total * 16)
        assert shapes(graph, "a") == f"1x2x{max(total, 31)}x16"
    heads = "y, a, b = com.microsoft.MultiHeadAttention<num_heads=4>(q,k,v,,,,pk,pv,p)"
    inputs = (
        "float[1,1,64] q, float[1,1,64] k, float[1,1,64] v, float[1,4,9,16] pk, float[1,4,9,16] pv"
    )
    for past, keys in ((constants(p=np.int32(3)), 4), ([], 9)):
        given = inputs if past else f"{inputs}, int32[1] p"
        graph = graph_of(heads, given, "y, a, b", past)
        assert graph.macs == 2 * 4 * keys * 16
        assert shapes(graph, "a") == "1x4x9x16"


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_cells_split_into_input_and_stepwise_products(kind, gates):
    weights = f"float[2,{gates * 32},16] w, float[2,{gates * 32},32] r"
    cell = f'y = {kind}<hidden_size=32, direction="bidirectional">(x, w, r)'
    whole, stepwise = only(graph_of(cell, "float[10,3,16] x", "y", weights), kind).nests
    assert (whole.macs, whole.repeats, whole.output) == (2 * gates * 32 * 16 * 30, 1, "")
    assert (stepwise.macs, stepwise.repeats, stepwise.weight, stepwise.output) == (
        2 * gates * 32 * 32 * 30,
        10,
        "r",
        "y",
    )


def test_a_packed_four_bit_weight_counts_its_logical_product():
    weights = "uint8[64,4,16] w, float[256] s"
    packed = "y = com.microsoft.MatMulNBits<K=128, N=64, bits=4, block_size=32>(x, w, s)"
    graph = graph_of(packed, "float[3,128] x", "y", weights)
    assert graph.macs == 3 * 128 * 64
    assert reads(only(graph, "MatMulNBits"))["w"] == 64 * 64


def test_quantised_products_read_bytes_and_calculate_in_eight_bits():
    weights = [
        *constants(s=0.1, z=np.uint8(0)),
        absent("w", (16, 8, 3, 3), TensorProto.UINT8),
        absent("m", (36, 4), TensorProto.UINT8),
    ]
    nodes = """
        c = QLinearConv(x, s, z, w, s, z, s, z)
        d = QLinearMatMul(c, s, z, m, s, z, s, z)
        e = MatMulInteger(d, n)
        f = ConvInteger(x, w)
    """
    inputs = "uint8[1,8,6,38] x, uint8[4,5] n"
    graph = graph_of(nodes, inputs, "e, f", weights)
    assert [op.bits for op in graph.ops] == [8] * 4
    assert [op.macs for op in graph.ops] == [
        16 * 8 * 9 * 4 * 36,
        16 * 4 * 36 * 4,
        16 * 4 * 4 * 5,
        16 * 8 * 9 * 4 * 36,
    ]
    assert reads(graph.ops[0]) == {"x": 8 * 6 * 38, "w": 16 * 8 * 9}
    assert graph.precision == "int8"
    assert graph.tensors["e"].dtype == "int32"


def test_zero_points_of_an_integer_convolution_are_read_as_a_whole_or_by_channel():
    """That of the data is one number; weights may have one for each channel, which a piece needs
    its own of."""
    inputs = "uint8[1,8,6,6] x, uint8[16,8,3,3] w, uint8 zx, uint8 one, uint8[16] each"
    nodes = "y = ConvInteger(x, w, zx, one); z = ConvInteger(x, w, zx, each)"
    graph = graph_of(nodes, inputs, "y, z")
    windows = [{read.tensor: read.windows for read in op.reads} for op in graph.ops]
    assert [found["zx"] for found in windows] == [(), ()]
    assert (windows[0]["one"], windows[1]["each"]) == ((), (Window(1),))


def test_flexible_attention_is_attention_and_its_bodies_are_counted():
    inputs = "float[2,8,5,64] q, float[2,2,7,64] k, float[2,2,7,32] v"
    score = body("t = Tanh(s)", "float[] s", "t")
    attention = node(
        "FlexAttention", ["q", "k", "v"], "y", domain="ai.onnx.preview", score_mod=score
    )
    graph = graph_of([attention], inputs, "y", opset=26)
    op = only(graph, "FlexAttention")
    assert (op.op_class.value, op.macs, op.elements) == (
        "product",
        2 * 8 * 5 * 7 * (64 + 32),
        5 * 2 * 8 * 5 * 7,
    )
    assert dict(graph.subgraph_ops) == {"Tanh": 1}


@pytest.mark.parametrize(
    ("update", "nests", "elements"),
    [("linear", 2, 0), ("gated", 2, 24), ("delta", 3, 12), ("gated_delta", 3, 36)],
)
def test_linear_attention_counts_what_its_rule_does_at_every_step(update, nests, elements):
    """Two query heads share each state of 4 x 6."""
    inputs = {"q": (2, 5, 16), "k": (2, 5, 8), "v": (2, 5, 12)}
    operands = [
        *inputs,
        "",
        "decay" if "gated" in update else "",
        "rate" if "delta" in update else "",
    ]
    inputs |= {name: (2, 5, 2) for name in operands[4:] if name}
    attention = node(
        "LinearAttention", operands, ["y", "s"], q_num_heads=4, kv_num_heads=2, update_rule=update
    )
    op = only(graph_of([attention], inputs, "y, s", opset=27), "LinearAttention")
    states = 2 * 2 * 5
    assert len(op.nests) == nests
    assert op.macs == states * 24 * (nests + 1)
    assert op.elements == states * elements
    assert {nest.repeats for nest in op.nests} == {5}
