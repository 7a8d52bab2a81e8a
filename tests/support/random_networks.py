"""Random small ONNX networks of many kinds of operators, layer by layer."""

from functools import partial

import numpy as np
from onnx import numpy_helper, shape_inference
from tests.support.onnx_builder import model, node

from loadmaster.workloads.frontends.frontend import LoadOptions
from loadmaster.workloads.frontends.onnx.graph_builder import graph_of, walk_network


class Builder:
    """Adds nodes one by one, whose shapes ONNX infers; ``last`` is what the network returns."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)
        self.nodes = []
        self.constants = []
        self.shapes = {}
        self.inputs = {}

    def choose(self, *options):
        return options[int(self.generator.integers(len(options)))]

    def divisor(self, number, *options):
        return self.choose(*[each for each in options if number % each == 0])

    def input(self, *shape):
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.shapes[name] = shape
        return name

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        self.shapes[name] = array.shape
        return name

    def weight(self, *shape):
        return self.constant(self.generator.uniform(-1, 1, shape).astype(np.float32))

    def add(self, kind, *operands, **attributes):
        """An operator of tensors, by their names, and of numbers, which are constants."""
        operands = [each if isinstance(each, str) else self.numbers(each) for each in operands]
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(kind, operands, name, f"{kind}_{name}", **attributes))
        inferred = shape_inference.infer_shapes(self.model(), data_prop=True)
        self.shapes |= {
            value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
            for value in inferred.graph.value_info
        }
        return name

    def numbers(self, values):
        """A constant of whole numbers of 64 bits, or of floats of 32."""
        array = np.array(values)
        return self.constant(array.astype(np.int64 if array.dtype.kind == "i" else np.float32))

    def __getattr__(self, kind):
        """An operator of ONNX, called by its name."""
        if not kind[0].isupper():
            raise AttributeError(kind)
        return partial(self.add, kind)

    def model(self, *outputs):
        return model(self.nodes, self.inputs, outputs, self.constants, 17, ir_version=9)

    def graph(self, name="random", precision=None):
        options = LoadOptions(precision=precision)
        return graph_of(walk_network(self.model(self.last), options), name, "test")


def convolution(build, x):
    channels = build.shapes[x][1]
    groups = build.divisor(channels, 1, 2, channels)
    each, taps, dilation = build.choose(1, 2), build.choose(1, 2, 3), build.choose(1, 2)
    if min(build.shapes[x][2:]) <= (taps - 1) * dilation:
        taps = 1
    # Even of one tap: parts of the result that lie in the padding alone.
    pads = [build.choose(0, 0, 1, 2) for _ in range(4)]
    weight = build.weight(each * groups, channels // groups, taps, taps)
    return build.Conv(
        x,
        weight,
        strides=[build.choose(1, 1, 2, 3), build.choose(1, 2)],
        pads=pads,
        dilations=[dilation] * 2,
        group=groups,
    )


def transposed(build, x):
    channels = build.shapes[x][1]
    groups = build.divisor(channels, 1, 2, channels)
    taps, dilation = build.choose(2, 3), build.choose(1, 2)
    weight = build.weight(channels, build.choose(1, 2), taps, taps)
    bias = [] if build.choose(True, False) else [build.weight(build.shapes[weight][1] * groups)]
    pads = [build.choose(0, 1) for _ in range(4)]
    return build.ConvTranspose(
        x,
        weight,
        *bias,
        strides=[build.choose(1, 2, 3), 2],
        pads=pads,
        dilations=[dilation, 1],
        group=groups,
    )


def resized(build, x):
    scales = [1.0, 1.0, build.choose(0.5, 1.5, 2.0), build.choose(1.0, 3.0)]
    mode = build.choose("nearest", "linear", "cubic")
    coordinates = build.choose("half_pixel", "asymmetric")
    return build.Resize(x, [], scales, mode=mode, coordinate_transformation_mode=coordinates)


def concatenated(build, x):
    axis = int(build.generator.integers(4))
    other = build.input(
        *(build.choose(1, 2, 3) if d == axis else n for d, n in enumerate(build.shapes[x]))
    )
    return build.Concat(*build.choose((x, other), (other, x), (x, other, x)), axis=axis)


def residual(build, x):
    again = build.Relu(x)
    return build.Add(x, again)


def scaled(build, x):
    shape = tuple(build.choose(1, n) for n in build.shapes[x])
    return build.Mul(x, build.weight(*shape[build.choose(0, 1, 2) :]))


def expanded(build, x):
    mean = build.ReduceMean(x, axes=[build.choose(1, 2, 3)])
    return build.Sub(x, build.Expand(mean, build.shapes[x]))


def sliced(build, x):
    axis = int(build.generator.integers(4))
    n = build.shapes[x][axis]
    step = build.choose(1, 2)
    return build.Slice(x, [0 if n == 1 else 1], [n], [axis], [step])


def tokens(build, x):
    """The channels of every position."""
    n, c, h, w = build.shapes[x]
    return build.Transpose(build.Reshape(x, [n, c, h * w]), perm=[0, 2, 1])


def folded(build, x):
    """Through a reshape and a transpose and back."""
    n, c, h, w = build.shapes[x]
    turned = tokens(build, x)
    back = build.Transpose(build.Relu(turned), perm=[0, 2, 1])
    return build.Reshape(back, [n, c, h, w])


def shuffled(build, x):
    """A channel shuffle before a convolution."""
    n, c, h, w = build.shapes[x]
    groups = build.divisor(c, 1, 2, 3, c)
    turned = build.Transpose(build.Reshape(x, [n, groups, c // groups, h, w]), perm=[0, 2, 1, 3, 4])
    return convolution(build, build.Reshape(turned, [n, c, h, w]))


def attention(build, x):
    """Heads from channels, MatMul - Softmax - MatMul, and back to the layout of the operand."""
    n, c, h, w = build.shapes[x]
    heads, width = build.choose(1, 2), 4
    rows = tokens(build, x)
    split = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        projected = build.MatMul(rows, build.weight(c, heads * width))
        split.append(
            build.Transpose(build.Reshape(projected, [n, h * w, heads, width]), perm=order)
        )
    scores = build.Softmax(build.MatMul(split[0], split[1]), axis=-1)
    mixed = build.Transpose(build.MatMul(scores, split[2]), perm=[0, 2, 1, 3])
    result = build.MatMul(
        build.Reshape(mixed, [n, h * w, heads * width]), build.weight(heads * width, c)
    )
    return build.Reshape(build.Transpose(result, perm=[0, 2, 1]), [n, c, h, w])


def gathered(build, x):
    """Some elements of a dimension, or a run of them that may begin before the first, which is the
    end."""
    axis = build.choose(1, 2, 3)
    n = build.shapes[x][axis]
    first = int(build.generator.integers(-n, n))
    run = range(first, min(n, first + build.choose(1, 2, 3)))
    return build.Gather(
        x, build.choose(run, run, build.generator.integers(-n, n, 3).tolist()), axis=axis
    )


SMOOTH = "Abs Erf Tanh Sigmoid HardSwish Relu Softplus Softsign Sin Cos Neg Exp Identity"


def activation(build, x):
    kind = build.choose(*SMOOTH.split(), "LeakyRelu", "Elu", "HardSigmoid", "Clip", "PRelu")
    if kind == "Clip":
        return build.Clip(x, *build.choose([-0.5, 0.25], ["", 0.25], [-0.5]))
    if kind == "PRelu":
        return build.add(kind, x, build.weight(build.shapes[x][1], 1, 1))
    return build.add(kind, x)


def gelu(build, x):
    """As exporters wrote it before it was an operator."""
    error = build.Erf(build.Div(x, np.sqrt(2)))
    return build.Mul(build.Mul(x, build.Add(error, 1.0)), 0.5)


def layer_normalisation(build, x):
    """In its parts."""
    difference = build.Sub(x, build.ReduceMean(x, axes=[-1]))
    variance = build.ReduceMean(build.Pow(difference, 2.0), axes=[-1])
    deviation = build.Sqrt(build.Add(variance, 0.1))
    return build.Mul(build.Div(difference, deviation), build.weight(build.shapes[x][-1]))


def batch_normalisation(build, x):
    channels = build.shapes[x][1]
    variance = build.generator.uniform(0.5, 1.5, channels)
    return build.BatchNormalization(x, *(build.weight(channels) for _ in range(3)), variance)


def normalised(build, x):
    kind = build.choose("Softmax", "LogSoftmax", "LayerNormalization", "LpNormalization")
    if kind == "LayerNormalization":
        axis = build.choose(2, 3)
        return build.add(
            kind, x, *(build.weight(*build.shapes[x][axis:]) for _ in range(2)), axis=axis
        )
    return build.add(kind, x, axis=build.choose(1, 2, 3))


def pooling(build, x):
    kind = build.choose("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    if kind.startswith("Global"):
        return build.Add(x, build.add(kind, x))
    size = build.choose(1, 2) if min(build.shapes[x][2:]) > 1 else 1
    pads = [build.choose(0, 1) if size > 1 else 0 for _ in range(4)]
    options = {"count_include_pad": build.choose(0, 1)} if kind == "AveragePool" else {}
    return build.add(
        kind, x, kernel_shape=[size, size], strides=[build.choose(1, 2), 1], pads=pads, **options
    )


def padded(build, x):
    ends = [0, 0, build.choose(0, 2), 1, 0, build.choose(0, 1), 0, 0]
    return build.choose(lambda: build.Pad(x, ends, 0.5), lambda: build.Pad(x, ends, mode="edge"))()


def linear(build, x):
    n, *rest = build.shapes[x]
    wide, turned = build.choose(4, 6, 12), build.choose(0, 1)
    inner = int(np.prod(rest))
    weight = build.weight(*((wide, inner) if turned else (inner, wide)))
    flat = build.Flatten(x)
    result = build.Gemm(
        flat,
        weight,
        build.weight(*build.choose((wide,), (1, wide), (n, wide))),
        transB=turned,
        alpha=0.5,
        beta=2.0,
    )
    return build.Reshape(build.add(build.choose("Relu", "Tanh"), result), [n, wide // 2, 2, 1])


def chosen(build, x):
    less = build.add(build.choose("Less", "GreaterOrEqual"), x, 0.5)
    both = build.add(build.choose("And", "Or", "Xor"), less, build.Not(build.Equal(x, 0.5)))
    return build.Where(both, x, build.Mul(x, build.weight(build.shapes[x][-1])))


def counted(build, x):
    """Through whole numbers and back."""
    whole = build.Cast(build.Mul(x, 10.0), to=build.choose(6, 7))
    return build.Mul(x, build.Cast(whole, to=1))


def reduced(build, x):
    kind, axis = build.choose("ReduceMean", "ReduceMax", "ReduceMin"), build.choose(1, 2, 3)
    found = build.add(kind, x, axes=[axis], keepdims=build.choose(0, 1))
    shape = [1 if d == axis else n for d, n in enumerate(build.shapes[x])]
    return build.Sub(x, build.Reshape(found, shape))


def together(build, x):
    return build.add(
        build.choose("Sum", "Max", "Min", "Mean"),
        x,
        build.Sigmoid(x),
        build.weight(1, build.shapes[x][1], 1, 1),
    )


def tiled(build, x):
    return build.Tile(x, [1, build.choose(1, 2), 1, 2])


def two_products(build, x):
    """A product whose bias and activation see another shape than it has."""
    n, c, h, w = build.shapes[x]
    wide = build.choose(4, 6, 8)
    product = build.MatMul(build.Reshape(x, [n * c, h * w]), build.weight(h * w, wide))
    shaped = build.Reshape(product, [n, c, wide // 2, 2])
    return build.Relu(build.Add(shaped, build.weight(2)))


LAYERS = (
    activation,
    attention,
    batch_normalisation,
    chosen,
    concatenated,
    convolution,
    counted,
    expanded,
    folded,
    gathered,
    gelu,
    layer_normalisation,
    linear,
    normalised,
    padded,
    pooling,
    reduced,
    residual,
    scaled,
    shuffled,
    sliced,
    tiled,
    together,
    transposed,
    two_products,
)


def random_network(seed, layers=LAYERS, length=4, most=1500, shape=()):
    """A network whose only output is the value `last`; its input has the given shape, or a small
    one."""
    build = Builder(seed)
    last = build.input(
        *(shape or (build.choose(1, 2), build.choose(2, 4), build.choose(3, 5), build.choose(3, 4)))
    )
    for _ in range(length):
        following = build.choose(*layers)(build, last)
        # Sizes stay those that a naive evaluation bears.
        last = following if 0 < np.prod(build.shapes[following]) <= most else last
    build.last = build.Relu(last)
    return build
