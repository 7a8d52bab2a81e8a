"""Builds a :class:`~loadmaster.workloads.graph.Graph` from calls of torch operators on tensors
without bytes.

The calls come from running a module (:mod:`loadmaster.workloads.frontends.torch.capture`). Tensors
that share a storage are one tensor and its aliases, whatever the operators are called: results that
lie in an argument's storage are views, or updates in place where the operator's signature says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

from loadmaster.core.errors import ModelError
from loadmaster.core.names import free_name
from loadmaster.workloads.frontends.onnx.rules import Work
from loadmaster.workloads.frontends.torch.ops import (
    ALLOCATIONS,
    OVERWRITING,
    PARTLY_WRITING,
    RULES,
    SHAPE_ONLY,
    SILENTLY_UPDATED,
    elementwise,
    indexed_bytes,
)
from loadmaster.workloads.frontends.torch.windows import OpCall, OpValue, division, in_storage
from loadmaster.workloads.graph import (
    Access,
    Graph,
    Invocation,
    Op,
    OpClass,
    Tensor,
    TensorKind,
    assembled,
    merged,
)


def invocation(
    target: Any, args: Any, kwargs: dict[str, Any], results: tuple[str, ...]
) -> Invocation | None:
    """Encode the call of an operator; None if an argument has no JSON."""
    tensors: list[str] = []

    def described(value: Any) -> Any:
        """Return JSON data for a value that has none of its own, and note the names of tensors."""
        if isinstance(value, OpValue):
            tensors.append(value.name)
            return {"tensor": [value.dtype, value.shape, value.strides]}
        return {_TEXTS[type(value)]: str(value).removeprefix("torch.")}

    try:
        text = json.dumps([str(target), args, kwargs], default=described, separators=(",", ":"))
    except KeyError:
        # Such as of a generator of random numbers.
        return None
    return Invocation(text, tuple(tensors), results)


_TEXTS = {
    torch.dtype: "dtype",
    torch.device: "device",
    torch.layout: "layout",
    torch.memory_format: "format",
}
"""Keys of arguments that are written as their text."""


@dataclass(frozen=True, slots=True)
class _Signature:
    """How an operator uses its arguments: their names, which it writes, and which of these it does
    not read."""

    name: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]
    overwritten: tuple[str, ...]
    pointwise: bool


@cache
def _signature(target: Any) -> _Signature:
    """Return an ATen operator's name without a trailing underscore, its arguments, and which of
    them it writes or overwrites, from its schema."""
    schema = target._schema
    plain = target._opname
    name = plain if plain.endswith("__") else plain.removesuffix("_")
    written = tuple(
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    )
    blind = (
        written[:1] if name in OVERWRITING else tuple(a.name for a in schema.arguments if a.is_out)
    )
    return _Signature(
        name,
        tuple(a.name for a in schema.arguments),
        # What changes the shape of its argument in place changes no bytes.
        () if torch.Tag.inplace_view in target.tags else written,
        blind,
        torch.Tag.pointwise in target.tags,
    )


class Recording:
    """Operators and tensors in the order in which they are seen.

    Tensors are known by identity, as long as they keep their storage; one that was never seen
    belongs to the storage that it lies in, and one in a storage that was never seen is a constant.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._owners: dict[int, tuple[str, Any]] = {}
        self._known: dict[int, tuple[torch.Tensor, str]] = {}
        self._ops: list[Op] = []
        self._layouts: dict[str, OpValue] = {}
        self._inputs: list[str] = []

    def given(self, name: str, tensor: torch.Tensor, kind: TensorKind) -> None:
        """Register a tensor that exists before the first call."""
        known = self._register(name, tensor, kind)
        if kind is TensorKind.INPUT:
            self._inputs.append(known.name)

    def call(self, name: str, target: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Record one call of an operator, after it ran."""
        signature = _signature(target)
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._value, (args, kwargs))
        arguments = dict(zip(signature.arguments, args, strict=False)) | kwargs
        results, fresh = self._results(name, result)
        names = signature.written
        if arguments.get("training"):
            names += SILENTLY_UPDATED.get(signature.name, ())
        written = [value for key in names for value in _leaves(arguments.get(key))]
        if signature.name in ALLOCATIONS or not (results or written):
            return
        # What writes no element launches no kernel.
        if any(value.touched for value in (*fresh, *written)):
            run = invocation(target, args, kwargs, tuple(value.name for value in fresh))
            inputs = tuple(_leaves(arguments))
            call = OpCall(name, signature.name, "torch", arguments, inputs, results)
            self._ops.append(self._op_of(call, signature, fresh, written, run))
        elif operands := [value for value in _leaves(arguments) if value not in results]:
            storage = self._storage(results[0])
            source = next(
                (value for value in operands if self._storage(value) == storage), operands[0]
            )
            views = tuple(Access(value.name, 0) for value in results)
            self._ops.append(
                Op(name, signature.name, OpClass.VIEW, (Access(source.name, 0),), views)
            )

    def graph(self, name: str, source: str, outputs: Iterable[torch.Tensor]) -> Graph:
        """Build the graph of what was recorded, without calls on whose results neither ``outputs``,
        which go to the caller, nor updated weights and inputs depend."""
        names = tuple(dict.fromkeys(self._value(output).name for output in outputs))
        live = {self._tensors[label].storage for label in names} | {
            label
            for label, tensor in self._tensors.items()
            if tensor.kind is not TensorKind.ACTIVATION
        }
        kept = []
        for op in reversed(self._ops):
            if any(self._tensors[access.tensor].storage in live for access in op.writes):
                kept.append(op)
                live.update(self._tensors[access.tensor].storage for access in op.reads)
        inputs = tuple(self._inputs)
        return assembled(name, source, tuple(kept[::-1]), self._tensors, inputs, names)

    def _value(self, tensor: torch.Tensor) -> OpValue:
        """Return the value of a tensor as it is now: its shape and its storage may have changed.
        One in an unknown storage is registered as a constant."""
        storage = _storage(tensor)
        if storage._cdata not in self._owners:
            return self._register(f"constant_{len(self._owners)}", tensor, TensorKind.WEIGHT)
        owner, _ = self._owners[storage._cdata]
        _, name = self._known.get(id(tensor), (None, owner))
        value = _describe(name if self._tensors[name].storage == owner else owner, tensor)
        self._known[id(tensor)] = tensor, value.name
        kept = self._tensors[owner]
        if storage.nbytes() > kept.bytes:
            self._tensors[owner] = replace(kept, shape=value.shape, bytes=storage.nbytes())
            self._layouts[owner] = value
        return value

    def _register(self, name: str, tensor: torch.Tensor, kind: TensorKind) -> OpValue:
        """Register a tensor under its own name, as the owner of a new storage or an alias of a
        known one."""
        name = free_name(name, self._tensors)
        storage = _storage(tensor)
        # A storage that is kept is at an address of its own.
        owner, _ = self._owners.setdefault(storage._cdata, (name, storage))
        value = _describe(name, tensor)
        if owner == name:
            self._layouts[name] = value
            self._tensors[name] = Tensor(name, value.shape, value.dtype, storage.nbytes(), kind)
        else:
            self._tensors[name] = Tensor(
                name, value.shape, value.dtype, value.touched, self._tensors[owner].kind, owner
            )
        self._known[id(tensor)] = tensor, name
        return value

    def _results(self, name: str, result: Any) -> tuple[tuple[OpValue, ...], tuple[OpValue, ...]]:
        """Return the tensors of a call's result, and those of them in new storages."""
        results, fresh = [], []
        single = isinstance(result, torch.Tensor)
        for position, tensor in enumerate(pytree.tree_leaves(result)):
            if not isinstance(tensor, torch.Tensor):
                continue
            if id(tensor) not in self._known:
                new = _storage(tensor)._cdata not in self._owners
                value = self._register(
                    name if single else f"{name}.{position}", tensor, TensorKind.ACTIVATION
                )
                fresh += [value] if new else []
            results.append(self._value(tensor))
        return tuple(results), tuple(fresh)

    def _storage(self, value: OpValue) -> str:
        """Return the name of a value's storage."""
        return self._tensors[value.name].storage

    def _op_of(
        self,
        call: OpCall,
        signature: _Signature,
        fresh: tuple[OpValue, ...],
        written: list[OpValue],
        run: Invocation | None,
    ) -> Op:
        """Return the graph's operator for a recorded call: bytes and windows of its reads and
        writes, and its work. ``fresh`` are new results, ``written`` are updated in place."""
        work = _work(call, signature)
        found, windows = division(call, work)
        reads = []
        touched, part = work.touched or {}, None
        if written and call.kind in PARTLY_WRITING:
            part = indexed_bytes(call)
            adds = {"add", "reduce"} & {*call.kind.split("_")} or call.attrs.get("accumulate")
            touched = {"self": part if adds else 0}
        for key, argument in call.attrs.items():
            if key in signature.overwritten or (call.kind in SHAPE_ONLY and key == "self"):
                continue
            for value in _leaves(argument):
                layout = self._layouts[self._storage(value)]
                own = windows.get(id(value), ())
                if view := value != layout:
                    own = own and in_storage(own, value, layout)
                if size := touched.get(key, value.touched):
                    reads.append(Access(value.name, size, own, of_storage=view and bool(own)))
        writes = {value.name: value.touched for value in (*fresh, *written) if value.touched}
        writes |= {value.name: part for value in written if part}
        operands = [*fresh, *call.inputs]
        floating = (value for value in operands if "float" in value.dtype)
        bits = 8 * next(floating, operands[0]).itemsize
        read = merged(reads, {value.name: value.touched for value in operands})
        write = tuple(Access(*item) for item in writes.items())
        nests = tuple(replace(nest, loops=found.loops) for nest in work.nests)
        return Op(
            call.name,
            call.kind,
            work.op_class,
            read,
            write,
            nests,
            work.elements,
            bits,
            run,
            found.axes,
            found.steps_of(call),
            found.copies and all(access.windows for access in read),
        )


def _work(call: OpCall, signature: _Signature) -> Work:
    """Return the work of a call by its rule, or as element-wise work; unknown otherwise."""
    if rule := RULES.get(call.kind):
        return rule(call)
    if call.kind.startswith("_foreach_"):
        lists = list(call.attrs.values())
        return Work(OpClass.ELEMENTWISE, elements=sum(one.count for one in _leaves(lists[0])))
    # Torch marks what works element by element; backward kernels of activations among them.
    return elementwise(call) if signature.pointwise else Work(OpClass.UNKNOWN)


def _describe(name: str, tensor: torch.Tensor) -> OpValue:
    """Return shape, layout and bytes of a tensor; a dimension of stride 0 repeats the same
    bytes."""
    shape = tuple(map(int, tensor.shape))
    strides = tuple(map(int, tensor.stride()))
    pairs = zip(shape, strides, strict=True)
    count = math.prod(size for size, stride in pairs if stride or not size)
    dtype = tensor.dtype
    kind = str(dtype).removeprefix("torch.")
    return OpValue(
        name,
        shape,
        kind,
        kind,
        TensorKind.ACTIVATION,
        strides=strides,
        touched=min(count * dtype.itemsize, int(tensor.untyped_storage().nbytes())),
        itemsize=dtype.itemsize,
        offset=int(tensor.storage_offset()),
    )


def _storage(tensor: torch.Tensor) -> Any:
    """Return a tensor's storage; raise ModelError if it has none."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError) as error:
        raise ModelError(
            f"a tensor of layout {tensor.layout} has no plain storage, and cannot be placed"
        ) from error


def _leaves(values: Any) -> list[OpValue]:
    """Return all values in nested tuples, lists and dicts, in order."""
    return [value for value in pytree.tree_leaves(values) if isinstance(value, OpValue)]
