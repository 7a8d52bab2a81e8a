"""Random small ONNX networks, layer by layer, with the values of every tensor for one random
input."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.support.pieces_reference import Network


class Builder:
    """Adds nodes one by one; every tensor's shape is known from running what is there so far."""

    def __init__(self, seed: int, opset: int = 17) -> None:
        self.generator = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.values: dict[str, np.ndarray] = {}
        self.inputs: dict[str, np.ndarray] = {}

    def choose(self, *options):
        return options[int(self.generator.integers(len(options)))]

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.values[name] = self.generator.uniform(-1, 1, shape).astype(
            np.float32
        )
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        self.values[name] = array
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.generator.uniform(-1, 1, shape).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, kind: str, *operands: str, **attributes) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, operands, [name], f"{kind}_{name}", **attributes))
        network = Network(self.model(name))
        self.values |= network.run(self.nodes[-1].name, self.values)
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def model(self, *outputs: str) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape)
            for n, a in self.inputs.items()
        ]
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "random", inputs, results, self.constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9
        )


def convolution(build: Builder, x: str) -> str:
    channels = build.shape(x)[1]
    groups = build.choose(*[g for g in (1, 2, channels) if channels % g == 0])
    each, taps, dilation = build.choose(1, 2), build.choose(1, 2, 3), build.choose(1, 2)
    if min(build.shape(x)[2:]) <= (taps - 1) * dilation:
        taps = 1
    # Even of one tap: parts of the result that lie in the padding alone.
    pads = [build.choose(0, 0, 1, 2) for _ in range(4)]
    weight = build.weight(each * groups, channels // groups, taps, taps)
    return build.add(
        "Conv",
        x,
        weight,
        strides=[build.choose(1, 1, 2, 3), build.choose(1, 2)],
        pads=pads,
        dilations=[dilation] * 2,
        group=groups,
    )


def transposed(build: Builder, x: str) -> str:
    channels = build.shape(x)[1]
    groups = build.choose(*[g for g in (1, 2, channels) if channels % g == 0])
    taps, dilation = build.choose(2, 3), build.choose(1, 2)
    weight = build.weight(channels, build.choose(1, 2), taps, taps)
    bias = [] if build.choose(True, False) else [build.weight(build.shape(weight)[1] * groups)]
    pads = [build.choose(0, 1) for _ in range(4)]
    return build.add(
        "ConvTranspose",
        x,
        weight,
        *bias,
        strides=[build.choose(1, 2, 3), 2],
        pads=pads,
        dilations=[dilation, 1],
        group=groups,
    )


def pooling(build: Builder, x: str) -> str:
    size = build.choose(1, 2) if min(build.shape(x)[2:]) > 1 else 1
    return build.add(
        build.choose("MaxPool", "AveragePool"),
        x,
        kernel_shape=[size, size],
        strides=[build.choose(1, 2), 1],
    )


def resized(build: Builder, x: str) -> str:
    none = build.constant(np.zeros(0, np.float32))
    scales = build.constant(
        np.array([1, 1, build.choose(0.5, 1.5, 2.0), build.choose(1.0, 3.0)], np.float32)
    )
    mode, coordinates = (
        build.choose("nearest", "linear", "cubic"),
        build.choose("half_pixel", "asymmetric"),
    )
    return build.add(
        "Resize", x, none, scales, mode=mode, coordinate_transformation_mode=coordinates
    )


def concatenated(build: Builder, x: str) -> str:
    axis = int(build.generator.integers(4))
    other = build.input(
        *(build.choose(1, 2, 3) if d == axis else n for d, n in enumerate(build.shape(x)))
    )
    return build.add("Concat", *build.choose((x, other), (other, x), (x, other, x)), axis=axis)


def residual(build: Builder, x: str) -> str:
    again = build.add("Relu", x)
    return build.add("Add", x, again)


def scaled(build: Builder, x: str) -> str:
    shape = tuple(build.choose(1, n) for n in build.shape(x))
    return build.add("Mul", x, build.weight(*shape[build.choose(0, 1, 2) :]))


def expanded(build: Builder, x: str) -> str:
    mean = build.add("ReduceMean", x, axes=[build.choose(1, 2, 3)])
    return build.add("Sub", x, build.add("Expand", mean, build.ints(*build.shape(x))))


def padded(build: Builder, x: str) -> str:
    mode = build.choose("constant", "edge")
    return build.add(
        "Pad", x, build.ints(0, 0, build.choose(0, 2), 1, 0, build.choose(0, 1), 0, 0), mode=mode
    )


def sliced(build: Builder, x: str) -> str:
    axis = int(build.generator.integers(4))
    n = build.shape(x)[axis]
    step = build.choose(1, 2)
    return build.add(
        "Slice",
        x,
        build.ints(0 if n == 1 else 1),
        build.ints(n),
        build.ints(axis),
        build.ints(step),
    )


def normalised(build: Builder, x: str) -> str:
    kind = build.choose("Softmax", "LayerNormalization", "LpNormalization")
    if kind == "LayerNormalization":
        width = build.shape(x)[-1]
        return build.add(kind, x, build.weight(width), build.weight(width))
    return build.add(kind, x, axis=build.choose(1, 2, 3))


def folded(build: Builder, x: str) -> str:
    """Through a reshape and a transpose and back."""
    n, c, h, w = build.shape(x)
    turned = build.add(
        "Transpose", build.add("Reshape", x, build.ints(n, c, h * w)), perm=[0, 2, 1]
    )
    back = build.add("Transpose", build.add("Relu", turned), perm=[0, 2, 1])
    return build.add("Reshape", back, build.ints(n, c, h, w))


def shuffled(build: Builder, x: str) -> str:
    """A channel shuffle before a convolution."""
    n, c, h, w = build.shape(x)
    groups = build.choose(*[g for g in (1, 2, 3, c) if c % g == 0])
    turned = build.add(
        "Transpose",
        build.add("Reshape", x, build.ints(n, groups, c // groups, h, w)),
        perm=[0, 2, 1, 3, 4],
    )
    return convolution(build, build.add("Reshape", turned, build.ints(n, c, h, w)))


def attention(build: Builder, x: str) -> str:
    """Heads from channels, MatMul - Softmax - MatMul, and back to the layout of the operand."""
    n, c, h, w = build.shape(x)
    heads, width = build.choose(1, 2), 4
    tokens = build.add(
        "Transpose", build.add("Reshape", x, build.ints(n, c, h * w)), perm=[0, 2, 1]
    )
    split = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        projected = build.add("MatMul", tokens, build.weight(c, heads * width))
        split.append(
            build.add(
                "Transpose",
                build.add("Reshape", projected, build.ints(n, h * w, heads, width)),
                perm=order,
            )
        )
    scores = build.add("Softmax", build.add("MatMul", split[0], split[1]), axis=-1)
    mixed = build.add("Transpose", build.add("MatMul", scores, split[2]), perm=[0, 2, 1, 3])
    result = build.add(
        "MatMul",
        build.add("Reshape", mixed, build.ints(n, h * w, heads * width)),
        build.weight(heads * width, c),
    )
    return build.add(
        "Reshape", build.add("Transpose", result, perm=[0, 2, 1]), build.ints(n, c, h, w)
    )


def gathered(build: Builder, x: str) -> str:
    """Some elements of a dimension, or a run of them that may begin before the first, which is the
    end."""
    axis = build.choose(1, 2, 3)
    n = build.shape(x)[axis]
    first = int(build.generator.integers(-n, n))
    run = range(first, min(n, first + build.choose(1, 2, 3)))
    return build.add(
        "Gather",
        x,
        build.ints(*build.choose(run, run, build.generator.integers(-n, n, 3).tolist())),
        axis=axis,
    )
