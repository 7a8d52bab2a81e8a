"""Values and calls of a torch trace, and which part of each operand of an operator a part of its
first result needs, in dimensions of the storage that the operand lies in.

An operator divides as the one of ONNX that is like it. What is like none is not cut: it stays a job
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadmaster.workloads.frontends.onnx.operators import division_of
from loadmaster.workloads.frontends.onnx.rules import WHOLE, Division, Node, Value, Work
from loadmaster.workloads.graph import LoopNest, OpClass
from loadmaster.workloads.window import ALL, Window, Windows, through_reshape


@dataclass(frozen=True, slots=True, kw_only=True)
class OpValue(Value):
    """One tensor of a trace: ``touched`` are the bytes that using it touches (an expanded dimension
    repeats the same ones).

    ``offset`` counts elements of the storage before the first.
    """

    strides: tuple[int, ...]
    touched: int
    itemsize: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class OpCall(Node):
    """One call of the operator ``kind`` (no namespace, no overload, no trailing underscore):
    ``attrs`` are its arguments by name, ``inputs`` the tensors among them, and ``outputs`` the
    resulting tensors."""

    inputs: tuple[OpValue, ...]
    outputs: tuple[OpValue, ...]

    def tensor(self, argument: str) -> OpValue:
        """Return a tensor argument; raises if it is none."""
        value = self.attrs[argument]
        assert isinstance(value, OpValue)
        return value

    @property
    def largest(self) -> int:
        """Number of elements of the largest argument or result."""
        return max(value.count for value in (*self.inputs, *self.outputs))


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


def node_of(call: OpCall) -> OpCall:
    """Return the ONNX node of a call whose operator always has the same ONNX operator."""
    node = _RULES[call.kind](call)
    assert node is not None
    return node


def division(call: OpCall, work: Work) -> tuple[Division, dict[int, Windows]]:
    """Return how a call divides, :data:`WHOLE` if unknown, and the windows of its arguments by
    their identity."""
    node = None
    if not call.outputs or not call.result.shape or work.touched:
        return WHOLE, {}
    if rule := _RULES.get(call.kind):
        node = rule(call)
    elif work.op_class is OpClass.ELEMENTWISE and not call.kind.startswith(_NOT_BY_POSITION):
        node = call.like("Sum", (each for each in call.attrs.values() if isinstance(each, OpValue)))
    if node is None:
        return WHOLE, {}
    found = division_of(replace(node, outputs=node.outputs[:1]), work.op_class)
    windows = {}
    for index, value in enumerate(node.inputs):
        own = found.operands.get(index, ())
        if value is not None and len(own) == len(value.shape):
            windows[id(value)] = own
    return found, windows


_Rule = Callable[[OpCall], OpCall | None]
_RULES: dict[str, _Rule] = {}


def _rule(names: str, rule: _Rule) -> None:
    """Register a rule for names of operators."""
    _RULES.update(dict.fromkeys(names.split(), rule))


def _like(kind: str, arguments: str, **attributes: Any) -> _Rule:
    """Return a rule for an operator that always has the same ONNX operator; commas separate the
    names of its arguments."""
    names = arguments.split(",")
    return lambda call: call.like(kind, map(call.attrs.get, names), **attributes)


def convolution(call: OpCall) -> OpCall:
    """Return the ONNX operator of a convolution, transposed or not."""
    return call.like(
        "ConvTranspose" if call.attrs["transposed"] else "Conv",
        map(call.attrs.get, ("input", "weight", "bias")),
        group=call.attrs["groups"],
        strides=call.attrs["stride"],
        dilations=call.attrs["dilation"],
        pads=2 * call.attrs["padding"],
    )


def _pooling(call: OpCall) -> OpCall:
    """Return the ONNX operator, MaxPool, whose windows a pooling call has."""
    kernel = (2 * call.attrs["kernel_size"])[:2]
    return call.like(
        "MaxPool",
        [call.tensor("self")],
        kernel_shape=kernel,
        strides=call.attrs.get("stride") or kernel,
        pads=2 * call.attrs.get("padding", [0]),
        dilations=call.attrs.get("dilation", [1]),
    )


def _batch_normalisation(call: OpCall) -> OpCall | None:
    """Return the ONNX operator of a batch normalisation; None if it computes mean and variance
    itself."""
    if call.attrs.get("training"):
        return None
    return _like("BatchNormalization", "input,weight,bias,running_mean,running_var")(call)


def _reduction(call: OpCall) -> OpCall | None:
    """Return the ONNX operator, ReduceMean; None for a reduction over all dimensions."""
    axes, keeps = call.attrs.get("dim"), bool(call.attrs.get("keepdim"))
    if axes in (None, []):
        return None
    return call.like("ReduceMean", [call.tensor("self")], axes=axes, keepdims=keeps)


def _concatenation(call: OpCall) -> OpCall | None:
    """Return the ONNX operator, Concat; None for operands of other ranks."""
    if len({len(value.shape) for value in (*call.inputs, call.result)}) > 1:
        return None
    return call.like("Concat", call.inputs, axis=call.attrs.get("dim", 0))


def _padding(call: OpCall) -> OpCall:
    """Return Pad; the argument has pairs of elements before and after, the last dimension first."""
    pads = list(call.attrs["pad"])
    others = [0] * (call.rank - len(pads) // 2)
    both = [number for side in (0, 1) for number in (*others, *pads[side::2][::-1])]
    return call.like("Pad", [call.tensor("self")], pads=both)


def _upsampling(call: OpCall) -> OpCall | None:
    """Return Resize for an enlargement by whole factors; None for others, which implementations
    round differently."""
    sizes = list(zip(call.tensor("self").shape, call.result.shape, strict=True))
    told = [call.attrs.get(name) for name in ("scales_h", "scales_w")]
    scales = [1, 1, *(call.attrs.get("scale_factors") or told)]
    if any(
        after % before or (scale is not None and scale * before != after)
        for (before, after), scale in zip(sizes, scales, strict=True)
    ):
        return None
    return call.like(
        "Resize",
        [call.tensor("self")],
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


_rule("convolution", convolution)
_rule("max_pool2d_with_indices avg_pool2d", _pooling)
_rule("_adaptive_avg_pool2d", _like("ReduceMean", "self", axes=[-2, -1]))
_rule(
    "_softmax _log_softmax _safe_softmax",
    lambda call: call.like("Softmax", [call.tensor("self")], axis=call.attrs["dim"]),
)
_rule(
    "native_layer_norm",
    lambda call: call.like(
        "LayerNormalization", [call.tensor("input")], axis=-len(call.attrs["normalized_shape"])
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
_ALIKE = """
    Identity self clone _to_copy
    MatMul self,mat2 mm bmm
    MatMul self,vec mv
    MatMul self,tensor dot
    MatMul self,other vdot
    Gemm mat1,mat2,self addmm
    Gemm mat,vec,self addmv
    Gemm batch1,batch2,self baddbmm
    Attention query,key,value _scaled_dot_product_flash_attention_for_cpu
    Attention query,key,value _scaled_dot_product_flash_attention
    Attention query,key,value _scaled_dot_product_efficient_attention
    Attention query,key,value _scaled_dot_product_cudnn_attention
"""
for _kind, _arguments, *_names in map(str.split, _ALIKE.strip().splitlines()):
    _rule(" ".join(_names), _like(_kind, _arguments))


def in_storage(windows: Sequence[Window], view: OpValue, owner: OpValue) -> Windows:
    """Return windows of a view as windows of the tensor that owns its storage; empty if strides do
    not determine them.

    If several dimensions of the view lie in one dimension of the owner, the outermost decides. The
    view must end within each dimension of the owner, and its elements must not overlap.
    """
    offset, found = view.offset - owner.offset, []
    axes = sorted(range(len(owner.shape)), key=lambda axis: -owner.strides[axis])
    runs = _runs(view, owner, [axis for axis in axes if owner.shape[axis] > 1])
    if offset < 0 or not view.count or runs is None:
        return ()
    first: dict[int, int] = {}
    for axis in axes:
        extent, stride = owner.shape[axis], owner.strides[axis]
        first[axis], offset = divmod(offset, stride) if extent > 1 and stride else (0, offset)
    windows = through_reshape(windows, view.shape, [length for length, *_ in runs])
    for axis, extent in enumerate(owner.shape):
        own = [
            (step, length, window)
            for window, (length, at, step) in zip(windows, runs, strict=True)
            if at == axis
        ]
        begin, reach = first[axis], sum((length - 1) * step for step, length, _ in own)
        if begin + reach >= extent:
            return ()
        if not own:
            # The view holds one element of this dimension, or all there is.
            found.append(ALL if extent == 1 else Window(0, 0, 1, begin, begin))
            continue
        step, length, window = max(own, key=lambda run: run[0])
        inside = reach - (length - 1) * step
        if inside >= step:
            return ()
        if window.axis >= 0:
            found.append(_owner_window(window, step, begin, inside))
        elif begin == 0 and step * length >= extent:
            found.append(ALL)
        else:
            found.append(Window(0, 0, 1, begin, min(extent, begin + step * length) - 1))
    return tuple(found)


Run = tuple[int, int, int]
"""Elements of a dimension of a view that lie along one dimension of the owner, that dimension (-1
for none), and elements of it per step."""


def _runs(view: OpValue, owner: OpValue, axes: Sequence[int]) -> list[Run] | None:
    """Split each dimension of a view into runs along one of the owner's dimensions ``axes``, which
    are given from the outermost inwards. None if strides do not determine them."""
    found: list[Run] = []
    for length, stride in zip(view.shape, view.strides, strict=True):
        if length == 1 or stride == 0:
            found.append((length, -1, 0))
            continue
        place = next((at for at, axis in enumerate(axes) if owner.strides[axis] <= stride), None)
        if place is None or not owner.strides[axes[place]] or stride % owner.strides[axes[place]]:
            return None
        step, inner = stride // owner.strides[axes[place]], list[Run]()
        while length * step > (extent := owner.shape[axes[place]]):
            # The dimension goes on in the next one outwards, if it fills this one.
            whole = owner.strides[axes[place]] * extent
            if step != 1 or length % extent or not place or owner.strides[axes[place - 1]] != whole:
                return None
            inner.insert(0, (extent, axes[place], 1))
            length, place = length // extent, place - 1
        found += [(length, axes[place], step), *inner]
    return found


def _owner_window(window: Window, step: int, first: int, inside: int) -> Window:
    """Return a view's window along a dimension of the owner: the view begins at ``first``, and an
    element reaches ``inside`` of every ``step``."""
    unit = window.unit * step
    if first % unit == 0:
        shift = first // unit * window.denominator
        return replace(window, unit=unit, low=window.low + shift, high=window.high + shift)
    if window.denominator != 1 or window.unit != 1:
        return ALL
    low, high = window.low * step + first, window.high * step + first + inside
    return Window(window.axis, window.numerator * step, 1, low, high)
