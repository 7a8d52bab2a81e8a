"""From a torch trace (an ``fx.GraphModule`` whose nodes carry their values without bytes) to a :class:`~loadmaster.graph.Graph`.

Tensors that share a storage are one tensor and its aliases, whatever the operators are called: results that lie in an argument's
storage are views, or updates in place where the operator's signature says so.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

# Importing torch_products and torch_ops registers what operators do.
from loadmaster.errors import ModelError
from loadmaster.frontends import torch_products as torch_products
from loadmaster.frontends.torch_calls import RULES, Call, Value, Work
from loadmaster.frontends.torch_ops import ALLOCATIONS, OVERWRITING, SHAPE_ONLY, SILENTLY_UPDATED, elementwise
from loadmaster.graph import Access, Graph, Op, OpClass, Tensor, TensorKind

_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


@dataclass(frozen=True)
class Conversion:
    """A graph, and where the trace's nodes are in it.

    Operators are called as the nodes that they come from. ``tensors_of`` names, for every node, the tensors among the leaves of its
    value, in order; ``graph.tensors[name].storage`` is the tensor that a placement knows.
    """

    graph: Graph
    tensors_of: Mapping[str, tuple[str, ...]]


def convert(
    module: fx.GraphModule,
    *,
    kinds: Mapping[str, TensorKind],
    name: str,
    source: str,
    names: Mapping[str, str] | None = None,
) -> Conversion:
    """Convert a trace.

    Parameters
    ----------
    module
        Every node but the last holds its value, of shape and strides alone, in ``meta["val"]``.
    kinds
        For each placeholder node what it is: a weight is there before the trace runs and after it, an input is the caller's.
    name, source
        What the graph is called, and where it comes from.
    names
        What placeholders' tensors are called; by their nodes by default.

    Raises
    ------
    ModelError
        A value is sparse, or otherwise without a storage.

    Notes
    -----
    Kernels whose results nobody uses are left out. O(nodes + operands).
    """
    return _Converter(module, kinds, names or {}).convert(name, source)


@dataclass(frozen=True, slots=True)
class _Signature:
    """What an operator does to its arguments: their names, which it writes, and which of these it does not read."""

    name: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]
    overwritten: tuple[str, ...]
    pointwise: bool


@cache
def _signature(target: Any) -> _Signature:
    schema = target._schema
    plain = schema.name.partition("::")[2]
    name = plain if plain.endswith("__") else plain.removesuffix("_")
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    blind = written[:1] if name in OVERWRITING else [a.name for a in schema.arguments if a.is_out]
    return _Signature(name, tuple(a.name for a in schema.arguments), tuple(written), tuple(blind), torch.Tag.pointwise in target.tags)


class _Converter:
    def __init__(self, module: fx.GraphModule, kinds: Mapping[str, TensorKind], names: Mapping[str, str]) -> None:
        self._module = module
        self._kinds = kinds
        self._names = names
        self._tensors: dict[str, Tensor] = {}
        self._owners: dict[int, str] = {}
        self._values: dict[fx.Node, Any] = {}
        self._ops: list[Op] = []
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._keep: list[Any] = []

    def convert(self, name: str, source: str) -> Conversion:
        """Walk the trace once."""
        for node in self._module.graph.nodes:
            self._visit(node)
        ops = self._useful()
        tensors = self._used(ops)
        leading = [self._tensors[tensor].shape[0] for tensor in self._inputs if self._tensors[tensor].shape]
        graph = Graph(
            name=name,
            source=source,
            precision=self._precision(ops),
            ops=ops,
            tensors=tensors,
            inputs=tuple(self._inputs),
            outputs=tuple(dict.fromkeys(self._outputs)),
            batch=leading[0] if leading else 1,
        )
        found = {node.name: tuple(value.name for value in _leaves(values)) for node, values in self._values.items()}
        return Conversion(graph, found)

    def _visit(self, node: fx.Node) -> None:
        if node.op == "output":
            self._outputs = [value.name for value in _leaves(fx.node.map_arg(node.args, self._values.__getitem__))]
        elif node.op == "placeholder":
            kind = self._kinds[node.name]
            self._values[node] = self._registered(self._names.get(node.name, node.name), node.meta.get("val"), kind)
            if kind is TensorKind.INPUT:
                self._inputs += [value.name for value in _leaves(self._values[node])]
        elif node.op == "get_attr":
            constant = node.meta.get("val")
            if constant is None:
                constant = operator.attrgetter(str(node.target))(self._module)
            self._values[node] = self._registered(node.name, constant, TensorKind.WEIGHT)
        elif node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            self._values[node] = self._values[source][index]
        else:
            self._call(node)

    def _registered(self, name: str, value: Any, kind: TensorKind) -> Any:
        """A node's value with every tensor in it registered, called ``name``, or ``name.0``, ``name.1``, ... if it is several."""
        if isinstance(value, torch.Tensor):
            return self._tensor(name, value, kind)
        if isinstance(value, tuple | list):
            return tuple(self._registered(f"{name}.{i}", item, kind) for i, item in enumerate(value))
        return value

    def _tensor(self, name: str, value: torch.Tensor, kind: TensorKind) -> Value:
        while name in self._tensors:
            name += "_"
        try:
            storage, strides = value.untyped_storage(), value.stride()
        except (NotImplementedError, RuntimeError) as error:
            raise ModelError(f"{name}: tensors of layout {value.layout} have no plain storage, and cannot be placed") from error
        self._keep.append(value)
        owner = self._owners.setdefault(storage._cdata, name)
        shape = tuple(int(size) for size in value.shape)
        count = 1
        for size, stride in zip(shape, strides, strict=True):
            count *= size if stride or not size else 1
        dtype = str(value.dtype).removeprefix("torch.")
        size = int(storage.nbytes())
        touched = min(count * value.dtype.itemsize, size)
        if owner == name:
            self._tensors[name] = Tensor(name, shape, dtype, size, kind)
        else:
            self._tensors[name] = Tensor(name, shape, dtype, touched, self._tensors[owner].kind, owner)
        return Value(name, shape, dtype, touched, value.dtype.is_floating_point)

    def _call(self, node: fx.Node) -> None:
        known = isinstance(node.target, torch._ops.OpOverload)
        signature = _signature(node.target) if known else _Signature(str(node.target), (), (), (), False)
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), self._values.__getitem__)
        if known:
            arguments = dict(zip(signature.arguments, args, strict=False)) | kwargs
        else:
            arguments = {str(i): value for i, value in enumerate(pytree.tree_leaves((args, kwargs)))}
        values = self._registered(node.name, node.meta.get("val"), TensorKind.ACTIVATION)
        self._values[node] = values
        results = tuple(_leaves(values))
        written = self._written(signature, arguments)
        fresh = [value for value in results if self._tensors[value.name].alias_of is None]
        if signature.name in ALLOCATIONS or not (results or written):
            return
        if not fresh and not written:
            if operands := list(_leaves(tuple(arguments.values()))):
                source = next((o for o in operands if self._storage(o) == self._storage(results[0])), operands[0])
                writes = tuple(Access(value.name, 0) for value in results)
                self._ops.append(Op(node.name, signature.name, OpClass.VIEW, (Access(source.name, 0),), writes))
            return
        call = Call(signature.name, arguments, results)
        self._ops.append(self._operator(node.name, call, signature, fresh, written))

    def _written(self, signature: _Signature, arguments: Mapping[str, Any]) -> list[Value]:
        """Argument tensors that the call updates in place."""
        names = signature.written
        if signature.name in SILENTLY_UPDATED and arguments.get("training"):
            names += SILENTLY_UPDATED[signature.name]
        return [value for name in names for value in _leaves(arguments.get(name))]

    def _storage(self, value: Value) -> str:
        return self._tensors[value.name].storage

    def _operator(self, name: str, call: Call, signature: _Signature, fresh: list[Value], written: list[Value]) -> Op:
        work = _work(call, signature)
        touched = work.touched or {}
        reads: dict[str, int] = {}
        for key, argument in call.arguments.items():
            if key in signature.overwritten or (call.name in SHAPE_ONLY and key == "self"):
                continue
            for value in _leaves(argument):
                if size := touched.get(key, value.bytes):
                    reads[value.name] = max(size, reads.get(value.name, 0))
        writes = {value.name: value.bytes for value in (*fresh, *written)}
        operands = [*fresh, *(value for argument in call.arguments.values() for value in _leaves(argument))]
        bits = next((8 * _itemsize(value) for value in operands if value.floating), 8 * _itemsize(operands[0]))
        read, write = (tuple(Access(*item) for item in side.items()) for side in (reads, writes))
        return Op(name, call.name, work.op_class, read, write, work.nests, work.elements, bits)

    def _useful(self) -> tuple[Op, ...]:
        """Operators that outputs, or weights and inputs that are updated, depend on."""
        live = {self._tensors[name].storage for name in self._outputs}
        live |= {name for name, tensor in self._tensors.items() if tensor.kind is not TensorKind.ACTIVATION}
        kept = []
        for op in reversed(self._ops):
            if any(self._tensors[access.tensor].storage in live for access in op.writes):
                kept.append(op)
                live.update(self._tensors[access.tensor].storage for access in op.reads)
        return tuple(reversed(kept))

    def _used(self, ops: tuple[Op, ...]) -> dict[str, Tensor]:
        """Tensors that operators or callers use, and the owners of their storage, in order of definition."""
        used = {*self._inputs, *self._outputs} | {access.tensor for op in ops for access in (*op.reads, *op.writes)}
        used |= {self._tensors[name].storage for name in used}
        return {name: tensor for name, tensor in self._tensors.items() if name in used}

    def _precision(self, ops: tuple[Op, ...]) -> str:
        """Type in which most multiply-accumulates happen; without any, the type of most bytes."""
        votes: Counter[str] = Counter()
        for op in ops:
            if op.nests:
                votes[self._tensors[op.reads[0].tensor].dtype] += op.macs
        if not votes:
            for tensor in self._tensors.values():
                votes[tensor.dtype] += tensor.bytes if tensor.dtype in _PRECISIONS else 0
        best = max(votes, key=lambda dtype: votes[dtype], default="float32")
        return _PRECISIONS.get(best, best)


def _work(call: Call, signature: _Signature) -> Work:
    found = RULES.get(call.name)
    if found is not None:
        return found(call)
    # Torch marks what works element by element; backward kernels of activations among them.
    return elementwise(call) if signature.pointwise else Work(OpClass.UNKNOWN)


def _itemsize(value: Value) -> int:
    return int(getattr(torch, value.dtype).itemsize)


def _leaves(values: Any) -> Iterator[Value]:
    """Tensors in a nest of tuples, lists and dicts, in order."""
    if isinstance(values, Value):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _leaves(value)
    elif isinstance(values, dict):
        yield from _leaves(tuple(values.values()))
