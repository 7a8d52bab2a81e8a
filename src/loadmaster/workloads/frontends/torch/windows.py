"""Which part of each operand of a torch operator a part of its first result needs, in dimensions of
the storage that the operand lies in.

What is not listed here is not cut: it stays a job of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loadmaster.workloads.frontends.torch.calls import Call, Value, Work
from loadmaster.workloads.graph import OpClass
from loadmaster.workloads.window import ALL, Window, identity

Windows = tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How a call divides: ``axes`` of its first result, windows of ``operands`` by argument, and
    the loop that each dimension is."""

    axes: tuple[int, ...] = ()
    operands: Mapping[str, Sequence[Windows]] = field(default_factory=dict)
    loops: tuple[str, ...] = ()


WHOLE = Division()
_Rule = Callable[[Call], Division]
_RULES: dict[str, _Rule] = {}
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


def _rule(*names: str) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def division(call: Call, work: Work) -> Division:
    """How a call divides; :data:`WHOLE` if that is not known."""
    if not call.results or not call.results[0].shape or work.touched:
        return WHOLE
    pointwise = work.op_class is OpClass.ELEMENTWISE and not call.name.startswith(_NOT_BY_POSITION)
    rule = _RULES.get(call.name, _elementwise if pointwise else None)
    return rule(call) if rule else WHOLE


def in_storage(windows: Sequence[Window], view: Value, owner: Value) -> Windows:
    """Windows of a view as windows of the tensor that owns its storage; empty where strides do not
    tell.

    Along a dimension of the owner that several dimensions of the view lie in, the outermost
    decides.
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
            _placed(
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


def _parts(view: Value, owner: Value) -> dict[int, list[tuple[int, int, int]]] | None:
    """For dimensions of the owner the view's that lie in them: which, how many elements a step
    takes, how many steps an element takes."""
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
            divisor, left, inner, axis = (
                divisor * owner.shape[axis],
                left // owner.shape[axis],
                inner - 1,
                outer,
            )
        parts.setdefault(axis, []).append((dimension, step, divisor))
    return parts


def _placed(
    window: Window, length: int, step: int, divisor: int, first: int, extent: int, inside: int
) -> Window:
    """A view's window along a dimension of the owner: the view begins at ``first``, and of every
    ``step`` an element reaches ``inside``."""
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
        low, high = window.low * step + first, window.high * step + first + inside
        return Window(window.axis, window.numerator * step, 1, low, high) if exact else ALL
    shift = first // unit * window.denominator
    return replace(window, unit=unit, low=window.low + shift, high=window.high + shift)


def _aligned(operand: Sequence[int], result: Sequence[int]) -> Windows | None:
    """Windows of an operand that is broadcast to the result; None if it is not."""
    shift = len(result) - len(operand)
    if shift < 0 or any(
        extent not in (1, result[axis + shift]) for axis, extent in enumerate(operand)
    ):
        return None
    return tuple(
        Window(axis + shift) if extent == result[axis + shift] else ALL
        for axis, extent in enumerate(operand)
    )


def _elementwise(call: Call) -> Division:
    shape = call.results[0].shape
    operands: dict[str, Sequence[Windows]] = {}
    for name, argument in call.arguments.items():
        if isinstance(argument, Value) and (windows := _aligned(argument.shape, shape)) is not None:
            operands[name] = [windows]
    return Division(tuple(range(len(shape))), operands)


@_rule("clone", "_to_copy")
def _copy(call: Call) -> Division:
    rank = len(call.results[0].shape)
    return Division(tuple(range(rank)), {"self": [identity(rank)]})


def _listed(values: Sequence[int] | int | None, rank: int, default: Sequence[int]) -> list[int]:
    """One number for each spatial dimension."""
    given = (
        list(default)
        if values is None or values == []
        else [values]
        if isinstance(values, int)
        else list(values)
    )
    return given * rank if len(given) == 1 else given


@_rule("convolution")
def _convolution(call: Call) -> Division:
    result, weight = call.results[0].shape, call.tensor("weight").shape
    rank, groups = len(result) - 2, call.arguments["groups"]
    numbers = [
        _listed(call.arguments[name], rank, [0]) for name in ("stride", "dilation", "padding")
    ]
    if call.arguments["transposed"] or any(len(own) != rank for own in numbers):
        return WHOLE
    spatial = [
        _taps(2 + axis, weight[2 + axis], *(own[axis] for own in numbers)) for axis in range(rank)
    ]
    channels = Window(1, 1, weight[0] // groups, unit=weight[1]) if groups > 1 else ALL
    operands: dict[str, Sequence[Windows]] = {
        "input": [(Window(0), channels, *spatial)],
        "weight": [(Window(1), *(ALL for _ in weight[1:]))],
        "bias": [(Window(1),)],
    }
    return Division(
        tuple(range(len(result))), operands, ("batch", "channels", *("y" for _ in result[3:]), "x")
    )


def _taps(axis: int, taps: int, stride: int, dilation: int, pad: int) -> Window:
    return Window(axis, stride, 1, -pad, (taps - 1) * dilation - pad)


@_rule("max_pool2d_with_indices", "avg_pool2d")
def _pooling(call: Call) -> Division:
    kernel = _listed(call.arguments["kernel_size"], 2, [1])
    strides = _listed(call.arguments.get("stride"), 2, kernel)
    pads, dilations = (
        _listed(call.arguments.get(name), 2, [default])
        for name, default in (("padding", 0), ("dilation", 1))
    )
    rank = len(call.results[0].shape)
    spatial = [_taps(rank - 2 + i, kernel[i], strides[i], dilations[i], pads[i]) for i in range(2)]
    return Division(tuple(range(rank)), {"self": [(*identity(rank - 2), *spatial)]})


@_rule("_adaptive_avg_pool2d")
def _whole_pooling(call: Call) -> Division:
    rank = len(call.results[0].shape)
    return Division(tuple(range(rank - 2)), {"self": [(*identity(rank - 2), ALL, ALL)]})


@_rule("_softmax", "_log_softmax", "_safe_softmax")
def _softmax(call: Call) -> Division:
    rank = len(call.results[0].shape)
    along = call.arguments["dim"] % rank
    windows = tuple(ALL if axis == along else Window(axis) for axis in range(rank))
    return Division(tuple(axis for axis in range(rank) if axis != along), {"self": [windows]})


@_rule("native_layer_norm")
def _layer_normalisation(call: Call) -> Division:
    rank = len(call.results[0].shape)
    kept = rank - len(call.arguments["normalized_shape"])
    return Division(
        tuple(range(kept)), {"input": [(*identity(kept), *(ALL for _ in range(rank - kept)))]}
    )


@_rule(
    "_native_batch_norm_legit_no_training",
    "_batch_norm_no_update",
    "native_batch_norm",
    "cudnn_batch_norm",
)
def _batch_normalisation(call: Call) -> Division:
    """Element by element, unless it takes mean and variance of what it reads."""
    if call.arguments.get("training"):
        return WHOLE
    rank = len(call.results[0].shape)
    channels = {name: [(Window(1),)] for name in ("weight", "bias", "running_mean", "running_var")}
    return Division(tuple(range(rank)), {"input": [identity(rank)], **channels})


@_rule("mean", "sum", "amax", "amin")
def _reduction(call: Call) -> Division:
    shape = call.first.shape
    given = call.arguments.get("dim")
    axes = (
        {axis % len(shape) for axis in (given if isinstance(given, list) else [given])}
        if given not in (None, [])
        else set()
    )
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    keeps = bool(call.arguments.get("keepdim"))
    place = {axis: axis if keeps else number for number, axis in enumerate(kept)}
    windows = tuple(ALL if axis in axes else Window(place[axis]) for axis in range(len(shape)))
    return Division(tuple(place.values()), {"self": [windows]}) if axes else WHOLE


@_rule("cat")
def _concatenation(call: Call) -> Division:
    rank, tensors = len(call.results[0].shape), call.arguments["tensors"]
    axis, start = call.arguments.get("dim", 0) % rank, 0
    operands: list[Windows] = []
    for value in tensors:
        if len(value.shape) != rank:
            return WHOLE
        operands.append(
            tuple(
                Window(a, low=-start, high=-start) if a == axis else Window(a) for a in range(rank)
            )
        )
        start += value.shape[axis]
    return Division(tuple(range(rank)), {"tensors": operands})


@_rule("constant_pad_nd")
def _padding(call: Call) -> Division:
    rank, pads = len(call.results[0].shape), list(call.arguments["pad"])
    before = dict(enumerate(reversed([0] * (rank - len(pads) // 2) + pads[::2][::-1])))
    windows = tuple(
        Window(a, low=-before[rank - 1 - a], high=-before[rank - 1 - a]) for a in range(rank)
    )
    return Division(tuple(range(rank)), {"self": [windows]})


@_rule("upsample_nearest2d")
def _enlarging(call: Call) -> Division:
    """By whole factors: by others implementations round in their own ways."""
    data, result = call.tensor("self").shape, call.results[0].shape
    if any(after % before for before, after in zip(data, result, strict=True)):
        return WHOLE
    windows = tuple(
        Window(axis, 1, after // before)
        for axis, (before, after) in enumerate(zip(data, result, strict=True))
    )
    return Division(tuple(range(len(result))), {"self": [windows]})


def _product(call: Call, left: str, right: str, bias: str = "") -> Division:
    rank = len(call.results[0].shape)
    lead = identity(rank - 2)
    operands: dict[str, Sequence[Windows]] = {
        left: [(*lead, Window(rank - 2), ALL)],
        right: [(*lead, ALL, Window(rank - 1))],
    }
    if bias and (windows := _aligned(call.tensor(bias).shape, call.results[0].shape)) is not None:
        operands[bias] = [windows]
    return Division(tuple(range(rank)), operands, (*("groups" for _ in lead), "y", "channels"))


_rule("mm", "bmm")(lambda call: _product(call, "self", "mat2"))
_rule("addmm")(lambda call: _product(call, "mat1", "mat2", "self"))
_rule("baddbmm")(lambda call: _product(call, "batch1", "batch2", "self"))


@_rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
)
def _attention(call: Call) -> Division:
    """Heads and queries: a band of queries passes through scores, softmax and the weighted sum."""
    if len({call.tensor(name).shape[1] for name in ("query", "key", "value")}) > 1:
        return WHOLE
    every = [(Window(0), Window(1), ALL, ALL)]
    query: list[Windows] = [(Window(0), Window(1), Window(2), ALL)]
    return Division(
        (0, 1, 2), {"query": query, "key": every, "value": every}, ("groups", "groups", "y", "")
    )
