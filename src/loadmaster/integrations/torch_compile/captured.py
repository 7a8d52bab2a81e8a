"""Captured graphs as calls on storages: what each operator reads, writes and returns, in bytes and
strides.

Sources are the graphs that AOTAutograd makes of a model: ATen operators on placeholders, without
side effects but for updates of inputs at the end. They are run once on fake tensors, which have
shapes and storages and no bytes. Views are not calls: a view is its storage with other strides,
wherever the storage is.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, NamedTuple

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

RUN = "loadmaster_run"
"""Name of the node that `name_runs` adds to both graphs of a training step."""


class NotPlannable(Exception):
    """Raised for a graph that cannot be planned; the message names the operator. Such graphs run
    unplanned."""


class Owner(Enum):
    """Which side allocates and frees a storage's bytes."""

    PLAN = auto()
    """The plan: the storage is in the arena or in the slow memory."""
    CALLER = auto()
    """The caller: parameters, buffers, optimizer state and inputs. If a plan moves them, they are
    as `PLAN`."""
    RETURNED = auto()
    """PyTorch: results, which the caller may keep for any time. Gradients that a plan moves are as
    `PLAN`, and end in the slow memory."""


@dataclass(slots=True)
class Storage:
    """One storage: its bytes, the name of its first tensor, and its owner."""

    name: str
    bytes: int
    owner: Owner = Owner.PLAN


class Run(Enum):
    """Stands for the run that a forward pass begins, among what it saves for its backward pass."""

    THIS = auto()


class View(NamedTuple):
    """A tensor on a storage; size, stride and offset count elements."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def on_storage(storage: torch.UntypedStorage, view: View) -> torch.Tensor:
    """The tensor that ``view`` is, on a storage of at least its bytes."""
    return torch.empty(0, dtype=view.dtype, device=storage.device).set_(
        storage, view.offset, view.size, view.stride
    )


@dataclass(frozen=True, slots=True)
class Call:
    """One operator: arguments with views for tensors, the views of its results (None for other
    values), and the storages it uses.

    With ``in_place`` the first result takes the place of an operand: it is made as ever, at the
    operand's address.
    """

    name: str
    target: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: tuple[View | None, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: bool = False

    @property
    def kind(self) -> str:
        """The operator's name, such as ``aten.convolution``."""
        return str(self.target).removesuffix(".default")


@dataclass(frozen=True, slots=True)
class Part:
    """A graph's calls [first, end), the value of each of its placeholders, and what it returns
    (views and plain values).

    ``saved`` are the positions of placeholders whose tensors the part before has saved for this
    one.
    """

    first: int
    end: int
    given: tuple[Any, ...]
    returned: tuple[Any, ...]
    saved: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Captured:
    """One graph, or the forward and the backward graph of a training step, as calls in order.

    Storages in ``streamed`` rest in the slow memory: calls that use them pass through them in
    blocks.
    """

    storages: list[Storage]
    calls: list[Call]
    parts: tuple[Part, ...]
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    streamed: frozenset[int] = frozenset()

    def operand_bytes(self, call: Call) -> int:
        """Bytes of all storages that a call reads and writes."""
        return sum(self.storages[s].bytes for s in {*call.reads, *call.writes})


def capture(
    graphs: Sequence[torch.fx.GraphModule], given: Sequence[Any], results: int | None = None
) -> Captured:
    """Capture the calls and storages of a graph, or of a forward and a backward graph.

    ``given`` are the arguments of the first graph, real or fake; the first ``results`` of its
    outputs (all, if None) go to the caller, the others only to the second graph. Raises
    `NotPlannable`.
    """
    reader = _Reader()
    symbols: dict[Any, int] = {}
    first = reader.read(graphs[0], given, symbols, {})
    if len(graphs) == 1:
        reader.return_to_caller(first.returned)
        return reader.captured((first,))
    kept = len(first.returned) if results is None else results
    reader.return_to_caller(first.returned[:kept])
    outputs = graphs[0].graph.find_nodes(op="output")[0].args[0]
    saved = {
        node.name: value
        for node, value in zip(outputs[kept:], first.returned[kept:], strict=True)
        if isinstance(node, torch.fx.Node)
    }
    second = reader.read(graphs[1], None, symbols, saved)
    reader.return_to_caller(second.returned)
    return reader.captured((first, second))


def name_runs(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, results: int) -> None:
    """Have the forward graph save one tensor more, without elements, which stands for its run.

    Other saved tensors may all be the caller's, and equal in two runs of the graph. Tensors are
    saved after the ``results`` and given after the sizes, so that is where this one is.
    """
    end = forward.graph.output_node()
    saved = list(end.args[0])
    with forward.graph.inserting_before(end):
        run = forward.graph.create_node(
            "call_function",
            torch.ops.aten.empty.memory_format,
            ([0],),
            {"device": torch.device("cpu")},
            name=RUN,
        )
    known = [value for node in forward.graph.nodes if (value := node.meta.get("val")) is not None]
    mode = detect_fake_mode(known)
    assert mode is not None
    with mode:
        run.meta["val"] = torch.empty(0, device="cpu")
    end.args = ((*saved[:results], run, *saved[results:]),)
    sizes = sum(
        isinstance(node, torch.fx.Node) and not isinstance(node.meta.get("val"), torch.Tensor)
        for node in saved[results:]
    )
    given = backward.graph.find_nodes(op="placeholder")
    after = given[sizes] if sizes < len(given) else next(iter(backward.graph.nodes))
    with backward.graph.inserting_before(after):
        backward.graph.create_node("placeholder", RUN, name=RUN).meta["val"] = run.meta["val"]
    forward.recompile()
    backward.recompile()


def persistent_inputs(captured: Captured, given: Sequence[Any]) -> dict[int, int]:
    """Storages of parameters and buffers, each with its position among the arguments; without those
    that share a storage."""
    found: dict[int, int] = {}
    real: dict[int, int] = {}
    for i, (slot, argument) in enumerate(zip(captured.parts[0].given, given, strict=True)):
        if isinstance(slot, View) and type(argument) in (torch.Tensor, torch.nn.Parameter):
            storage = argument.untyped_storage()
            alone = real.setdefault(storage._cdata, i) == i
            lasts = (
                isinstance(argument, torch.nn.Parameter)
                or getattr(argument, "_dynamo_static_input_type", None) is not None
            )
            whole = (
                argument.storage_offset() == 0
                and storage.nbytes() == captured.storages[slot.storage].bytes
            )
            if lasts and whole and alone:
                found[slot.storage] = i
            elif not alone:
                found = {s: j for s, j in found.items() if j != real[storage._cdata]}
    return found


def movable_gradients(captured: Captured, given: Sequence[Any]) -> frozenset[int]:
    """Storages of parameters' gradients that autograd takes over as they are: whole, in the
    parameter's layout, and returned once.

    Gradients of parameters with hooks are not among them: a hook may put another tensor in their
    place.
    """
    if len(captured.parts) != 2 or len(captured.parts[1].returned) != len(given):
        return frozenset()
    second = captured.parts[1]
    returned = Counter(
        view.storage for view in views([captured.parts[0].returned, second.returned])
    )
    return frozenset(
        gradient.storage
        for gradient, parameter in zip(second.returned, given, strict=True)
        if isinstance(gradient, View)
        and isinstance(parameter, torch.nn.Parameter)
        and not parameter._backward_hooks
        and captured.storages[gradient.storage].owner is Owner.RETURNED
        and returned[gradient.storage] == 1
        and captured.storages[gradient.storage].bytes == parameter.nbytes
        and gradient[1:] == (parameter.dtype, tuple(parameter.shape), parameter.stride(), 0)
    )


def movable_storages(captured: Captured, results: int | None) -> frozenset[int]:
    """Storages that no result gives to the caller, and that the forward pass of a training step
    does not change."""
    first = captured.parts[0]
    shown = {
        view.storage
        for view in views(
            [first.returned[:results], [part.returned for part in captured.parts[1:]]]
        )
    }
    changed = (
        {s for call in captured.calls[: first.end] for s in call.writes}
        if len(captured.parts) > 1
        else set()
    )
    return frozenset(range(len(captured.storages))) - shown - changed


class _Reader:
    """Runs graphs on fake tensors and records which storages each operator reads and writes."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.storages: list[Storage] = []
        self.calls: list[Call] = []
        self.constants: dict[int, torch.Tensor] = {}
        self.device = torch.device("cpu")
        self._fakes: dict[View, Any] = {}
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []

    def captured(self, parts: tuple[Part, ...]) -> Captured:
        """What was read; a saved tensor that the second part returns is the caller's from the
        start, and no handle stands for it."""
        planned = {i for i, storage in enumerate(self.storages) if storage.owner is Owner.PLAN}
        parts = tuple(
            replace(
                part, saved=frozenset(i for i in part.saved if part.given[i].storage in planned)
            )
            for part in parts
        )
        return Captured(self.storages, self.calls, parts, self.constants, self.device)

    def return_to_caller(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, View) and self.storages[value.storage].owner is Owner.PLAN:
                self.storages[value.storage].owner = Owner.RETURNED

    def read(
        self,
        graph: torch.fx.GraphModule,
        given: Sequence[Any] | None,
        symbols: dict[Any, int],
        known: Mapping[str, Any],
    ) -> Part:
        values: dict[torch.fx.Node, Any] = {}
        slots: list[Any] = []
        saved: set[int] = set()
        first = len(self.calls)
        returned: tuple[Any, ...] = ()
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                if node.name in known:
                    value = known[node.name]
                    if isinstance(value, View) and self.storages[value.storage].owner is Owner.PLAN:
                        saved.add(len(slots))
                else:
                    value = self._placeholder(
                        node, None if given is None else given[len(slots)], symbols
                    )
                slots.append(value)
                values[node] = value
            elif node.name == RUN:
                values[node] = Run.THIS
            elif node.op == "get_attr":
                values[node] = self._constant(node, getattr(graph, node.target))
            elif node.op == "call_function":
                arguments, keywords = torch.fx.node.map_arg(
                    (node.args, node.kwargs), values.__getitem__
                )
                values[node] = self._call(node, tuple(arguments), dict(keywords))
            elif node.op == "output":
                returned = tuple(torch.fx.node.map_arg(node.args[0], values.__getitem__))
            else:
                raise NotPlannable(f"{node.op} {node.target}")
        return Part(first, len(self.calls), tuple(slots), returned, frozenset(saved))

    def _placeholder(self, node: torch.fx.Node, given: Any, symbols: dict[Any, int]) -> Any:
        meta = node.meta.get("val")
        if isinstance(meta, torch.SymInt) or isinstance(given, int):
            number = _number(meta, symbols) if given is None else int(given)
            if isinstance(meta, torch.SymInt):
                _note(meta, number, symbols)
            return number
        shape = meta if given is None else given
        if shape is None or isinstance(shape, bool | float | str):
            return shape
        plain = (torch.Tensor, torch.nn.Parameter)
        if type(shape) not in plain and not isinstance(shape, torch._subclasses.FakeTensor):
            raise NotPlannable(f"input {node.name} of type {type(shape).__name__}")
        if shape.layout is not torch.strided or shape.is_quantized:
            raise NotPlannable(f"input {node.name} that is not strided")
        if given is not None and isinstance(meta, torch.Tensor):
            for symbolic, size in zip(
                (*meta.shape, *meta.stride()), (*given.shape, *given.stride()), strict=True
            ):
                _note(symbolic, size, symbols)
        size = [_number(n, symbols) for n in shape.shape]
        stride = [_number(n, symbols) for n in shape.stride()]
        return self._given(node, shape, size, stride)

    def _constant(self, node: torch.fx.Node, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            raise NotPlannable(f"constant {node.target} of type {type(value).__name__}")
        view = self._given(node, value, value.size(), value.stride())
        self.constants[view.storage] = value
        return view

    def _given(self, node: torch.fx.Node, like: torch.Tensor, size: Any, stride: Any) -> View:
        """The view of a tensor of the caller."""
        with self.mode:
            fake = torch.empty_strided(size, stride, dtype=like.dtype, device=like.device)
        return self._view(fake, node.name, Owner.CALLER)

    def _view(self, fake: torch.Tensor, name: str, owner: Owner) -> View:
        if fake.layout is not torch.strided or fake.is_conj() or fake.is_neg() or fake.is_quantized:
            raise NotPlannable(f"{name}, which is not a plain strided tensor")
        if fake.device.type not in ("cpu", "cuda") or (
            self.storages and fake.device.type != self.device.type and fake.dim()
        ):
            raise NotPlannable(f"{name} on {fake.device}, beside tensors on {self.device}")
        if fake.device.type == "cuda":
            self.device = fake.device
        storage = fake.untyped_storage()
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = len(self.storages)
            self._alive.append(storage)
            self.storages.append(Storage(name, int(storage.nbytes()), owner))
        view = View(
            self._numbers[storage._cdata],
            fake.dtype,
            tuple(map(int, fake.shape)),
            tuple(map(int, fake.stride())),
            int(fake.storage_offset()),
        )
        self._fakes.setdefault(view, fake)
        return view

    def _call(
        self, node: torch.fx.Node, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        target: Any = node.target
        if target is operator.getitem:
            return arguments[0][arguments[1]]
        if not isinstance(target, torch._ops.OpOverload):
            if any(
                isinstance(leaf, View)
                for leaf in tree_leaves((arguments, keywords), is_leaf=is_view)
            ):
                raise NotPlannable(f"operator {target}")
            return target(*arguments, **keywords)
        fakes, named = tree_map(
            lambda leaf: self._fakes[leaf] if is_view(leaf) else leaf,
            (arguments, keywords),
            is_leaf=is_view,
        )
        before = len(self.storages)
        try:
            with self.mode, torch.no_grad():
                out = target(*fakes, **named)
        except Exception as error:
            raise NotPlannable(
                f"operator {target}, which has no result of known shape ({type(error).__name__})"
            ) from None
        several = isinstance(out, tuple | list)
        results = tuple(
            self._result(value, f"{node.name}") for value in (out if several else (out,))
        )
        reads, writes = _uses(target, arguments, keywords)
        fresh = tuple(range(before, len(self.storages)))
        if fresh or writes or not any(isinstance(value, View) for value in results):
            if not fresh and not writes and not any(value is None for value in results):
                return results if several else results[0]  # numbers
            self.calls.append(
                Call(
                    node.name,
                    target,
                    arguments,
                    keywords,
                    results,
                    reads,
                    tuple(dict.fromkeys(writes + fresh)),
                )
            )
        return results if several else results[0]

    def _result(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._view(value, name, Owner.PLAN)
        if isinstance(value, list | tuple):
            raise NotPlannable(f"{name}, whose results are lists in lists")
        return value if value is None else _number(value, {})


def is_view(leaf: Any) -> bool:
    """Whether a leaf of nested arguments is a view."""
    return isinstance(leaf, View)


def views(values: Any) -> Iterator[View]:
    """Iterate over all views in nested arguments."""
    return (leaf for leaf in tree_leaves(values, is_leaf=is_view) if isinstance(leaf, View))


def _uses(
    target: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Storages that a call reads, and those that it updates in place."""
    reads: dict[int, None] = {}
    writes: dict[int, None] = {}
    named = {argument.name: argument for argument in target._schema.arguments}
    pairs = [
        *zip(target._schema.arguments, arguments, strict=False),
        *((named[name], value) for name, value in keywords.items()),
    ]
    for argument, value in pairs:
        for view in views(value):
            reads[view.storage] = None
            if argument.alias_info is not None and argument.alias_info.is_write:
                writes[view.storage] = None
    return tuple(reads), tuple(writes)


def _note(symbolic: Any, value: int, symbols: dict[Any, int]) -> None:
    if isinstance(symbolic, torch.SymInt) and symbolic.node.expr.is_Symbol:
        symbols[symbolic.node.expr] = int(value)


def _number(value: Any, symbols: dict[Any, int]) -> Any:
    """Return the plain number for one that may be symbolic."""
    if not isinstance(value, torch.SymInt):
        return value
    number = value.node.expr.subs(symbols)
    if not number.is_number:
        raise NotPlannable(f"size {value}, which is known only when the graph runs")
    return int(number)
