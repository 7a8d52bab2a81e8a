import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.support.onnx_builder import (
    absent,
    body,
    classes,
    constant,
    constants,
    either,
    graph_of,
    model,
    node,
    only,
    reads,
    shapes,
)
from tests.support.tables import cases, column

import loadmaster as lm
from loadmaster.workloads.graph import OpClass, TensorKind
from loadmaster.workloads.window import ALL, Window


def test_pools_count_windows_and_reductions_count_what_they_read():
    nodes = """
        p = MaxPool<kernel_shape=[3, 3], strides=[2, 2]>(x)
        g = GlobalAveragePool(x)
        s = Softmax(x)
        r = ReduceSum(x, axes)
    """
    graph = graph_of(nodes, "float[1,4,9,9] x", "p, g, s, r", constants(axes=[1]))
    assert classes(graph) == "reduction reduction reduction reduction"
    assert [op.elements for op in graph.ops] == [4 * 16 * 9, 324, 5 * 324, 324]
    assert reads(graph.ops[3]) == {"x": 324 * 4}


def test_elementwise_work_counts_outputs_and_broadcasts():
    graph = graph_of("t = Add(x, b); y = Mul(t, t)", "float[4,1] x", "y", "float[5] b")
    assert [(op.op_class, op.elements) for op in graph.ops] == [(OpClass.ELEMENTWISE, 20)] * 2
    assert reads(graph.ops[0]) == {"x": 16, "b": 20}
    assert reads(graph.ops[1]) == {"t": 80}


def test_a_lookup_touches_only_the_rows_it_takes():
    inputs = "int64[3,2] i, int64[500,50] j"
    nodes = "few = Gather(table, i); many = Gather(table, j)"
    graph = graph_of(nodes, inputs, "few, many", "float[1000,64] table")
    assert reads(graph.ops[0]) == {"table": 6 * 64 * 4, "i": 48}
    assert reads(graph.ops[1])["table"] == 1000 * 64 * 4


def test_slices_and_splits_touch_only_what_they_take():
    nodes = "s = Slice(x, a, b); p, q = Split<num_outputs=2>(x)"
    graph = graph_of(nodes, "float[8,4] x", "s, p", constants(a=[2], b=[4]))
    assert reads(only(graph, "Slice")) == {"x": 2 * 4 * 4}
    assert reads(only(graph, "Split")) == {"x": 4 * 4 * 4}
    assert [access.tensor for access in only(graph, "Split").writes] == ["p"]


@pytest.mark.parametrize(
    "operator",
    column("""
        Reshape(a, t)
        Flatten<axis=2>(a)
        Squeeze(a, zero)
        Unsqueeze(a, zero)
        Identity(a)
        Dropout(a)
        Cast<to=1>(a)
        Transpose<perm=[1, 0, 2]>(a)
        Expand(a, same)
        Tile(a, ones)
        Slice(a, zero, four, one)
        Pad(a, nothing)
        Split<num_outputs=1>(a)
        Concat<axis=0>(a)
        Concat<axis=0>(a, empty)
        Sum(a)
    """),
)
def test_operators_that_only_rename_bytes_are_views(operator):
    weights = constants(
        t=[4, 6],
        zero=[0],
        one=[1],
        same=[1, 4, 6],
        ones=[1, 1, 1],
        four=[4],
        nothing=[0] * 6,
        empty=np.zeros((0, 4, 6)),
    )
    nodes = f"""
        a = Relu(x)
        y = {operator}
        z = Relu(y)
    """
    graph = graph_of(nodes, "float[1,4,6] x", "z", weights)
    view = graph.ops[1]
    assert (view.op_class, view.elements, view.nests) == (OpClass.VIEW, 0, ())
    made = graph.tensors["y"]
    assert (made.alias_of, made.storage, made.bytes) == ("a", "a", 4 * 24)
    assert [*reads(view)] == ["a"]


@pytest.mark.parametrize(
    "operator",
    column("""
        Transpose<perm=[0, 2, 1]>(a)
        Slice(a, minus, least, one, minus)
        Pad(a, shift)
        Concat<axis=0>(a, a)
        Tile(a, two)
    """),
)
def test_operators_that_change_the_order_of_bytes_are_movement(operator):
    weights = constants(minus=[-1], least=[-100], one=[1], shift=[0, 1, 0, 0, -1, 0], two=[2, 1, 1])
    graph = graph_of(f"a = Relu(x); y = {operator}", "float[1,4,6] x", "y", weights)
    moved = graph.ops[1]
    assert (moved.op_class, moved.elements) == (OpClass.MOVEMENT, 0)
    assert graph.tensors["y"].alias_of is None


def test_a_view_of_a_view_names_the_owner_and_a_view_of_an_input_may_be_an_output():
    nodes = "a = Flatten(x); b = Identity(a)"
    graph = graph_of(nodes, "float[2,3,4] x", "b")
    assert graph.tensors["b"].alias_of == "x"
    assert graph.outputs == ("b",)


def test_a_transposed_weight_is_a_view_of_the_weight():
    nodes = """
        e = Gather(w, i)
        t = Transpose(w)
        y = MatMul(e, t)
    """
    graph = graph_of(nodes, "int64[3] i", "y", "float[1000,64] w")
    tensor = graph.tensors["t"]
    assert (tensor.kind, tensor.alias_of, tensor.shape) == (TensorKind.WEIGHT, "w", (64, 1000))
    assert graph.bytes_of(TensorKind.WEIGHT) == 1000 * 64 * 4


def test_a_dropout_that_trains_is_work_and_its_unused_mask_is_dropped():
    weights = constants(ratio=0.5, on=True, off=False)
    nodes = "a, mask = Dropout(x, ratio, off); y = Dropout(a, ratio, on)"
    graph = graph_of(nodes, "float[2,3] x", "y", weights)
    assert classes(graph) == "view elementwise"
    assert "mask" not in graph.tensors


@pytest.mark.parametrize(
    ("opset", "attributes", "kind"),
    cases("""
        6 | <is_test=1> | view
        6 | <is_test=0> | elementwise
        6 | | elementwise
        7 | | view
    """),
)
def test_before_opset_7_a_dropout_trains_unless_it_says_that_it_does_not(opset, attributes, kind):
    proto = model(f"y = Dropout{attributes}(x)", "float[2,3] x", "y", opset=int(opset))
    assert classes(lm.load(proto)) == kind


@pytest.mark.parametrize(
    ("dtype", "count", "size"),
    cases("""
        int4 | 9 | 5
        uint4 | 8 | 4
        float8e4m3fn | 7 | 7
        bfloat16 | 7 | 14
        float16 | 7 | 14
        bool | 7 | 7
        double | 7 | 56
        # Each is a reference.
        string | 3 | 24
    """),
)
def test_element_types_take_their_true_bytes(dtype, count, size):
    graph = graph_of("y = Transpose(x)", f"{dtype}[{count},1] x", "y")
    assert (graph.tensors["x"].bytes, graph.tensors["x"].dtype) == (int(size), dtype)


@pytest.mark.parametrize(("precision", "width"), [("int8", 1), ("fp16", 2), ("fp32", 4)])
def test_a_precision_replans_floats_and_leaves_integers(precision, width):
    inputs = "int64[3] i, bool[3] b"
    nodes = """
        e = Gather(w, i)
        h = Cast<to=11>(e)
        y = MatMul(h, m)
    """
    weights = "float[10,8] w, double[8,8] m"
    graph = graph_of(nodes, inputs, "y", weights, options={"precision": precision})
    sizes = [graph.tensors[name].bytes for name in ("w", "m", "y", "i")]
    assert sizes == [80 * width, 64 * width, 24 * width, 24]
    assert (graph.precision, only(graph, "MatMul").bits) == (precision, 8 * width)
    assert only(graph, "Cast").op_class is OpClass.VIEW


@pytest.mark.parametrize(
    ("dtype", "name"),
    cases("""
        bfloat16 | bf16
        float16 | fp16
        float | fp32
    """),
)
def test_the_precision_of_a_file_is_that_of_its_products(dtype, name):
    graph = graph_of("y = MatMul(x, x)", f"{dtype}[8,8] x", "y")
    assert graph.precision == name


def test_a_quantised_file_stores_and_calculates_in_eight_bits():
    """Quantise and dequantise pairs around a convolution: the float tensors between them are never
    stored."""
    nodes = """
        xq = QuantizeLinear(x, s, z)
        xd = DequantizeLinear(xq, s, z)
        wd = DequantizeLinear(wq, s, z)
        c = Conv(xd, wd)
        cq = QuantizeLinear(c, s, z)
        cd = DequantizeLinear(cq, s, z)
        y = Transpose(cd)
    """
    weights = [
        absent("wq", (16, 8, 1, 1), TensorProto.INT8),
        *constants(s=0.1, z=np.int8(0)),
    ]
    graph = graph_of(nodes, "float[1,8,6,6] x", "y", weights)
    assert classes(graph) == "elementwise view view product elementwise view movement"
    tensors, conv = graph.tensors, only(graph, "Conv")
    assert (tensors["xd"].alias_of, tensors["wd"].alias_of) == ("xq", "wq")
    assert tensors["wd"].kind is TensorKind.WEIGHT
    assert (conv.bits, reads(conv), graph.precision) == (8, {"xd": 288, "wd": 128}, "int8")
    sizes = [tensors[name].bytes for name in ("xd", "c", "cq", "y")]
    assert sizes == [288, 4 * 576, 576, 4 * 576]


def test_a_weight_quantised_in_the_file_is_planned_as_its_quantised_bytes():
    nodes = """
        q = QuantizeLinear(w, s, z)
        d = DequantizeLinear(q, s, z)
        y = MatMul(x, d)
    """
    weights = [absent("w", (64, 64)), *constants(s=0.1, z=np.int8(0))]
    graph = graph_of(nodes, "float[2,64] x", "y", weights)
    assert graph.bytes_of(TensorKind.WEIGHT) == 64 * 64
    assert graph.tensors["d"].alias_of == "q"


@pytest.mark.parametrize("transposed", [False, True])
def test_scales_of_quantised_blocks_are_read_with_what_they_scale(transposed):
    shape, scales = ((128, 64), (128, 2)) if transposed else ((64, 128), (2, 128))
    packed = np.zeros(64 * 128 // 2, np.uint8)
    weights = [
        helper.make_tensor("q", TensorProto.INT4, shape, packed.tobytes(), raw=True),
        *constants(s=np.ones(scales)),
    ]
    nodes = [
        f"d = DequantizeLinear<axis={int(transposed)}, block_size=32>(q, s)",
        "t = Transpose<perm=[1, 0]>(d)" if transposed else "",
        f"y = MatMul(x, {'t' if transposed else 'd'})",
    ]
    graph = graph_of(nodes, "float[2,64] x", "y", weights, opset=21)
    product = only(graph, "MatMul")
    assert graph.bytes_of(TensorKind.WEIGHT) == 64 * 128 // 2 + 4 * 2 * 128
    assert reads(product)["s"] == 4 * 2 * 128
    windows = {access.tensor: access.windows for access in product.reads}["s"]
    assert windows == (() if transposed else (ALL, Window(1)))


def test_scales_of_rows_that_are_looked_up_are_those_of_the_rows():
    table = helper.make_tensor("q", TensorProto.INT4, (100, 64), bytes(100 * 32), raw=True)
    nodes = [
        "d = DequantizeLinear<axis=1, block_size=16>(q, s)",
        "y = Gather(d, i)",
    ]
    graph = graph_of(nodes, "int64[6] i", "y", [table, *constants(s=np.ones((100, 4)))], opset=21)
    assert reads(only(graph, "Gather")) == {"d": 6 * 32, "i": 48, "s": 6 * 4 * 4}


@pytest.mark.parametrize("bits", [4, 8])
def test_lookups_in_quantised_tables_read_the_rows(bits):
    """As onnxruntime-genai writes embeddings; bytes hold one or two elements."""
    lookup = f"y = com.microsoft.GatherBlockQuantized<block_size=16, bits={bits}>(q, i, s)"
    weights = f"uint8[32,{64 * bits // 8}] q, float[32,4] s"
    graph = graph_of(lookup, "int64[2,4] i", "y", weights)
    assert shapes(graph, "y") == "2x4x64"
    found = {"q": 8 * 64 * bits // 8, "i": 64, "s": 8 * 4 * 4}
    assert reads(only(graph, "GatherBlockQuantized")) == found


def test_random_operators_read_nothing():
    graph = graph_of("y = RandomNormalLike(x)", "float[8,8] x", "y")
    op = only(graph, "RandomNormalLike")
    assert (op.op_class, op.reads, op.elements) == (OpClass.ELEMENTWISE, (), 64)


def test_operators_of_microsoft_without_inference_get_their_shapes():
    nodes = """
        g = com.microsoft.BiasGelu(x, b)
        n, , , sum = com.microsoft.SkipLayerNormalization(g, x, b, b)
        f = com.microsoft.FastGelu(n)
        y = com.microsoft.QuickGelu(sum)
    """
    graph = graph_of(nodes, "float[2,8,16] x", "f, y", "float[16] b")
    assert classes(graph) == "elementwise reduction elementwise elementwise"
    assert shapes(graph, "y") == "2x8x16"


def test_an_unknown_operator_with_a_noted_shape_is_planned_with_its_bytes():
    nodes = "[m] a = acme.Mystery(x); y = Relu(a)"
    graph = graph_of(nodes, "float[2,8] x", "y", value_info="float[4,4] a")
    op = graph.ops[0]
    assert (op.op_class, op.macs, reads(op)) == (OpClass.UNKNOWN, 0, {"x": 64})
    assert graph.unknown_ops == {"Mystery": 1}


@pytest.mark.parametrize(
    ("operator", "opset"),
    cases("""
        MeanVarianceNormalization(x) | 9
        MeanVarianceNormalization(x) | 13
        MeanVarianceNormalization<axes=[1]>(x) | 21
        GroupNormalization<num_groups=2>(x, half, half) | 18
        GroupNormalization<num_groups=2>(x, scale, scale) | 21
    """),
)
def test_normalisations_that_are_functions_have_shapes(operator, opset):
    """Also with the defaults of their attributes, and where the body depends on the operands."""
    nodes = f"t = {operator}; y = Relu(t)"
    weights = "float[2] half, float[4] scale"
    graph = graph_of(nodes, "float[1,4,6,6] x", "y", weights, opset=int(opset))
    assert shapes(graph, "t") == "1x4x6x6"
    assert graph.ops[0].op_class is OpClass.REDUCTION


@pytest.mark.parametrize(
    ("operator", "inputs", "opset", "shape"),
    cases("""
        Conv(x, w) | bfloat16[1,4,8,8] x, bfloat16[6,4,3,3] w | 11 | 1x6x6x6
        MatMul(x, w) | bfloat16[3,4] x, bfloat16[4,5] w | 9 | 3x5
        MaxPool<kernel_shape=[2, 2]>(x) | bfloat16[1,4,8,8] x | 12 | 1x4x7x7
        Resize(x, scales) | bfloat16[1,4,8,8] x | 10 | 1x4x16x16
    """),
)
def test_shapes_do_not_depend_on_types_that_an_older_opset_does_not_list(
    operator, inputs, opset, shape
):
    nodes, scales = f"t = {operator}; y = Identity(t)", constants(scales=[1.0, 1.0, 2.0, 2.0])
    graph = graph_of(nodes, inputs, "y", scales, opset=int(opset))
    assert (shapes(graph, "t"), graph.tensors["t"].dtype) == (shape, "bfloat16")


@pytest.mark.parametrize(
    "resize",
    ["Resize(x, , scales)", "Resize<axes=[2, 3]>(x, , two)", "Upsample(x, scales)"],
)
@pytest.mark.parametrize(("factor", "size"), [(0.7, 14), (1.3, 26), (0.35, 7), (1.5, 30)])
def test_scales_multiply_in_single_precision(resize, factor, size):
    """As ONNX Runtime does; inference of the onnx package says 13 instead of 14."""
    scales = constants(scales=[1.0, 1.0, factor, factor], two=[factor, factor])
    opset = 9 if "Upsample" in resize else 18
    graph = graph_of(f"t = {resize}; y = Relu(t)", "float[1,3,20,20] x", "y", scales, opset=opset)
    assert shapes(graph, "t") == f"1x3x{size}x{size}"


@pytest.mark.parametrize("kind", ["Relu", "Sigmoid", "Exp", "Sqrt", "Tanh", "Elu", "Neg"])
def test_the_first_opset_infers_by_the_definitions_of_later_ones(kind):
    graph = graph_of(f"t = {kind}(x); y = Abs(t)", "float[2,3] x", "y", opset=1)
    assert shapes(graph, "t") == "2x3"


def test_weights_inside_bodies_count_and_are_read():
    """Both branches call theirs by one name, and one hides another body."""

    def branch(width, *nodes):
        return body([*nodes, "t = MatMul(x, w)"], "", "t", f"float[4,{width}] w")

    value = constant("", np.ones((3, 5)), np.float32)
    inner = body([node("Constant", [], "k", value=value)], "", "k")
    nodes = [either("c", "y", branch(4), branch(4, either("c", "u", inner)))]
    graph = graph_of(nodes, "bool c, float[4,4] x", "y")
    weights = [
        tensor.bytes for tensor in graph.tensors.values() if tensor.kind is TensorKind.WEIGHT
    ]
    assert sorted(weights) == [60, 60, 64, 64]
    assert graph.bytes_of(TensorKind.WEIGHT) == 248
    assert sum(reads(only(graph, "If")).values()) == 1 + 64 + 248


def test_a_weight_inside_a_body_takes_no_name_of_the_network():
    branch = body("t = MatMul(x, w)", "", "t", "float[4,4] w")
    nodes = [
        either("c", "y", branch, name="choice"),
        node("Relu", ["y"], "choice/w"),
    ]
    graph = graph_of(nodes, "bool c, float[4,4] x", "choice/w")
    assert graph.tensors["choice/w"].kind is TensorKind.ACTIVATION
    assert graph.bytes_of(TensorKind.WEIGHT) == 128


def test_a_body_sees_the_constants_that_it_captures():
    """The new shape inside the loop is known only outside it."""
    inner = body("go2 = Identity(go); r = Reshape(x, target)", "int64 i, bool go", "go2, r")
    nodes = [node("Loop", ["n", ""], "all", body=inner), "y = ReduceSum(all)"]
    noted = "float[3,2,6] all"
    graph = graph_of(nodes, "float[3,4] x", "y", constants(n=3, target=[2, 6]), value_info=noted)
    assert shapes(graph, "all") == "3x2x6"
    scan = body("r = Unsqueeze(row, target)", "float[] row", "r")
    nodes = [node("Scan", ["x"], "all", body=scan, num_scan_inputs=1), "y = Relu(all)"]
    graph = graph_of(nodes, "float[3,4] x", "y", constants(target=[0]))
    assert shapes(graph, "all") == "3x1x4"


def test_what_is_empty_inside_a_network_is_a_constant():
    """The half of a rotation that is left alone, say, where all is turned."""
    nodes = """
        all = Slice(x, zero, end, axis)
        none = Slice(x, end, end, axis)
        turned = Neg(all)
        y = Concat<axis=1>(turned, none)
    """
    graph = graph_of(nodes, "float[3,4] x", "y", constants(zero=[0], end=[4], axis=[1]))
    assert classes(graph) == "view shape elementwise view"
    assert "none" not in graph.tensors


def test_an_empty_input_of_which_nothing_needs_an_element_is_no_input():
    nodes = "h = CastLike(x, like); y = ReduceMax<keepdims=0>(h, axes)"
    graph = graph_of(nodes, "float[3,4] x, float16[0] like, int64[0] axes", "y")
    assert graph.inputs == ("x",)
    assert shapes(graph, "y") == ""
    assert graph.tensors["y"].dtype == "float16"


@pytest.mark.parametrize("opset", [11, 19, 22])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_a_window_that_begins_behind_the_operand_is_none(kind, opset):
    """However sizes are rounded."""
    pool = f"y = {kind}<ceil_mode=1, kernel_shape=[1, 2], strides=[2, 3], pads=[0, 0, 0, 1]>(x)"
    graph = graph_of(pool, "float[1,2,4,8] x", "y", opset=opset)
    assert shapes(graph, "y") == "1x2x2x3"


def test_fourier_transforms_count_as_fast_ones():
    weights = [*constants(axis=1, step=4), absent("window", (16,))]
    # The short one is one-sided by default, which inference does not know.
    nodes = """
        full = DFT(c, , axis)
        half = DFT<onesided=1>(r, , axis)
        short = STFT(r, step, window)
    """
    graph = graph_of(
        nodes, "float[3,32,2] c, float[3,32,1] r", "full, half, short", weights, opset=20
    )
    assert shapes(graph) == "3x32x2 3x17x2 3x5x9x2"
    frame = 5 * 16 * 4 // 2 + 16
    assert [op.elements for op in graph.ops] == [3 * 5 * 32 * 5, 3 * 5 * 32 * 5 // 2, 3 * 5 * frame]
    assert {op.op_class for op in graph.ops} == {OpClass.REDUCTION}


def test_a_transform_of_an_older_opset_has_its_axis_in_an_attribute():
    graph = graph_of("y = DFT<axis=2>(c)", "float[3,5,8,2] c", "y", opset=17)
    assert graph.ops[0].elements == 15 * 5 * 8 * 3


def test_windows_whose_length_the_caller_gives_are_arithmetic():
    nodes = """
        a = HannWindow(n); b = HammingWindow(n); c = BlackmanWindow(n)
        x = Relu(a); y = Relu(b); z = Relu(c)
    """
    noted = "float[16] a, float[16] b, float[16] c"
    graph = graph_of(nodes, "int64 n", "x, y, z", value_info=noted)
    assert [op.elements for op in graph.ops[:3]] == [64, 64, 128]
