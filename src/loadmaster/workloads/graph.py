"""One network as a graph: operators in execution order, tensors, loop bounds and aliases.

Frontends produce a :class:`Graph`; nothing after them knows a file format.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from loadmaster.core.registry import DisplayMixin

if TYPE_CHECKING:
    from loadmaster.workloads.window import Shape, Windows


_PRECISIONS = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "double": "fp64",
    "float64": "fp64",
    "int8": "int8",
    "uint8": "int8",
}
"""Names of precisions, by type of element; other types are precisions under their own names."""


class TensorKind(StrEnum):
    """The origin of a tensor's bytes."""

    WEIGHT = "weight"
    """Constant: an initialiser, a constant node, or folded from them."""
    INPUT = "input"
    """Supplied by the caller for every inference."""
    ACTIVATION = "activation"
    """Computed by an operator."""


class OpClass(StrEnum):
    """The kind of an operator's work, as planning distinguishes it."""

    PRODUCT = "product"
    """Multiply-accumulate loops: convolutions, matrix products, attention, recurrent cells."""
    ELEMENTWISE = "elementwise"
    """Each output element needs the matching input elements only: can be fused into a producer."""
    REDUCTION = "reduction"
    """Pooling, normalisation, softmax, reductions: arithmetic, but no multiply-accumulate array."""
    MOVEMENT = "movement"
    """Copies bytes to other places: transpose, concatenate, gather, pad."""
    VIEW = "view"
    """Renames bytes: costs nothing, the output aliases the first input."""
    SHAPE = "shape"
    """Known at planning time: costs nothing, its output is a constant."""
    CONTROL_FLOW = "control-flow"
    """Holds subgraphs that are counted but not planned."""
    UNKNOWN = "unknown"
    """Unknown: planned with its true bytes and no arithmetic, and named in the summary."""


FREE = frozenset({OpClass.VIEW, OpClass.SHAPE})
"""Kinds of work that cost nothing."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array.

    ``bytes`` is the storage it occupies, at the precision that is planned for. A view's
    ``alias_of`` names the tensor that owns its storage (never itself a view).
    """

    name: str
    shape: Shape
    dtype: str
    bytes: int
    kind: TensorKind
    alias_of: str | None = None

    @property
    def storage(self) -> str:
        """Name of the tensor that owns the bytes."""
        return self.alias_of or self.name

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Access:
    """An operator's use of one tensor: ``bytes`` is the number of bytes touched (a lookup touches
    few rows of a table).

    ``windows`` map, for every dimension of the tensor, a box of the operator's result to the needed
    range; without windows all of the tensor is needed. ``part_of`` names operands of loop nests of
    which the tensor is only a part. ``of_storage``: the windows refer to the dimensions of the
    tensor that owns the storage, of which a view may be a part or a permutation.
    """

    tensor: str
    bytes: int
    windows: Windows = ()
    part_of: tuple[str, ...] = ()
    of_storage: bool = False


@dataclass(frozen=True, slots=True)
class LoopNest:
    """One multiply-accumulate loop nest in convolution terms; a matrix product has ``x = r = s =
    1``, ``y`` rows.

    ``groups`` independent products, each ``batch`` x ``k`` output channels x ``c`` input channels
    (both per group) x ``y`` x ``x`` output positions x ``r`` x ``s`` taps. ``repeats`` counts runs
    that must follow one another with the same weight operand (the steps of a recurrent cell).
    ``input``, ``weight`` and ``output`` name the operands; an empty name is a value that never
    leaves the core. ``loops`` names the loop that each dimension of the operator's result is
    (``channels`` stands for groups and output channels together); empty where that is not known.
    """

    k: int
    c: int
    y: int = 1
    x: int = 1
    r: int = 1
    s: int = 1
    groups: int = 1
    batch: int = 1
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    repeats: int = 1
    input: str = ""
    weight: str = ""
    output: str = ""
    loops: tuple[str, ...] = ()

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of all loops, those of repeats last."""
        outer = (self.groups, self.batch, self.k, self.c)
        return (*outer, self.y, self.x, self.r, self.s, self.repeats)

    @property
    def macs(self) -> int:
        """Multiply-accumulates, padding included."""
        return math.prod(self.extents)


@dataclass(frozen=True, slots=True)
class Invocation:
    """How to run an operator by itself, to measure its time.

    ``text`` is JSON: the operator and its arguments, tensors by type, shape and strides.
    ``arguments`` names the tensors in it, in order, and ``results`` the new tensors that it makes.
    """

    text: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """One operator.

    ``reads`` and ``writes`` list its operands in the file's order (optional ones that are absent,
    and constants that only say a shape, are left out). ``elements`` counts scalar operations
    outside the loop nests. ``bits`` is the width of the arithmetic. An operator that can be run by
    itself has an ``invocation``. Writing a tensor that already exists updates it in place. ``axes``
    are the dimensions of the first result along which the operator can be cut without repeating
    work, in multiples of ``steps`` elements (1 if empty). An operator that ``copies`` only moves
    elements, from the positions that the windows of its operands name.
    """

    name: str
    kind: str
    op_class: OpClass
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    nests: tuple[LoopNest, ...] = ()
    elements: int = 0
    bits: int = 32
    invocation: Invocation | None = None
    axes: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    copies: bool = False

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all its loop nests."""
        return sum(nest.macs for nest in self.nests)


def uncounted(kinds: Iterable[str]) -> str:
    """Return a line that says which operators' arithmetic is not known; empty if there are none.

    ``kinds`` are the `Graph.unknown_kinds` of one or several networks.
    """
    names = ", ".join(dict.fromkeys(kinds))
    return f"NOT COUNTED: arithmetic of {names}: times and energy are too low" if names else ""


@dataclass(frozen=True, repr=False)
class Graph(DisplayMixin):
    """One network: ``ops`` in an order in which they can run, tensors by name, and remarks on
    unknown operators.

    ``batch`` is the leading dimension of the first input.
    ``subgraph_ops`` counts the operators inside control-flow bodies, by kind; ``notes`` are
    one-line remarks for the summary.
    """

    name: str
    source: str
    precision: str
    ops: tuple[Op, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    batch: int = 1
    subgraph_ops: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference of the whole batch."""
        return sum(op.macs for op in self.ops)

    @property
    def unknown_ops(self) -> dict[str, int]:
        """Number of unknown operators of each kind."""
        return dict(Counter(op.kind for op in self.ops if op.op_class is OpClass.UNKNOWN))

    @property
    def unknown_kinds(self) -> tuple[str, ...]:
        """Kinds of unknown operators as text, such as ``Mystery x2``."""
        return tuple(
            f"{kind[:60]} x{count}" if count > 1 else kind[:60]
            for kind, count in sorted(self.unknown_ops.items())
        )

    @property
    def subgraph_kinds(self) -> str:
        """Kinds of operators inside control-flow bodies with their numbers, as text."""
        return ", ".join(f"{kind} x{count}" for kind, count in self.subgraph_ops.items())

    def seen(self, access: Access) -> Tensor:
        """The tensor to whose dimensions the windows of an access refer."""
        tensor = self.tensors[access.tensor]
        return self.tensors[tensor.storage] if access.of_storage else tensor

    def bytes_of(self, kind: TensorKind) -> int:
        """Bytes of all storage of one kind, each alias counted once."""
        return sum(t.bytes for t in self.tensors.values() if t.kind is kind and t.alias_of is None)


def merged(accesses: Iterable[Access], bytes_of: Mapping[str, int]) -> tuple[Access, ...]:
    """Merge accesses by tensor: bytes add up, at most to ``bytes_of``; a tensor with different
    windows is needed as a whole."""
    found: dict[str, Access] = {}
    for access in accesses:
        name = access.tensor
        if known := found.get(name):
            size = min(bytes_of[name], known.bytes + access.bytes)
            same = known.windows == access.windows
            access = replace(access, bytes=size) if same else Access(name, size)
        found[name] = access
    return tuple(found.values())


def assembled(
    name: str,
    source: str,
    ops: tuple[Op, ...],
    tensors: Mapping[str, Tensor],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    **more: Any,
) -> Graph:
    """Make the graph of some operators, with the tensors that they or the caller use and the owners
    of their storage, in order of definition; ``more`` are further fields. In names, bytes that are
    not UTF-8, as those of files may be, are escaped."""
    name, source = (text.encode(errors="backslashreplace").decode() for text in (name, source))
    used = {*inputs, *outputs}
    for op in ops:
        used |= {access.tensor for access in (*op.reads, *op.writes)}
        if op.invocation is not None:
            used |= {*op.invocation.arguments, *op.invocation.results}
    used |= {tensors[label].storage for label in used}
    kept = {label: tensor for label, tensor in tensors.items() if label in used}
    batch = next((size for label in inputs for size in tensors[label].shape[:1]), 1)
    precision = _dominant_precision(ops, kept)
    return Graph(name, source, precision, ops, kept, inputs, outputs, batch, **more)


def _dominant_precision(ops: Iterable[Op], tensors: Mapping[str, Tensor]) -> str:
    """Return the precision of most multiply-accumulates: among operands as wide as the arithmetic,
    the most frequent type.

    Without any, it is the type of most bytes of inputs and activations. What a file holds
    quantised is counted so, whatever floating-point tensors are replanned at.
    """
    types: dict[int, Counter[str]] = defaultdict(Counter)
    for op in ops:
        if op.macs:
            read = [tensors[access.tensor].dtype for access in op.reads]
            dtype = next((name for name in read if width_of(name) == op.bits), f"int{op.bits}")
            types[op.bits][_PRECISIONS.get(dtype, dtype)] += op.macs
    if types:
        return max(types.values(), key=Counter.total).most_common(1)[0][0]
    total: Counter[str] = Counter()
    for tensor in tensors.values():
        if tensor.kind is not TensorKind.WEIGHT and tensor.dtype in _PRECISIONS:
            total[_PRECISIONS[tensor.dtype]] += tensor.bytes
    return total.most_common(1)[0][0] if total else "fp32"


def width_of(dtype: str) -> int:
    """Return the bits of an element, from the name of its type; 0 if that does not tell."""
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) if bits else {"double": 64, "bool": 8}.get(dtype, 0)
