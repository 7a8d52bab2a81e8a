"""Random networks of many kinds of operators."""

from __future__ import annotations

import numpy as np
from tests.support.random_networks import (
    Builder,
    attention,
    concatenated,
    convolution,
    expanded,
    folded,
    gathered,
    residual,
    scaled,
    sliced,
)

SMOOTH = (
    "Abs",
    "Erf",
    "Tanh",
    "Sigmoid",
    "HardSwish",
    "Relu",
    "Softplus",
    "Softsign",
    "Sin",
    "Cos",
    "Neg",
    "Exp",
    "Identity",
)


def activation(build: Builder, x: str) -> str:
    kind = build.choose(*SMOOTH, "LeakyRelu", "Elu", "HardSigmoid", "Clip", "PRelu")
    if kind == "Clip":
        ends = [build.constant(np.array(end, np.float32)) for end in (-0.5, 0.25)]
        return build.add(kind, x, *build.choose(ends, ["", ends[1]], ends[:1]))
    if kind == "PRelu":
        return build.add(kind, x, build.weight(build.shape(x)[1], 1, 1))
    return build.add(kind, x)


def gelu(build: Builder, x: str) -> str:
    """As exporters wrote it before it was an operator."""
    error = build.add("Erf", build.add("Div", x, build.constant(np.array(np.sqrt(2), np.float32))))
    return build.add(
        "Mul",
        build.add("Mul", x, build.add("Add", error, build.constant(np.array(1, np.float32)))),
        half(build),
    )


def half(build: Builder) -> str:
    return build.constant(np.array(0.5, np.float32))


def layer_normalisation(build: Builder, x: str) -> str:
    """In its parts."""
    difference = build.add("Sub", x, build.add("ReduceMean", x, axes=[-1]))
    variance = build.add(
        "ReduceMean",
        build.add("Pow", difference, build.constant(np.array(2, np.float32))),
        axes=[-1],
    )
    deviation = build.add(
        "Sqrt", build.add("Add", variance, build.constant(np.array(0.1, np.float32)))
    )
    return build.add(
        "Mul", build.add("Div", difference, deviation), build.weight(build.shape(x)[-1])
    )


def batch_normalisation(build: Builder, x: str) -> str:
    channels = build.shape(x)[1]
    variance = build.constant(build.generator.uniform(0.5, 1.5, channels).astype(np.float32))
    return build.add("BatchNormalization", x, *(build.weight(channels) for _ in range(3)), variance)


def normalised(build: Builder, x: str) -> str:
    kind = build.choose("Softmax", "LogSoftmax", "LayerNormalization")
    if kind == "LayerNormalization":
        axis = build.choose(2, 3)
        return build.add(
            kind, x, *(build.weight(*build.shape(x)[axis:]) for _ in range(2)), axis=axis
        )
    return build.add(kind, x, axis=build.choose(1, 2, 3))


def pooling(build: Builder, x: str) -> str:
    kind = build.choose("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    if kind.startswith("Global"):
        return build.add("Add", x, build.add(kind, x))
    size = build.choose(1, 2) if min(build.shape(x)[2:]) > 1 else 1
    pads = [build.choose(0, 1) if size > 1 else 0 for _ in range(4)]
    options = {"count_include_pad": build.choose(0, 1)} if kind == "AveragePool" else {}
    return build.add(
        kind, x, kernel_shape=[size, size], strides=[build.choose(1, 2), 1], pads=pads, **options
    )


def padded(build: Builder, x: str) -> str:
    return build.add(
        "Pad", x, build.ints(0, 0, build.choose(0, 2), 1, 0, build.choose(0, 1), 0, 0), half(build)
    )


def linear(build: Builder, x: str) -> str:
    n, *rest = build.shape(x)
    wide, turned = build.choose(4, 6, 12), build.choose(0, 1)
    inner = int(np.prod(rest))
    weight = build.weight(*((wide, inner) if turned else (inner, wide)))
    flat = build.add("Flatten", x)
    result = build.add(
        "Gemm",
        flat,
        weight,
        build.weight(*build.choose((wide,), (1, wide), (n, wide))),
        transB=turned,
        alpha=0.5,
        beta=2.0,
    )
    return build.add(
        "Reshape", build.add(build.choose("Relu", "Tanh"), result), build.ints(n, wide // 2, 2, 1)
    )


def chosen(build: Builder, x: str) -> str:
    less = build.add(build.choose("Less", "GreaterOrEqual"), x, half(build))
    both = build.add(
        build.choose("And", "Or", "Xor"), less, build.add("Not", build.add("Equal", x, half(build)))
    )
    return build.add("Where", both, x, build.add("Mul", x, build.weight(build.shape(x)[-1])))


def counted(build: Builder, x: str) -> str:
    """Through whole numbers and back."""
    whole = build.add(
        "Cast", build.add("Mul", x, build.constant(np.array(10, np.float32))), to=build.choose(6, 7)
    )
    return build.add("Mul", x, build.add("Cast", whole, to=1))


def reduced(build: Builder, x: str) -> str:
    kind, axis = build.choose("ReduceMean", "ReduceMax", "ReduceMin"), build.choose(1, 2, 3)
    found = build.add(kind, x, axes=[axis], keepdims=build.choose(0, 1))
    shape = [1 if d == axis else n for d, n in enumerate(build.shape(x))]
    return build.add("Sub", x, build.add("Reshape", found, build.ints(*shape)))


def together(build: Builder, x: str) -> str:
    return build.add(
        build.choose("Sum", "Max", "Min", "Mean"),
        x,
        build.add("Sigmoid", x),
        build.weight(1, build.shape(x)[1], 1, 1),
    )


def tiled(build: Builder, x: str) -> str:
    return build.add("Tile", x, build.ints(1, build.choose(1, 2), 1, 2))


def two_products(build: Builder, x: str) -> str:
    """A product whose bias and activation see another shape than it has."""
    n, c, h, w = build.shape(x)
    wide = build.choose(4, 6, 8)
    product = build.add(
        "MatMul", build.add("Reshape", x, build.ints(n * c, h * w)), build.weight(h * w, wide)
    )
    shaped = build.add("Reshape", product, build.ints(n, c, wide // 2, 2))
    return build.add("Relu", build.add("Add", shaped, build.weight(2)))


LAYERS = (
    *(
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
        linear,
    ),
    *(
        layer_normalisation,
        normalised,
        padded,
        pooling,
        reduced,
        residual,
        scaled,
        sliced,
        tiled,
        together,
        two_products,
    ),
)


def random_network(
    seed: int, layers=LAYERS, length: int = 4, most: int = 1500, shape: tuple[int, ...] = ()
) -> Builder:
    """A network whose only output is the value `last`; its input has the given shape, or a small
    one."""
    build = Builder(seed)
    last = build.input(
        *(shape or (build.choose(1, 2), build.choose(2, 4), build.choose(3, 5), build.choose(3, 4)))
    )
    for _ in range(length):
        following = build.choose(*layers)(build, last)
        # Sizes stay those that a naive evaluation bears.
        last = following if np.prod(build.shape(following)) <= most else last
    build.last = build.add("Relu", last)
    return build
