"""Values and calls of a torch trace, and which part of each operand of an operator a part of its
first result needs, in dimensions of the storage that the operand lies in.

An operator divides as the one of ONNX that is like it. What is like none is not cut: it stays a job
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.workloads.frontends.onnx import rules
from loadmaster.workloads.frontends.onnx.operators import division_of
from loadmaster.workloads.frontends.onnx.rules import WHOLE, Division, Windows, Work
from loadmaster.workloads.graph import LoopNest, OpClass, TensorKind
from loadmaster.workloads.window import ALL, Window


@dataclass(frozen=True, slots=True)
class OpValue:
    """One tensor of a trace: ``bytes`` are those that using it touches (an expanded dimension
    repeats the same ones).

    ``offset`` counts elements of the storage before the first.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    bytes: int
    itemsize: int
    floating: bool
    offset: int = 0

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of the operator ``name`` (no namespace, no overload, no trailing underscore):
    arguments by name, and resulting tensors."""

    name: str
    arguments: Mapping[str, Any]
    results: tuple[OpValue, ...]

    def tensor(self, argument: str) -> OpValue:
        """Return a tensor argument; raises if it is none."""
        value = self.arguments[argument]
        assert isinstance(value, OpValue)
        return value

    @property
    def first(self) -> OpValue:
        """The first tensor among the arguments, or the first result without tensor arguments."""
        return next(
            (value for value in self.arguments.values() if isinstance(value, OpValue)),
            self.results[0],
        )

    @property
    def largest(self) -> int:
        """Number of elements of the largest argument or result."""
        values = [value for value in self.arguments.values() if isinstance(value, OpValue)]
        return max((value.count for value in (*values, *self.results)), default=0)


def product(*nests: LoopNest, elements: int = 0) -> Work:
    """Make the work of multiply-accumulate loops, without empty ones."""
    real = tuple(nest for nest in nests if nest.macs > 0)
    return Work(OpClass.PRODUCT, real, elements)


_NOT_BY_POSITION = (
    "glu",
    "masked_scatter",
    "fused_dropout",
    "fake_quantize_per_channel",
    "addr",
    "_foreach_",
)
"""Beginnings of the names of operators that take no element from the same position of each operand,
or make several results."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """An operator of ONNX: its kind, attributes, and the arguments that are its operands."""

    kind: str
    arguments: Sequence[str]
    attributes: dict[str, Any] = field(default_factory=dict)

    def node(self, call: OpCall, result: OpValue | None = None) -> rules.Node:
        """Return the ONNX node of a call, with its first result or another one."""
        operands = [
            value for name in self.arguments for value in _as_list(call.arguments.get(name))
        ]
        inputs = tuple(map(_onnx_value, operands))
        made = _onnx_value(result or call.results[0])
        return rules.Node(call.name, self.kind, "", self.attributes, inputs, (made,))


def _onnx_value(value: OpValue | None) -> rules.Value | None:
    """Return a value as the ONNX rules take it; None for None."""
    if value is None:
        return None
    return rules.Value(value.name, value.shape, value.dtype, value.dtype, TensorKind.ACTIVATION)


def _as_list(value: Any) -> Sequence[Any]:
    """Return a value as a list."""
    return value if isinstance(value, list) else [value]


def node_of(call: OpCall) -> rules.Node:
    """Return the ONNX node of a call whose operator always has the same ONNX operator."""
    meaning = _RULES[call.name](call)
    assert meaning is not None
    return meaning.node(call)


def division(call: OpCall, work: rules.Work) -> tuple[Division, dict[str, Sequence[Windows]]]:
    """Return how a call divides, :data:`WHOLE` if unknown, and the windows of its arguments."""
    rule = _RULES.get(call.name)
    if not call.results or not call.results[0].shape or work.touched:
        return WHOLE, {}
    if rule:
        meaning = rule(call)
    elif work.op_class is OpClass.ELEMENTWISE and not call.name.startswith(_NOT_BY_POSITION):
        tensors = [name for name, value in call.arguments.items() if isinstance(value, OpValue)]
        meaning = Meaning("Sum", tensors)
    else:
        meaning = None
    if meaning is None:
        return WHOLE, {}
    found = division_of(meaning.node(call), work.op_class)
    windows: dict[str, Sequence[Windows]] = {}
    index = 0
    for name in meaning.arguments:
        count = len(_as_list(call.arguments.get(name)))
        windows[name] = [found.operands.get(index + more, ()) for more in range(count)]
        index += count
    return found, windows


_Rule = Callable[[OpCall], Meaning | None]
_RULES: dict[str, _Rule] = {}


def _rule(names: str, rule: _Rule) -> None:
    """Register a rule for names of operators."""
    _RULES.update(dict.fromkeys(names.split(), rule))


def _like(kind: str, arguments: str, **attributes: Any) -> _Rule:
    """Return a rule for an operator that always has the same ONNX operator."""
    meaning = Meaning(kind, arguments.split(), attributes)
    return lambda _: meaning


def _numbers(call: OpCall, name: str, rank: int, default: Sequence[int]) -> list[int]:
    """Return an argument with one number for each spatial dimension."""
    given = call.arguments.get(name)
    numbers = list(default) if given in (None, []) else list(_as_list(given))
    return numbers * rank if len(numbers) == 1 else numbers


def convolution(call: OpCall) -> Meaning:
    """Return the ONNX operator of a convolution, transposed or not."""
    rank = len(call.tensor("weight").shape) - 2
    return Meaning(
        "ConvTranspose" if call.arguments["transposed"] else "Conv",
        ("input", "weight", "bias"),
        {
            "group": call.arguments["groups"],
            "strides": _numbers(call, "stride", rank, [1]),
            "dilations": _numbers(call, "dilation", rank, [1]),
            "pads": 2 * _numbers(call, "padding", rank, [0]),
        },
    )


def _pooling(call: OpCall) -> Meaning:
    """Return the ONNX operator, MaxPool, whose windows a pooling call has."""
    kernel = _numbers(call, "kernel_size", 2, [1])
    attributes = {
        "kernel_shape": kernel,
        "strides": _numbers(call, "stride", 2, kernel),
        "pads": 2 * _numbers(call, "padding", 2, [0]),
        "dilations": _numbers(call, "dilation", 2, [1]),
    }
    return Meaning("MaxPool", ["self"], attributes)


def _batch_normalisation(call: OpCall) -> Meaning | None:
    """Return the ONNX operator of a batch normalisation; None if it computes mean and variance
    itself."""
    names = ("input", "weight", "bias", "running_mean", "running_var")
    return None if call.arguments.get("training") else Meaning("BatchNormalization", names)


def _reduction(call: OpCall) -> Meaning | None:
    """Return the ONNX operator, ReduceMean; None for a reduction over all dimensions."""
    axes = call.arguments.get("dim")
    attributes = {"axes": axes, "keepdims": bool(call.arguments.get("keepdim"))}
    return None if axes in (None, []) else Meaning("ReduceMean", ["self"], attributes)


def _concatenation(call: OpCall) -> Meaning | None:
    """Return the ONNX operator, Concat; None for operands of other ranks."""
    ranks = {len(value.shape) for value in (*call.arguments["tensors"], call.results[0])}
    attributes = {"axis": call.arguments.get("dim", 0)}
    return Meaning("Concat", ["tensors"], attributes) if len(ranks) == 1 else None


def _padding(call: OpCall) -> Meaning:
    """Return Pad; the argument has pairs of elements before and after, the last dimension first."""
    pads = list(call.arguments["pad"])
    others = [0] * (len(call.results[0].shape) - len(pads) // 2)
    both = [number for side in (0, 1) for number in (*others, *pads[side::2][::-1])]
    return Meaning("Pad", ["self"], {"pads": both})


def _upsampling(call: OpCall) -> Meaning | None:
    """Return Resize for an enlargement by whole factors; None for others, which implementations
    round differently."""
    sizes = zip(call.tensor("self").shape, call.results[0].shape, strict=True)
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    whole = not any(after % before for before, after in sizes)
    return Meaning("Resize", ["self"], attributes) if whole else None


_rule("clone _to_copy", _like("Identity", "self"))
_rule("convolution", convolution)
_rule("max_pool2d_with_indices avg_pool2d", _pooling)
_rule("_adaptive_avg_pool2d", _like("ReduceMean", "self", axes=[-2, -1]))
_rule(
    "_softmax _log_softmax _safe_softmax",
    lambda call: Meaning("Softmax", ["self"], {"axis": call.arguments["dim"]}),
)
_rule(
    "native_layer_norm",
    lambda call: Meaning(
        "LayerNormalization", ["input"], {"axis": -len(call.arguments["normalized_shape"])}
    ),
)
_rule(
    """
    _native_batch_norm_legit_no_training _batch_norm_no_update native_batch_norm cudnn_batch_norm
    """,
    _batch_normalisation,
)
_rule("mean sum amax amin", _reduction)
_rule("cat", _concatenation)
_rule("constant_pad_nd", _padding)
_rule("upsample_nearest2d", _upsampling)
_rule("mm bmm", _like("MatMul", "self mat2"))
_rule("mv", _like("MatMul", "self vec"))
_rule("dot", _like("MatMul", "self tensor"))
_rule("vdot", _like("MatMul", "self other"))
_rule("addmm", _like("Gemm", "mat1 mat2 self"))
_rule("addmv", _like("Gemm", "mat vec self"))
_rule("baddbmm", _like("Gemm", "batch1 batch2 self"))
_rule(
    """
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    """,
    _like("Attention", "query key value"),
)


def in_storage(windows: Sequence[Window], view: OpValue, owner: OpValue) -> Windows:
    """Return windows of a view as windows of the tensor that owns its storage; empty if strides do
    not determine them.

    If several dimensions of the view lie in one dimension of the owner, the outermost decides.
    """
    offset, found = view.offset - owner.offset, []
    parts = _parts(view, owner)
    if offset < 0 or parts is None:
        return ()
    strides = dict(zip(range(len(owner.shape)), owner.strides, strict=True))
    first: dict[int, int] = {}
    for axis in sorted(strides, key=lambda axis: -strides[axis]):
        extent, stride = owner.shape[axis], strides[axis]
        first[axis], offset = divmod(offset, stride) if extent > 1 and stride else (0, offset)
    for axis, extent in enumerate(owner.shape):
        own = parts.get(axis, [])
        if not own:
            # The view holds one element of this dimension, or all there is.
            found.append(ALL if extent == 1 else Window(0, 0, 1, first[axis], first[axis]))
            continue
        dimension, step, divisor = max(own, key=lambda part: part[1])
        inside = sum((view.shape[other] - 1) * size for other, size, _ in own if size < step)
        found.append(
            _owner_window(
                windows[dimension],
                view.shape[dimension],
                step,
                divisor,
                first[axis],
                extent,
                inside,
            )
        )
    return tuple(found)


def _parts(view: OpValue, owner: OpValue) -> dict[int, list[tuple[int, int, int]]] | None:
    """Return, by dimension of the owner, the view's dimensions in it: which, elements per step,
    steps per element. None if strides do not determine them."""
    order = sorted(
        (axis for axis, extent in enumerate(owner.shape) if extent > 1),
        key=lambda axis: -owner.strides[axis],
    )
    parts: dict[int, list[tuple[int, int, int]]] = {}
    for dimension, (extent, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        if extent == 1 or stride == 0:
            continue
        inner = next(
            (place for place, axis in enumerate(order) if owner.strides[axis] <= stride), None
        )
        if (
            inner is None
            or owner.strides[order[inner]] == 0
            or stride % owner.strides[order[inner]]
        ):
            return None
        axis, divisor, left = order[inner], 1, extent
        step = stride // owner.strides[axis]
        while left * step > owner.shape[axis]:
            # The dimension goes on in the next one outwards, if it fills this one.
            outer = order[inner - 1] if inner else -1
            if (
                step != 1
                or left % owner.shape[axis]
                or outer < 0
                or owner.strides[outer] != owner.strides[axis] * owner.shape[axis]
            ):
                return None
            parts.setdefault(axis, []).append((dimension, 1, 0))
            divisor *= owner.shape[axis]
            left //= owner.shape[axis]
            inner -= 1
            axis = outer
        parts.setdefault(axis, []).append((dimension, step, divisor))
    return parts


def _owner_window(
    window: Window, length: int, step: int, divisor: int, first: int, extent: int, inside: int
) -> Window:
    """Return a view's window along a dimension of the owner: the view begins at ``first``, and an
    element reaches ``inside`` of every ``step``."""
    if divisor == 0:
        return ALL
    if window.axis < 0:
        covered = step * length if divisor == 1 else extent
        return (
            ALL
            if first == 0 and covered >= extent
            else Window(0, 0, 1, first, min(extent, first + step * length) - 1)
        )
    if divisor > 1:
        plain = window.unit == 1 and step == 1 and first == 0
        return replace(window, denominator=window.denominator * divisor) if plain else ALL
    unit = window.unit * step
    if first % unit:
        exact = window.denominator == 1 and window.unit == 1
        low = window.low * step + first
        high = window.high * step + first + inside
        return Window(window.axis, window.numerator * step, 1, low, high) if exact else ALL
    shift = first // unit * window.denominator
    return replace(window, unit=unit, low=window.low + shift, high=window.high + shift)
