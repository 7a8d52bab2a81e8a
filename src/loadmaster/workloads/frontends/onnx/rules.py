"""What an operator is understood by: records of its values, its work and how it divides, and rules.
One rule for each kind says what it does, how it divides, when it is a view, and its shapes where
the onnx package does not know them.

Each family of operators registers its rules in a module of its own; ``operators.py`` looks them up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Self

import numpy as np

from loadmaster.core.arguments import instead
from loadmaster.core.arrays import Array
from loadmaster.core.errors import ModelError
from loadmaster.workloads.graph import LoopNest, OpClass, TensorKind, width_of
from loadmaster.workloads.window import ALL, Shape, Window, Windows, identity

_TYPES = """
    float32 uint8 int8 uint16 int16 int32 int64 string bool float16 double uint32 uint64 complex64
    complex128 bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz uint4 int4 float4e2m1
    float8e8m0 uint2 int2 float6e2m3 float6e3m2
"""
ELEMENT_BITS = {name: width_of(name) or 64 for name in _TYPES.split()}
"""Bits per element, in the order of ONNX's numbers; a string counts as an 8-byte reference, because
its length is not known."""

PRECISIONS = {"int8": "int8", "fp16": "float16", "fp32": "float32"}
"""Precisions that a network can be replanned at, and the storage type that its floating tensors
then get."""

REPLANNED = ("float32", "float16", "bfloat16", "double")
"""Types that a precision replaces; narrower floats are quantised formats and stay as they are."""

DTYPE_NUMBERS = {name: number for number, name in enumerate(ELEMENT_BITS, 1)}
"""ONNX's number for each element type."""

_NAMES = dict(enumerate(ELEMENT_BITS, 1))


def kinds_in(text: str) -> frozenset[str]:
    """Return the kinds of operators in a text, which spaces separate."""
    return frozenset(text.split())


def dtype_name(number: int, tensor: str) -> str:
    """Return the name of an ONNX element type; ``tensor`` names the tensor in errors."""
    name = _NAMES.get(number, "")
    if not name:
        raise ModelError(
            f"tensor {tensor!r} has the unknown element type {number}: export the network with a"
            " supported type"
        )
    return name


def stored_as(dtype: str, precision: str | None) -> str:
    """Return the type in which a tensor of type ``dtype`` is stored, if the network is planned at
    ``precision``."""
    return PRECISIONS[precision] if precision and dtype in REPLANNED else dtype


def require_precision(precision: str | None) -> None:
    """Raise `ModelError` if there is no precision of that name."""
    if precision is not None and precision not in PRECISIONS:
        raise ModelError(f"there is no precision {precision!r}: {instead(precision, PRECISIONS)}")


def storage_bytes(count: int, dtype: str) -> int:
    """Return the bytes of ``count`` elements, packed and rounded up to a whole byte."""
    return -(-count * ELEMENT_BITS[dtype] // 8)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor: ``dtype`` is what the file says, ``stored`` what its bytes are (quantised, or
    replanned at another precision). Values compare and hash by identity.

    ``data`` holds the elements of a small constant; ``alias_of`` the owner of a view's bytes;
    ``scales`` the scales and zero points of its blocks, or that are computed, which whoever reads
    it reads too. ``order`` of a view says which dimension of the owner each of its own is, () if
    that is not known; None if its elements follow one another as the owner's do.
    """

    name: str
    shape: Shape
    dtype: str
    stored: str
    kind: TensorKind
    data: Array | None = None
    alias_of: str | None = None
    scales: tuple[Value, ...] = ()
    order: tuple[int, ...] | None = None

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of storage."""
        return storage_bytes(self.count, self.stored)

    @property
    def constant(self) -> bool:
        """Whether the value is known before the first inference."""
        return self.kind is TensorKind.WEIGHT

    @property
    def storage(self) -> str:
        """Name of the value that owns the bytes."""
        return self.alias_of or self.name

    def integers(self) -> list[int] | None:
        """The elements as a flat list of integers, where they are known."""
        if self.data is None or self.data.dtype.kind not in "iub":
            return None
        return [int(item) for item in self.data.ravel()]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator of the file with its operands; ``None`` stands for an optional operand that is
    absent or an output nobody needs. ``cure`` is what helps against a damaged file; other formats
    have the largest ``opset``."""

    cure: ClassVar[str] = "export it again"
    name: str
    kind: str
    domain: str
    attrs: Mapping[str, Any]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...] = ()
    opset: int = 2**31

    def optional(self, index: int) -> Value | None:
        """Return operand ``index``, or ``None`` where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def operand(self, index: int) -> Value:
        """Return operand ``index``, which must be present."""
        value = self.optional(index)
        if value is None:
            raise ModelError(f"operand {index} is missing: the file is damaged, {self.cure}")
        return value

    def shape(self, index: int) -> Shape:
        """Return the shape of operand ``index``."""
        return self.operand(index).shape

    def label(self, index: int) -> str:
        """Return the name of operand ``index``, empty where it is absent."""
        value = self.optional(index)
        return value.name if value else ""

    @property
    def present(self) -> list[Value]:
        """The operands that are present."""
        return [value for value in self.inputs if value is not None]

    @property
    def results(self) -> list[Value]:
        """The outputs that something needs."""
        return [value for value in self.outputs if value is not None]

    @property
    def result(self) -> Value:
        """The first output that something needs."""
        for value in self.results:
            return value
        raise ModelError("nothing needs any of its outputs: remove it from the file")

    @property
    def rank(self) -> int:
        """Number of dimensions of the result."""
        return len(self.result.shape)

    def integers(self, name: str, operand: int | None = None) -> list[int] | None:
        """Return the integers that older opsets hold in attribute ``name`` and newer ones in
        ``operand``."""
        if name in self.attrs:
            return [int(item) for item in np.atleast_1d(self.attrs[name])]
        value = self.optional(operand) if operand is not None else None
        return value.integers() if value else None

    def permutation(self, shape: Shape) -> tuple[list[int], bool]:
        """Return the dimension of an operand of some shape that each of a transposition's result
        is, and whether any moves that has several elements."""
        order = self.integers("perm") or list(range(len(shape)))[::-1]
        if sorted(order) != list(range(len(shape))):
            raise ModelError(
                f"perm {order} is no order of the {len(shape)} dimensions of its operand: export"
                " the network again"
            )
        long = [axis for axis in order if shape[axis] > 1]
        return order, long != sorted(long)

    def like(
        self,
        kind: str,
        operands: Iterable[Value | None],
        result: Value | None = None,
        **attributes: Any,
    ) -> Self:
        """Return the equivalent ONNX operator of an operator of another format, with operands,
        first result and attributes as ONNX has them. Operands that are left out are still read."""
        return replace(
            self,
            kind=kind,
            domain="",
            attrs=attributes,
            inputs=tuple(operands),
            outputs=(result or self.result, *self.outputs[1:]),
        )


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an operator. ``touched`` maps an operand's index to the bytes that are read, if
    that is not the whole tensor; torch names its operands.

    ``data`` is the operand whose storage type decides the width of the arithmetic.
    """

    op_class: OpClass
    nests: tuple[LoopNest, ...] = ()
    elements: int = 0
    touched: Mapping[int | str, int] | None = None
    data: int = 0


def named(node: Node, nest: LoopNest, weight: int = 1) -> LoopNest:
    """The loop nest of operands 0 and ``weight``, and of the result."""
    return replace(nest, input=node.label(0), weight=node.label(weight), output=node.result.name)


def product(*nests: LoopNest, elements: int = 0, data: int = 0) -> Work:
    """Make the work of multiply-accumulate loops; raises for an empty loop, which only a damaged
    file has."""
    for nest in nests:
        if min(nest.extents) < 1:
            raise ModelError(
                "its operands' shapes leave a loop without rounds: the file is damaged, export it"
                " again"
            )
    return Work(OpClass.PRODUCT, nests, elements, data=data)


def reduction(elements: int, touched: Mapping[int | str, int] | None = None, data: int = 0) -> Work:
    """Make the work of scalar operations that are no multiply-accumulates."""
    return Work(OpClass.REDUCTION, elements=elements, touched=touched, data=data)


def describe(kind: str, name: str) -> str:
    """Return how messages name an operator."""
    return f"operator {name!r} ({kind})" if name else f"an unnamed {kind} operator"


SOFTMAX_STEPS = 5
"""Operations per element of a softmax: maximum, subtract, exponential, sum, divide."""
NORMALISATION_STEPS = 5
"""Operations per element of a normalisation: mean, subtract, square, scale, shift."""
NORM_STEPS = 3
"""Operations per element of a norm or a distance: subtract or scale, power, add."""
GATE_STEPS = 2
"""Scalar operations per gate and step of a recurrent cell: the activation, and the gate's part in
the new state."""


def fourier_steps(length: int, real: bool) -> int:
    """Return the scalar operations of one fast Fourier transform, rounded up: ``5 N log2 N`` for
    ``N`` complex elements, half of that for real ones.

    The count is the usual estimate of an algorithm of the Cooley-Tukey family (Frigo and Johnson,
    Proceedings of the IEEE 93(2), 2005, section V); lengths with large prime factors take more.
    """
    steps = 5 * length * math.log2(length) if length > 1 else 1
    return math.ceil(steps / 2 if real else steps)


MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
"""The domain of operators in files that ONNX Runtime optimised for one processor: channels are in
padded blocks."""

EVERY = range(2**31)
"""Positions of all operands."""

Result = tuple[str, Shape]
"""Element type and shape of an output."""


@dataclass(frozen=True, slots=True)
class Division:
    """How an operator divides: ``axes`` are dimensions of the result that can be cut without
    repeating work, ``operands`` the windows of its operands by position (all of an operand is
    needed where there are none), ``loops`` the loop of each loop nest that every dimension of the
    result belongs to. ``steps`` says of which numbers of elements the pieces of a dimension are
    multiples; ``copies``, whether the operator only puts elements elsewhere."""

    axes: tuple[int, ...] = ()
    operands: dict[int, Windows] = field(default_factory=dict)
    loops: tuple[str, ...] = ()
    steps: Mapping[int, int] = field(default_factory=dict)
    copies: bool = False

    def steps_of(self, node: Node) -> tuple[int, ...]:
        """The steps of all dimensions of a node's result; none if all are 1."""
        return tuple(self.steps.get(axis, 1) for axis in range(node.rank)) if self.steps else ()


WHOLE = Division()

WorkRule = Callable[[Node], Work]
DivisionRule = Callable[[Node], Division]
ShapeRule = Callable[[Node], list[Result]]
KnownShape = tuple[int | None, ...] | None
"""A shape as far as it is known: None without a rank, and for unknown dimensions."""
ShapeCorrection = Callable[[Node, KnownShape], KnownShape]
ViewTest = Callable[[Node, Value], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of a kind of operator.

    ``work`` computes a node's work, ``division`` how it divides, None if it is not cut; ``view``
    tells whether a node with as many elements as its first operand only renames them. Constants
    among the operands ``planning`` are not read later. ``shapes`` are those of the first outputs;
    without them the standard operator ``like`` it, or of its name, has the same with these
    ``operands``. ``corrected`` is the shape of the first output, given what inference says of it,
    where that is not what runs.
    """

    work: WorkRule
    division: DivisionRule | None = None
    view: ViewTest | None = None
    shapes: ShapeRule | None = None
    corrected: ShapeCorrection | None = None
    planning: tuple[int, ...] = ()
    like: str = ""
    operands: Container[int] = EVERY


RULES: dict[tuple[str, str], Rule] = {}
"""Rules by domain and kind."""


def rule(
    kinds: str,
    work: WorkRule,
    division: DivisionRule | None = None,
    *,
    domain: str = "",
    **more: Any,
) -> None:
    """Register the rule of the operators ``kinds``, which spaces separate; ``more`` are further
    fields of `Rule`."""
    made = Rule(work, division, **more)
    RULES.update({(domain, kind): made for kind in kinds.split()})


runtime_rule = partial(rule, domain=MICROSOFT)
"""Registers the rule of ONNX Runtime's own operators."""


def variant(kinds: str, like: str, domain: str = MICROSOFT, **changes: Any) -> None:
    """Register variants of a standard operator, among whose operands are those of that one, in
    their order; ``changes`` are fields of `Rule` that differ."""
    made = replace(RULES["", like], like=like, **changes)
    RULES.update({(domain, kind): made for kind in kinds.split()})


def divided(operands: dict[int, Windows], loops: tuple[str, ...] = (), **more: Any) -> Division:
    """Make the division of an operator that can be cut along every dimension that a window
    follows; ``more`` are further fields of `Division`."""
    axes = {window.axis for windows in operands.values() for window in windows}
    return Division(tuple(sorted(axis for axis in axes if axis >= 0)), operands, loops, **more)


def with_first_type(node: Node, *shapes: Shape) -> list[Result]:
    """Return results of these shapes in the type of the first operand."""
    return [(node.operand(0).dtype, shape) for shape in shapes]


@lru_cache(maxsize=1024)
def aligned(operand: Shape, result: Shape) -> Windows:
    """Return the windows of an operand that is broadcast to the result by numpy's rules; none if it
    cannot be broadcast."""
    shift = len(result) - len(operand)
    pairs = list(zip(operand, result[max(0, shift) :], strict=False))
    if shift < 0 or any(extent not in (1, size) for extent, size in pairs):
        return ()
    return tuple(
        Window(axis + shift) if extent == size else ALL for axis, (extent, size) in enumerate(pairs)
    )


def along(node: Node, axes: Iterable[int]) -> Division:
    """Return how an operator divides that works along some axes of a tensor and keeps its shape:
    not along these axes."""
    rank = node.rank
    return divided({0: identity(rank, {axis % rank: ALL for axis in axes})})
