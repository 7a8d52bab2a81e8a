"""Which kernel of kernels.c computes what an ONNX node computes, with which attributes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.types import Node, Shape, Value

MOST_DIMENSIONS, MOST_OPERANDS = 8, 64
"""As arrays.h says."""


@dataclass(frozen=True)
class Operand:
    """An operand of a node by its number, read as an array of some shape if that is not its own."""

    index: int
    shape: Shape | None = None


@dataclass(frozen=True)
class Kernel:
    """A call of a kernel; an operand that is None is absent."""

    name: str
    operands: tuple[Operand | None, ...]
    integers: tuple[int, ...] = ()
    reals: tuple[float, ...] = ()


Rule = Callable[[Node, int], Kernel]
_RULES: dict[tuple[str, str], Rule] = {}


def kernel_of(node: Node, result: int) -> Kernel:
    """The kernel that computes one result of a node.

    Raises
    ------
    ModelError
        If there is none; the message names the operator and its type, but not the file.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    label = f"operator {node.name!r} is of type {domain + '.' if domain else ''}{node.kind}"
    rule = _RULES.get((domain, node.kind))
    if rule is None:
        raise ModelError(
            f"{label}, for which the program in C has no kernel (docs/how-to/generate-code.md lists"
            " those that it has)"
        )
    if node.kind != "Split" and any(value is not None for value in node.outputs[1:]):
        raise ModelError(f"{label}, of which the program in C computes the first result only")
    try:
        kernel = rule(node, result)
    except _Refusal as refusal:
        raise ModelError(f"{label}, which the program in C does not run {refusal}") from None
    shapes = [value.shape for value in node.present] + [
        value.shape for value in node.outputs if value
    ]
    if max(map(len, shapes)) > MOST_DIMENSIONS or len(kernel.operands) > MOST_OPERANDS:
        raise ModelError(
            f"{label} with more than {MOST_DIMENSIONS} dimensions or {MOST_OPERANDS} operands, too"
            " many for the program in C"
        )
    return kernel


def kinds() -> list[str]:
    """Types of operators that have a kernel, in the order of their names."""
    return sorted(f"{domain}.{kind}" if domain else kind for domain, kind in _RULES)


class _Refusal(Exception):
    """What a kernel does not do, to follow `does not run`."""


def _rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update({(domain, kind): rule for kind in names})
        return rule

    return register


def _all(node: Node) -> tuple[Operand | None, ...]:
    return tuple(
        None if value is None else Operand(index) for index, value in enumerate(node.inputs)
    )


def _constant(value: Value | None, what: str) -> list[float]:
    """Elements of an operand that has to be known when the program is made."""
    if value is None or value.data is None:
        raise _Refusal(f"with {what} that is computed at run time")
    return [float(item) for item in value.data.ravel()]


def _integers(node: Node, name: str, operand: int) -> list[int] | None:
    """Integers of an attribute or a constant operand; None where there are none."""
    found = node.integers(name, operand)
    if found is None and node.optional(operand) is not None:
        raise _Refusal(f"with {name} that are computed at run time")
    return found


# Element by element.

_PLAIN = {
    "Neg": "negative",
    "Abs": "absolute",
    "Exp": "exponential",
    "Log": "logarithm",
    "Sqrt": "square_root",
    "Reciprocal": "reciprocal",
    "Erf": "error_function",
    "Tanh": "hyperbolic_tangent",
    "Sigmoid": "sigmoid",
    "HardSwish": "hard_swish",
    "Relu": "rectifier",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Sin": "sine",
    "Cos": "cosine",
    "Floor": "floor_of",
    "Ceil": "ceiling_of",
    "Sign": "sign_of",
    "Not": "not_of",
    "IsNaN": "is_nan",
    "Add": "add",
    "Sum": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Pow": "power",
    "Min": "minimum",
    "Max": "maximum",
    "Mean": "mean_of",
    "And": "and_of",
    "Or": "or_of",
    "Xor": "xor_of",
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_or_equal",
    "Greater": "greater",
    "Where": "where",
    "GreaterOrEqual": "greater_or_equal",
    "PRelu": "sloped_rectifier",
    "Identity": "identity",
    "Cast": "identity",
}


@_rule(*_PLAIN)
def _plain(node: Node, _: int) -> Kernel:
    return Kernel(_PLAIN[node.kind], _all(node))


@_rule("Expand", "CastLike", "Dropout")
def _first(node: Node, _: int) -> Kernel:
    """The first operand, repeated where the result is larger."""
    if node.kind == "Dropout" and node.optional(2) is not None:
        raise _Refusal("while it is training")
    return Kernel("identity", (Operand(0),))


_WITH_NUMBERS = {
    "LeakyRelu": ("leaky_rectifier", (("alpha", 0.01),)),
    "Elu": ("exponential_rectifier", (("alpha", 1.0),)),
    "HardSigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
}


@_rule(*_WITH_NUMBERS)
def _with_numbers(node: Node, _: int) -> Kernel:
    name, attributes = _WITH_NUMBERS[node.kind]
    return Kernel(
        name,
        (Operand(0),),
        reals=tuple(float(node.attrs.get(*attribute)) for attribute in attributes),
    )


@_rule("Clip")
def _clip(node: Node, _: int) -> Kernel:
    ends = []
    for index, (name, usual) in enumerate((("min", -math.inf), ("max", math.inf)), 1):
        value = node.optional(index)
        ends.append(
            float(node.attrs.get(name, usual))
            if value is None
            else _constant(value, f"a {name}")[0]
        )
    return Kernel("clip", (Operand(0),), reals=tuple(ends))


@_rule("Gelu")
@_rule("Gelu", domain="com.microsoft")
def _gelu(node: Node, _: int) -> Kernel:
    return Kernel(
        "gelu_by_tanh" if node.attrs.get("approximate") == "tanh" else "gelu", (Operand(0),)
    )


@_rule("BatchNormalization")
def _batch_normalization(node: Node, _: int) -> Kernel:
    if node.attrs.get("training_mode") or not node.attrs.get("spatial", 1):
        raise _Refusal("while it is training, or for every place by itself")
    shape = (node.shape(1)[0], *(1 for _ in node.shape(0)[2:]))
    return Kernel(
        "batch_normalization",
        (Operand(0), *(Operand(i, shape) for i in range(1, 5))),
        reals=(float(node.attrs.get("epsilon", 1e-5)),),
    )


# Products.


@dataclass(frozen=True)
class _Windows:
    """Windows of a convolution or a pool, one number for every dimension in space."""

    extents: Sequence[int]
    strides: Sequence[int]
    before: Sequence[int]
    behind: Sequence[int]
    dilations: Sequence[int]


def _windows(node: Node, extents: Sequence[int]) -> _Windows:
    rank = len(extents)
    strides, dilations = (
        list(node.attrs.get(name) or [1] * rank) for name in ("strides", "dilations")
    )
    pads = list(node.attrs.get("pads") or [0] * 2 * rank)
    auto = node.attrs.get("auto_pad") or "NOTSET"
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        sizes = zip(node.shape(0)[2:], extents, strides, dilations, strict=True)
        due = [
            max(0, (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size)
            for size, k, stride, dilation in sizes
        ]
        less, more = [size // 2 for size in due], [size - size // 2 for size in due]
        pads = less + more if auto == "SAME_UPPER" else more + less
    elif auto == "VALID":
        pads = [0] * 2 * rank
    return _Windows(extents, strides, pads[:rank], pads[rank:], dilations)


@_rule("Conv")
def _convolution(node: Node, _: int) -> Kernel:
    windows = _windows(node, node.shape(1)[2:])
    space = zip(windows.strides, windows.before, windows.dilations, strict=True)
    return Kernel(
        "convolution", _all(node), (int(node.attrs.get("group", 1)), *itertools.chain(*space))
    )


@_rule("MatMul", "Gemm")
def _matrix_product(node: Node, _: int) -> Kernel:
    if min(len(node.shape(0)), len(node.shape(1))) < 2:
        raise _Refusal("with a vector: give it a dimension of one")
    attributes = node.attrs if node.kind == "Gemm" else {}
    turned = tuple(int(attributes.get(name, 0)) for name in ("transA", "transB"))
    return Kernel(
        "matrix_product",
        _all(node),
        turned,
        tuple(float(attributes.get(name, 1)) for name in ("alpha", "beta")),
    )


# Several elements into one.


@_rule("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
def _pool(node: Node, _: int) -> Kernel:
    everywhere = node.kind.startswith("Global")
    windows = _windows(node, node.shape(0)[2:] if everywhere else node.attrs["kernel_shape"])
    space = zip(
        windows.extents,
        windows.strides,
        windows.before,
        windows.behind,
        windows.dilations,
        strict=True,
    )
    integers = tuple(int(number) for number in itertools.chain(*space))
    if node.kind.endswith("MaxPool"):
        return Kernel("maximum_pool", (Operand(0),), integers)
    return Kernel(
        "average_pool", (Operand(0),), (*integers, int(node.attrs.get("count_include_pad", 0)))
    )


@_rule("Softmax", "LogSoftmax")
def _softmax(node: Node, _: int) -> Kernel:
    rank, together = len(node.shape(0)), node.opset < 13
    axis = int(node.attrs.get("axis", 1 if together else -1)) % rank
    return Kernel(
        "softmax" if node.kind == "Softmax" else "log_softmax",
        (Operand(0),),
        (axis, rank if together else axis + 1),
    )


@_rule("LayerNormalization")
def _layer_normalization(node: Node, _: int) -> Kernel:
    axis = int(node.attrs.get("axis", -1)) % len(node.shape(0))
    return Kernel(
        "layer_normalization", _all(node), (axis,), (float(node.attrs.get("epsilon", 1e-5)),)
    )


_REDUCTIONS = {
    "ReduceMean": "reduce_mean",
    "ReduceSum": "reduce_sum",
    "ReduceMax": "reduce_maximum",
    "ReduceMin": "reduce_minimum",
}


@_rule(*_REDUCTIONS)
def _reduction(node: Node, _: int) -> Kernel:
    rank = len(node.shape(0))
    axes = _integers(node, "axes", 1)
    if not axes:
        axes = [] if node.attrs.get("noop_with_empty_axes") else list(range(rank))
    reduced, kept = {axis % rank for axis in axes}, bool(node.attrs.get("keepdims", 1))
    places = itertools.count()
    integers = []
    for axis in range(rank):
        place = next(places) if kept or axis not in reduced else -1
        integers.append(-1 if axis in reduced else place)
    return Kernel(_REDUCTIONS[node.kind], (Operand(0),), tuple(integers))


# Elements to other places.


@_rule("Transpose")
def _transpose(node: Node, _: int) -> Kernel:
    return Kernel(
        "transpose", (Operand(0),), tuple(node.integers("perm") or range(len(node.shape(0)))[::-1])
    )


@_rule("Concat")
def _concatenate(node: Node, _: int) -> Kernel:
    filled = tuple(
        Operand(index)
        for index, value in enumerate(node.inputs)
        if value is not None and value.count
    )
    return Kernel("concatenate", filled, (int(node.attrs["axis"]) % len(node.result.shape),))


@_rule("Slice")
def _slice(node: Node, _: int) -> Kernel:
    shape = node.shape(0)
    starts = _integers(node, "starts", 1) or []
    axes = _integers(node, "axes", 3) or list(range(len(starts)))
    steps = _integers(node, "steps", 4) or [1] * len(starts)
    places = dict.fromkeys(range(len(shape)), (0, 1))
    for start, axis, step in zip(starts, axes, steps, strict=True):
        extent = shape[axis % len(shape)]
        start += extent if start < 0 else 0
        places[axis % len(shape)] = (min(max(start, 0), extent if step > 0 else extent - 1), step)
    return Kernel("slice", (Operand(0),), tuple(itertools.chain(*places.values())))


@_rule("Split")
def _split(node: Node, result: int) -> Kernel:
    shape, count = node.shape(0), len(node.outputs)
    axis = int(node.attrs.get("axis", 0)) % len(shape)
    sizes = _integers(node, "split", 1) or [-(-shape[axis] // count)] * count
    places = ((sum(sizes[:result]) if d == axis else 0, 1) for d in range(len(shape)))
    return Kernel("slice", (Operand(0),), tuple(itertools.chain(*places)))


@_rule("Tile")
def _tile(node: Node, _: int) -> Kernel:
    return Kernel("tile", (Operand(0),))


@_rule("Pad")
def _pad(node: Node, _: int) -> Kernel:
    if node.attrs.get("mode", "constant") != "constant":
        raise _Refusal(f"in mode {node.attrs['mode']}")
    rank = len(node.shape(0))
    pads = _integers(node, "pads", 1) or []
    axes = _integers(node, "axes", 3) or list(range(rank))
    before = [0] * rank
    for axis, size in zip(axes, pads[: len(axes)], strict=True):
        before[axis % rank] = size
    value = node.optional(2)
    filling = float(node.attrs.get("value", 0)) if value is None else _constant(value, "a value")[0]
    return Kernel("pad", (Operand(0),), tuple(before), (filling,))


@_rule("Gather", "GatherElements")
def _gather(node: Node, _: int) -> Kernel:
    name = "gather" if node.kind == "Gather" else "gather_elements"
    return Kernel(name, _all(node), (int(node.attrs.get("axis", 0)) % len(node.shape(0)),))


@_rule("GatherND")
def _gather_nd(node: Node, _: int) -> Kernel:
    return Kernel("gather_nd", _all(node), (int(node.attrs.get("batch_dims", 0)),))
