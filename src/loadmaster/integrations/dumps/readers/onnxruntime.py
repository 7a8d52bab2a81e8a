"""ONNX Runtime: a profile `NAME.json` of a session that ran at least twice, with the optimised
model `NAME.onnx` beside it.

``SessionOptions.enable_profiling`` writes the profile, which has memory sizes from version 1.31 on;
``optimized_model_filepath`` is the path of the model. The arena is the block that the second run
allocates for all its activations; outputs of the network are outside. The profile gives order and
sizes, the model the edges. A result without an allocation is in place of an operand, if only one
operand is possible. The profile has no addresses; the arena's bytes are measured.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.errors import AllocationError, package
from loadmaster.integrations.dumps.arena import DumpedArena, DumpedBuffer, arena_of
from loadmaster.integrations.dumps.text import number_in, read_bytes
from loadmaster.workloads.graph import width_of

_ALIGNMENT = 256
"""Alignment in bytes of tensor sizes in the block."""
_MOST_DIMENSIONS = 64
_KERNEL = "_kernel_time"
_VIEWS = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"))
"""Operators whose result is a view of their first operand."""
_IN_PLACE = frozenset(("Add", "Sub", "Mul", "Div", "Relu", "Sigmoid", "Tanh", "Sum", "Clip"))
"""Operators that overwrite an operand if possible."""
_TYPES = "float double float16 bfloat16 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_WIDTHS = {name: (width_of(name) or 32) // 8 for name in _TYPES.split()}


@dataclass(frozen=True)
class _KernelRun:
    """A run of a kernel: bytes of each result, allocated bytes, and bytes in use before it."""

    name: str
    kind: str
    sizes: tuple[int, ...]
    allocated: int
    before: int


def read(path: Path) -> list[DumpedArena]:
    """Read the block of one session.

    Raises
    ------
    AllocationError
        If one of the two files cannot be read or is malformed, if they do not belong together, or
        if there is no block; the message names the file and the kernel.
    MissingPackageError
        If the package onnx is not installed.
    """
    runs = _runs(path)
    if len(runs) < 2:
        raise AllocationError(
            f"{path}: holds {len(runs)} runs: run the session twice, because the first one makes"
            " the plan"
        )
    first, second = runs[0], runs[1]
    block = second[0].before + second[0].allocated - first[0].before
    if second[0].allocated == sum(second[0].sizes):
        block -= second[0].allocated
    if block <= 0:
        raise AllocationError(
            f"{path}: its second run has no block: leave enable_mem_pattern on, and run twice with"
            " the same shapes"
        )
    model = path.with_suffix(".onnx")
    return [_arena(path, first, _graph(model), block)]


READER = read


def _runs(path: Path) -> list[list[_KernelRun]]:
    """Return the kernels of every run, in order."""
    try:
        events = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        where = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise AllocationError(
            f"{path}{where}: is no whole profile ({error}): end profiling before you read it"
        ) from None
    if not isinstance(events, list):
        raise AllocationError(f"{path}: is no profile of ONNX Runtime: it must be a list of events")
    runs: list[list[_KernelRun]] = [[]]
    for number, event in enumerate(events):
        name = event.get("name") if isinstance(event, dict) else None
        if name == "model_run":
            runs.append([])
        elif isinstance(name, str) and name.endswith(_KERNEL):
            runs[-1].append(
                _node(f"{path}: event {number}", name.removesuffix(_KERNEL), event.get("args"))
            )
    return [run for run in runs if run]


def _node(spot: str, name: str, args: object) -> _KernelRun:
    """Return a kernel of the profile with the bytes it allocates and the bytes in use before it."""
    if not isinstance(args, dict) or "mem_bytes_requested_in_use" not in args:
        raise AllocationError(
            f"{spot}: kernel {name!r} has no memory in it: profile with ONNX Runtime 1.31 or later"
        )
    in_use, allocated = (
        number_in(args, key, spot, -WHOLE_LIMIT)
        for key in ("mem_bytes_requested_in_use", "mem_requested_in_use_delta")
    )
    return _KernelRun(
        name,
        str(args.get("op_name")),
        _sizes(spot, args.get("output_type_shape")),
        allocated,
        in_use - allocated,
    )


def _sizes(spot: str, outputs: object) -> tuple[int, ...]:
    """Return the bytes of results given as `[{"float": [1, 3]}, ...]`."""
    sizes = []
    for output in outputs if isinstance(outputs, list) else [None]:
        items = output.items() if isinstance(output, dict) else ()
        kind, dims = next(iter(items), (None, None))
        if (
            kind not in _WIDTHS
            or not isinstance(dims, list)
            or len(dims) > _MOST_DIMENSIONS
            or not all(type(dim) is int and dim >= 0 for dim in dims)
        ):
            raise AllocationError(
                f"{spot}: a result is {str(output)[:60]}, not a tensor of numbers: this cannot be"
                " packed"
            )
        sizes.append(_WIDTHS[kind] * math.prod(dims))
        if sizes[-1] >= WHOLE_LIMIT:
            raise AllocationError(
                f"{spot}: a result has 2^62 bytes or more: the profile is damaged"
            )
    return tuple(sizes)


def _graph(path: Path) -> Any:
    """Return the graph of the optimised model beside the profile, without its external data."""
    onnx = package("onnx", "reading ONNX Runtime's dumps")
    if not os.path.isfile(path):
        raise AllocationError(
            f"{path}: is not there: put the optimised model (optimized_model_filepath) beside the"
            " profile, under this name"
        )
    try:
        return onnx.load(str(path), load_external_data=False).graph
    except Exception as error:  # Whatever protobuf makes of a damaged file.
        raise AllocationError(
            f"{path}: is no ONNX model ({type(error).__name__}): give the optimised one"
        ) from None


def _arena(path: Path, run: Sequence[_KernelRun], graph: Any, block: int) -> DumpedArena:
    """Return the arena of one run; the first result of a kernel is in place of an operand if the
    profile shows it."""
    nodes = _nodes_of_run(path, run, graph)
    outside = {value.name for value in graph.output}
    source: dict[str, str] = {}
    for ran, node in nodes:
        if ran.kind in _VIEWS and node.output[0] not in outside:
            source[node.output[0]] = source.get(node.input[0], node.input[0])
    made, deaths = {}, {}
    for instant, (ran, node) in enumerate(nodes):
        for name in node.input:
            deaths[source.get(name, name)] = instant
        for name, size in zip(filter(None, node.output), ran.sizes, strict=True):
            if name not in outside and name not in source:
                made[name] = instant, -(-size // _ALIGNMENT) * _ALIGNMENT
    number = {name: at for at, name in enumerate(made)}
    buffers = [
        DumpedBuffer(name, born, max(deaths.get(name, 0), born), size)
        for name, (born, size) in made.items()
    ]
    pairs = _in_place(nodes, buffers, number, source)
    return arena_of(path, "block", buffers, _ALIGNMENT, stated=block, in_place=pairs)


def _nodes_of_run(
    path: Path, run: Sequence[_KernelRun], graph: Any
) -> list[tuple[_KernelRun, Any]]:
    """Return kernels with their nodes in the model."""
    by_name = {node.name: node for node in graph.node}
    found = []
    for ran in run:
        node = by_name.get(ran.name)
        if node is None or len([name for name in node.output if name]) != len(ran.sizes):
            raise AllocationError(
                f"{path}: kernel {ran.name!r} is not as in {path.with_suffix('.onnx').name}: give"
                " the optimised model of the same session, with a name for each node and without"
                " control flow"
            )
        found.append((ran, node))
    return found


def _in_place(
    nodes: Sequence[tuple[_KernelRun, Any]],
    buffers: Sequence[DumpedBuffer],
    number: Mapping[str, int],
    source: Mapping[str, str],
) -> list[tuple[int, int]]:
    """Return pairs of operands and results that share their memory: the result has no allocation,
    and the operand of the same size is not used later.

    Kernels outside of `_IN_PLACE` and `_VIEWS` may instead have reused a free buffer, so they count
    only if there is none.
    """
    pairs: dict[int, int] = {}
    idle = Counter[int]()
    for instant, (ran, node) in enumerate(nodes):
        for at in (number[name] for name in node.output if name in number):
            size = buffers[at].size
            if ran.allocated == 0 and size and len(ran.sizes) == 1:
                ending = {
                    other
                    for each in node.input
                    if (other := number.get(source.get(each, each))) is not None
                    and buffers[other].last == instant
                    and buffers[other].size == size
                }
                if ending and (ran.kind in _IN_PLACE or not idle[size]):
                    pairs[min(ending)] = at
                elif idle[size]:
                    idle[size] -= 1
        used = {source.get(each, each) for each in (*node.input, *node.output)} & number.keys()
        for own in {number[name] for name in used} - pairs.keys():
            idle[buffers[own].size] += buffers[own].last == instant
    return list(pairs.items())
