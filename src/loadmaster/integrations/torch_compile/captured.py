"""Captures graphs as calls on storages: the storages that each operator reads and writes, and its
results with sizes and strides.

The graphs come from AOTAutograd: ATen operators on placeholders, functional but for updates of
inputs at the end. They are run once on fake tensors, which have shapes and storages but no data.
Operators that return views are not calls: a view is a storage with other strides.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.forward_ad import unpack_dual
from torch.utils._pytree import tree_leaves, tree_map_only

CPU = torch.device("cpu")
RUN = "loadmaster_run"
"""Name of the node that `name_runs` adds to both graphs of a training step."""


class NotPlannable(Exception):
    """Raised for a graph that cannot be planned and runs without a plan; the message names the
    operator."""


class Owner(Enum):
    """The side that allocates and frees a storage's bytes."""

    PLAN = auto()
    """The plan: the storage is in the arena or in slow memory."""
    CALLER = auto()
    """The caller: parameters, buffers, optimizer state and inputs. Those that a plan moves are
    placed like those of `PLAN`."""
    RETURNED = auto()
    """PyTorch: results, which the caller may keep for any time. Gradients that a plan moves are
    placed like those of `PLAN`, and end in slow memory."""


@dataclass(slots=True)
class Storage:
    """A storage: the name of its first tensor, its bytes and its owner."""

    name: str
    bytes: int
    owner: Owner = Owner.PLAN


THIS_RUN = object()
"""Placeholder, among the values that a forward graph saves, for the session of the run."""


class View(NamedTuple):
    """A tensor on a storage; size, stride and offset count elements."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def empty(self, device: torch.device | None = None) -> Tensor:
        """Return a new tensor of this form with undefined contents."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return int(math.prod(self.size) * self.dtype.itemsize)


def on_storage(storage: torch.UntypedStorage, view: View) -> Tensor:
    """Return the tensor of a view on a given storage."""
    return torch.empty(0, dtype=view.dtype, device=storage.device).set_(
        storage, view.offset, view.size, view.stride
    )


def view_of(tensor: Tensor, storage: int = 0) -> View:
    """Return the view of a tensor, on the storage of that number."""
    size, stride = (tuple(map(int, some)) for some in (tensor.shape, tensor.stride()))
    return View(storage, tensor.dtype, size, stride, int(tensor.storage_offset()))


def differs_from_storage(value: Any) -> bool:
    """Return whether a tensor is not what a view that is built on its storage is: it is conjugated
    or negated when it is read, has a tangent (forward-mode differentiation), or has no memory."""
    return isinstance(value, Tensor) and (
        value.is_conj()
        or value.is_neg()
        or value._is_zerotensor()
        or unpack_dual(value).tangent is not None
    )


def at_address(address: int, bytes: int, device: torch.device) -> torch.UntypedStorage:
    """Return a storage on ``bytes`` at an address, which it does not own."""
    return torch._C._construct_storage_from_data_pointer(address, device, bytes)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator, with views in the place of tensors.

    Attributes
    ----------
    results
        Views of the results; None for other values.
    reads, writes
        Storages that the call reads and writes.
    in_place
        Whether the first result is written to the storage of an operand.
    """

    name: str
    target: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: tuple[Any, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: bool = False

    @property
    def storages(self) -> tuple[int, ...]:
        """Storages that the call uses, without repetition."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))

    @property
    def operands(self) -> list[View]:
        """The views among the arguments and keywords, in order."""
        return list(views((self.arguments, self.keywords)))

    def mapped(self, function: Callable[[View], Any]) -> Any:
        """Return the arguments and keywords with ``function`` of each view in its place."""
        return map_views(function, (self.arguments, self.keywords))

    @property
    def kind(self) -> str:
        """The operator's name, such as ``aten.convolution``."""
        return str(self.target).removesuffix(".default")


@dataclass(frozen=True, slots=True)
class GraphPart:
    """The calls [first, end) of one graph, the values of its placeholders, and its results (views
    and plain values)."""

    first: int
    end: int
    given: tuple[Any, ...]
    returned: tuple[Any, ...]


@dataclass(frozen=True)
class Captured:
    """One graph, or the forward and the backward graph of a training step, as calls in order.

    Storages in ``streamed`` stay in slow memory; calls read and write blocks of them.
    """

    storages: list[Storage]
    calls: list[Call]
    parts: tuple[GraphPart, ...]
    constants: dict[int, Tensor] = field(default_factory=dict)
    device: torch.device = CPU
    streamed: frozenset[int] = frozenset()

    def bytes_of(self, storages: Iterable[int]) -> int:
        """Return the bytes of these storages in sum."""
        return sum(self.storages[s].bytes for s in storages)

    def operand_bytes(self, call: Call) -> int:
        """Return the bytes of all storages that a call reads and writes."""
        return self.bytes_of(call.storages)

    def is_planned(self, value: Any) -> bool:
        """Return whether a value is a view of a storage that the plan owns.

        Placeholders of the backward part with such values are tensors saved by the forward part.
        """
        return isinstance(value, View) and self.storages[value.storage].owner is Owner.PLAN


def capture(
    graphs: Sequence[torch.fx.GraphModule], given: Sequence[Any], results: int | None = None
) -> Captured:
    """Capture the calls and storages of a graph, or of a forward and a backward graph.

    ``given`` are the arguments of the first graph, real or fake; the first ``results`` of its
    outputs (all, if None) go to the caller, the others only to the second graph. Raises
    `NotPlannable`.
    """
    reader = _Reader()
    parts = [reader.read(graphs[0], given, {})]
    reader.return_to_caller(parts[0].returned[:results])
    for graph in graphs[1:]:
        outputs = graphs[0].graph.output_node().args[0][results:]
        saved = {
            node.name: value
            for node, value in zip(outputs, parts[0].returned[results:], strict=True)
            if isinstance(node, torch.fx.Node)
        }
        parts.append(reader.read(graph, None, saved))
        reader.return_to_caller(parts[1].returned)
    return Captured(reader.storages, reader.calls, tuple(parts), reader.constants, reader.device)


def name_runs(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, results: int) -> None:
    """Add an empty tensor to the tensors that the forward graph saves for the backward graph, to
    identify the run.

    The other saved tensors may all be the caller's, and the same in two runs. The tensor is the
    first that the forward graph returns after its ``results``, and the first placeholder of the
    backward graph after the sizes.
    """
    end = forward.graph.output_node()
    saved = list(end.args[0])
    with forward.graph.inserting_before(end):
        run = forward.graph.create_node(
            "call_function",
            torch.ops.aten.empty.memory_format,
            ([0],),
            {"device": CPU},
            name=RUN,
        )
    mode = detect_fake_mode([node.meta.get("val") for node in forward.graph.nodes])
    assert mode is not None
    with mode:
        run.meta["val"] = torch.empty(0, device=CPU)
    end.args = ((*saved[:results], run, *saved[results:]),)
    after = next(
        node
        for node in backward.graph.nodes
        if node.op != "placeholder" or isinstance(node.meta.get("val"), Tensor)
    )
    with backward.graph.inserting_before(after):
        backward.graph.create_node("placeholder", RUN, name=RUN).meta["val"] = run.meta["val"]
    forward.recompile()
    backward.recompile()


def whole_inputs(captured: Captured, given: Sequence[Any]) -> dict[int, int]:
    """Return the storages of tensors, with their positions among the arguments ``given``; without
    parts of storages, and storages of several tensors or processes."""
    tensors = {
        i: (slot.storage, argument, argument.untyped_storage())
        for i, (slot, argument) in enumerate(zip(captured.parts[0].given, given, strict=True))
        if isinstance(slot, View) and type(argument) in (Tensor, torch.nn.Parameter)
    }
    uses = Counter(storage._cdata for _, _, storage in tensors.values())
    return {
        s: i
        for i, (s, argument, storage) in tensors.items()
        if uses[storage._cdata] == 1
        and not storage.is_shared()
        and argument.storage_offset() == 0
        and storage.nbytes() == captured.storages[s].bytes
    }


def persistent_inputs(captured: Captured, given: Sequence[Any]) -> dict[int, int]:
    """Return those of `whole_inputs` that are parameters and buffers."""
    return {
        s: i
        for s, i in whole_inputs(captured, given).items()
        if isinstance(given[i], torch.nn.Parameter)
        or getattr(given[i], "_dynamo_static_input_type", None) is not None
    }


def movable_gradients(captured: Captured, given: Sequence[Any]) -> frozenset[int]:
    """Return the storages of parameters' gradients that autograd takes over without a copy: whole
    storages, in the parameter's layout, and returned once.

    Gradients of parameters with hooks are left out, because a hook may replace them.
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
    """Return the storages that are not returned to the caller, and that the forward pass of a
    training step does not write."""
    first, *second = captured.parts
    shown = {
        view.storage for view in views([first.returned[:results], *(p.returned for p in second)])
    }
    changed = {s for call in captured.calls[: first.end] for s in call.writes if second}
    return frozenset(range(len(captured.storages))) - shown - changed


class _Reader:
    """Runs graphs on fake tensors and records which storages each operator reads and writes."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        # Cached results have no storages of their own.
        self.mode.cache_enabled = False
        self.storages: list[Storage] = []
        self.calls: list[Call] = []
        self.constants: dict[int, Tensor] = {}
        self.device = CPU
        self._symbols: dict[Any, int] = {}
        self._fakes: dict[View, Any] = {}
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []

    def return_to_caller(self, values: Sequence[Any]) -> None:
        """Mark storages of results as the caller's."""
        for view in views(values):
            storage = self.storages[view.storage]
            if storage.owner is Owner.PLAN:
                storage.owner = Owner.RETURNED

    def read(
        self,
        graph: torch.fx.GraphModule,
        given: Sequence[Any] | None,
        known: Mapping[str, Any],
    ) -> GraphPart:
        """Record the calls of one graph with arguments ``given`` (None: as in the graph's metadata)
        and ``known`` values of placeholders by name."""
        values: dict[torch.fx.Node, Any] = {}
        slots: list[Any] = []
        first = len(self.calls)
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = (
                    known[node.name]
                    if node.name in known
                    else self._placeholder(node, None if given is None else given[len(slots)])
                )
                slots.append(values[node])
            elif node.name == RUN:
                values[node] = THIS_RUN
            elif node.op == "get_attr":
                values[node] = self._constant(node, getattr(graph, node.target))
            else:
                arguments, keywords = torch.fx.node.map_arg(
                    (node.args, node.kwargs), values.__getitem__
                )
                values[node] = (
                    tuple(arguments[0])
                    if node.op == "output"
                    else self._call(node, tuple(arguments), dict(keywords))
                )
        returned = values[graph.graph.output_node()]
        return GraphPart(first, len(self.calls), tuple(slots), returned)

    def _placeholder(self, node: torch.fx.Node, given: Any) -> Any:
        """Return an input of the graph as a number, a constant or a view; raise NotPlannable for
        other types."""
        meta = node.meta.get("val")
        shape = meta if given is None else given
        if isinstance(meta, torch.SymInt) or isinstance(given, int):
            number = int(self._number(shape))
            self._note(meta, number)
            return number
        if shape is None or isinstance(shape, bool | float | str):
            return shape
        if type(shape) not in (Tensor, torch.nn.Parameter) and not isinstance(shape, FakeTensor):
            raise NotPlannable(f"input {node.name} of type {type(shape).__name__}")
        if shape.layout is not torch.strided or shape.is_quantized:
            raise NotPlannable(f"input {node.name} that is not strided")
        if given is not None and isinstance(meta, Tensor):
            for symbolic, size in zip(
                (*meta.shape, *meta.stride()), (*given.shape, *given.stride()), strict=True
            ):
                self._note(symbolic, size)
        return self._given(node, shape)

    def _constant(self, node: torch.fx.Node, value: Any) -> Any:
        """Return the view of a constant tensor; raise NotPlannable for other constants."""
        if not isinstance(value, Tensor):
            raise NotPlannable(f"constant {node.target} of type {type(value).__name__}")
        view = self._given(node, value)
        self.constants[view.storage] = value
        return view

    def _given(self, node: torch.fx.Node, like: Tensor) -> View:
        """Return the view of a new storage of the caller for a tensor like ``like``; raise
        NotPlannable if that `differs_from_storage`."""
        if differs_from_storage(like):
            raise NotPlannable(f"{node.name}, which is more than the contents of its memory")
        size, stride = ([*map(self._number, some)] for some in (like.shape, like.stride()))
        with self.mode:
            fake = torch.empty_strided(size, stride, dtype=like.dtype, device=like.device)
        return self._view(fake, node.name, Owner.CALLER)

    def _view(self, fake: Tensor, name: str, owner: Owner) -> View:
        """Return a tensor as a view of its storage, which is added if new; raise NotPlannable
        unless it is plain, strided and on the graph's device."""
        if fake.layout is not torch.strided or differs_from_storage(fake) or fake.is_quantized:
            raise NotPlannable(f"{name}, which is not a plain strided tensor")
        if fake.device.type not in ("cpu", "cuda") or (
            self.storages and fake.device.type != self.device.type and fake.dim()
        ):
            raise NotPlannable(f"{name} on {fake.device}, beside tensors on {self.device}")
        if fake.device.type == "cuda":
            self.device = fake.device
        storage = fake.untyped_storage()
        number = self._numbers.setdefault(storage._cdata, len(self.storages))
        if number == len(self.storages):
            self._alive.append(storage)
            self.storages.append(Storage(name, int(storage.nbytes()), owner))
        view = view_of(fake, number)
        self._fakes.setdefault(view, fake)
        return view

    def _call(
        self, node: torch.fx.Node, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Run a node on fake tensors and record the call, unless it only returns views or numbers.
        Return its results."""
        target: Any = node.target
        if target is operator.getitem:
            return arguments[0][arguments[1]]
        if not isinstance(target, torch._ops.OpOverload):
            if any(views((arguments, keywords))):
                raise NotPlannable(f"operator {target}")
            return target(*arguments, **keywords)
        if target is torch.ops.aten._conj.default and not is_view(arguments[0]):
            # Of a number it makes a tensor whose conjugation its memory does not show.
            return arguments[0].conjugate()
        # The first reads what only the library can write: on stand-ins it crashes. The second
        # counts from the beginning of the storage, wherever the input begins.
        if target is torch.ops.aten.mkldnn_rnn_layer_backward.default or (
            target is torch.ops.aten.as_strided.default
            and arguments[3:] not in ((), (None,))
            and self.storages[arguments[0].storage].owner is Owner.CALLER
        ):
            raise NotPlannable(f"operator {target}")
        fakes, named = map_views(self._fakes.__getitem__, (arguments, keywords))
        before = len(self.storages)
        try:
            with self.mode, torch.no_grad():
                out = _as_run(target, fakes, target(*fakes, **named))
        except Exception as error:
            raise NotPlannable(
                f"operator {target}, which has no result of known shape ({type(error).__name__})"
            ) from None
        several = isinstance(out, tuple | list)
        results = tuple(self._result(value, node.name) for value in (out if several else (out,)))
        reads, writes = _uses(target, arguments, keywords)
        fresh = tuple(range(before, len(self.storages)))
        # Operators that return only views or numbers are not calls.
        if fresh or writes or (None in results and not any(map(is_view, results))):
            written = tuple(dict.fromkeys(writes + fresh))
            self.calls.append(Call(node.name, target, arguments, keywords, results, reads, written))
        return results if several else results[0]

    def _result(self, value: Any, name: str) -> Any:
        """Return a call's result as a view or number; raise NotPlannable for nested lists."""
        if isinstance(value, Tensor):
            return self._view(value, name, Owner.PLAN)
        if isinstance(value, list | tuple):
            raise NotPlannable(f"{name}, whose results are lists in lists")
        return self._number(value)

    def _note(self, symbolic: Any, value: int) -> None:
        """Note the value of a symbolic size."""
        if isinstance(symbolic, torch.SymInt) and getattr(symbolic.node.expr, "is_Symbol", False):
            self._symbols[symbolic.node.expr] = int(value)

    def _number(self, value: Any) -> Any:
        """Return the integer for a size that may be symbolic. Raises `NotPlannable`."""
        if not isinstance(value, torch.SymInt):
            return value
        # The lengths of a jagged tensor are no expression.
        expression = getattr(value.node, "expr", None)
        number = expression and expression.subs(self._symbols)
        if number is None or not number.is_number:
            raise NotPlannable(f"size {value}, which is known only when the graph runs")
        return int(number)


def _as_run(target: Any, operands: Sequence[Any], out: Any) -> Any:
    """Return fake results in the types that kernels of a CPU make where PyTorch foresees others: a
    normalisation in fewer bits than its parameters has statistics of their type, and gradients of
    its own."""
    name, tensors = str(target), [each for each in operands if isinstance(each, Tensor)]
    if "native" not in name or "_norm" not in name or tensors[0].device.type != "cpu":
        return out
    kinds = [reduce(torch.promote_types, (each.dtype for each in tensors))] * len(out)
    kinds[0] = tensors[0].dtype
    return tuple(
        each if each is None else each.to(kind) for each, kind in zip(out, kinds, strict=True)
    )


def is_view(leaf: Any) -> bool:
    """Return whether a leaf of nested arguments is a view."""
    return isinstance(leaf, View)


def map_views(function: Callable[[View], Any], values: Any) -> Any:
    """Return nested arguments with ``function`` of each view in its place."""
    return tree_map_only(View, function, values, is_leaf=is_view)


def views(values: Any) -> Iterator[View]:
    """Iterate over all views in nested arguments."""
    return filter(is_view, tree_leaves(values, is_leaf=is_view))


def _uses(
    target: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the storages that a call uses, and those of them that it updates in place."""
    named = {argument.name: argument for argument in target._schema.arguments}
    pairs = [
        *zip(target._schema.arguments, arguments, strict=False),
        *((named[name], value) for name, value in keywords.items()),
    ]
    uses = [
        (argument.alias_info, view.storage) for argument, value in pairs for view in views(value)
    ]
    writes = dict.fromkeys(s for alias, s in uses if alias is not None and alias.is_write)
    return tuple(dict.fromkeys(s for _, s in uses)), tuple(writes)
