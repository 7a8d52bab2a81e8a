"""Prepares a plan to run: for every call its operands at their addresses, its allocations, and the
copies around it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from loadmaster.core.arrays import Floats
from loadmaster.integrations.torch_compile.captured import Call, Captured, Owner, View, views
from loadmaster.integrations.torch_compile.devices.device_memory import (
    Copy,
    DeviceMemory,
    FastArena,
)
from loadmaster.integrations.torch_compile.devices.slow_file import pages
from loadmaster.integrations.torch_compile.kernel_profile import LATER, Allocated
from loadmaster.integrations.torch_compile.placing import Placed, Problem
from loadmaster.integrations.torch_compile.updates import Traced
from loadmaster.placement.sequence import CopyLink

_ENOUGH = 1 << 20
"""Bytes that copies of a kind must have moved for their bandwidth to be known: one of a page takes
as long as one of 100 pages."""


@dataclass(slots=True)
class Result:
    """A result of a call: its position among the results, and the tensor at its planned address, if
    the plan keeps it."""

    index: int
    view: View
    planned: torch.Tensor | None
    address: int


@dataclass(slots=True)
class Launch:
    """One call, ready to run; ``loose`` if operands are not known before, ``first`` the script of
    an update that makes its state.

    With ``frees`` the matrix library's buffers are freed after the call.
    """

    target: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    loose: bool
    script: Any
    results: tuple[Result, ...]
    first: Any = None
    frees: bool = False


@dataclass(slots=True)
class Step:
    """What happens before a call, in order: copies to wait for, blocking copies, memory freed from
    ``ceiling`` on, copies to start."""

    waits: list[int] = field(default_factory=list)
    blocking: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ceiling: int | None = None


@dataclass
class Program:
    """A plan that is ready to run on one arena.

    ``kept`` are the (offset, bytes) of tensors that wait in the arena between two parts.
    ``persistent`` maps copies of parameters, buffers, optimizer state and gradients to the storage,
    whose place in the slow memory does not belong to one step. ``changed`` maps those of them that
    go to the slow memory, but for gradients, to the last call that has changed the tensor.
    """

    captured: Captured
    problem: Problem
    placed: Placed
    arena: FastArena
    launches: list[Launch]
    steps: list[Step]
    copies: list[Copy]
    slow_bytes: int
    kept: tuple[tuple[int, int], ...]
    handles: dict[View, tuple[int, int]]
    persistent: dict[int, int]
    changed: dict[int, int]
    resting: dict[int, int]

    @property
    def blocking(self) -> frozenset[int]:
        """Indices of copies that no kernel overlaps."""
        return frozenset(i for step in self.steps for i in step.blocking)


def link_with_measured_bandwidths(
    link: CopyLink, copies: Sequence[Copy], blocking: frozenset[int], seconds: Floats
) -> CopyLink:
    """Return the link with the bandwidths that copies had; a kind of copy that moved little or
    nothing keeps its bandwidth."""
    found: dict[str, Any] = {}
    for name, to_fast, blocks in (
        ("to_fast", True, True),
        ("to_slow", False, True),
        ("asynchronous_to_fast", True, False),
        ("asynchronous_to_slow", False, False),
    ):
        kind = [
            i
            for i, copy in enumerate(copies)
            if copy.to_fast == to_fast and (i in blocking) == blocks and seconds[i] > 0
        ]
        moved = sum(copies[i].bytes for i in kind)
        if moved >= _ENOUGH:
            found[name] = moved / float(seconds[kind].sum())
    return replace(link, **found)


def prepare(
    traced: Traced,
    problem: Problem,
    placed: Placed,
    memory: DeviceMemory,
    moving: frozenset[int],
    shifts: Mapping[int, int],
) -> Program:
    """Build all tensors at their addresses, once. ``moving`` are the caller's storages that the
    plan moves.

    ``shifts`` are bytes that come before storages in their place, in the arena as in the file of
    weights that they are read from.
    """
    with torch.inference_mode(False), torch.no_grad():
        return _Builder(traced, problem, placed, memory, moving, shifts).program()


class _Builder:
    def __init__(
        self,
        traced: Traced,
        problem: Problem,
        placed: Placed,
        memory: DeviceMemory,
        moving: frozenset[int],
        shifts: Mapping[int, int],
    ) -> None:
        self.captured, self.profiles = traced.captured, traced.profiles
        self.problem, self.placed, self.memory, self.moving = problem, placed, memory, moving
        self.arena, self.shifts = memory.arena(placed.arena), shifts
        self.number = {storage: t for t, storage in enumerate(problem.storage)}
        self.stays: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for stay, offset in zip(placed.placement.stays, placed.stays, strict=True):
            self.stays[stay.tensor].append((stay.start, stay.end, offset))
        self.tensors: dict[tuple[View, int], torch.Tensor] = {}

    def program(self) -> Program:
        launches = [self._launch(k, call) for k, call in enumerate(self.captured.calls)]
        copies, slow_bytes = self._copies()
        resting: dict[int, int] = {}
        for s in sorted(self.captured.streamed):
            if self.captured.storages[s].owner is Owner.PLAN:
                resting[s] = slow_bytes
                slow_bytes += pages(self.captured.storages[s].bytes)
        boundary = self.captured.parts[0].end
        kept = tuple(
            (offset, int(self.problem.sequence.sizes[t]))
            for t, spans in self.stays.items()
            for start, end, offset in spans
            if start < boundary <= end
        )
        handles = {}
        if len(self.captured.parts) > 1:
            for view in views(self.captured.parts[0].returned):
                if self.captured.storages[view.storage].owner is Owner.PLAN:
                    t, size = (
                        self.number.get(view.storage),
                        self.captured.storages[view.storage].bytes,
                    )
                    if view.storage in resting:
                        handles[view] = (0, size)
                    else:
                        handles[view] = (0, 0) if t is None else (self.stays[t][0][2], size)
        moved = [self.problem.storage[move.tensor] for move in self.placed.placement.moves]
        persistent = {i: storage for i, storage in enumerate(moved) if storage in self.moving}
        changed = {
            i: max(
                k
                for k, operand in self.problem.sequence.uses[move.tensor]
                if operand.write and k < move.start
            )
            for i, move in enumerate(self.placed.placement.moves)
            if i in persistent
            and not move.to_fast
            and self.captured.storages[persistent[i]].owner is Owner.CALLER
        }
        return Program(
            self.captured,
            self.problem,
            self.placed,
            self.arena,
            launches,
            self._steps(),
            copies,
            slow_bytes,
            kept,
            handles,
            persistent,
            changed,
            resting,
        )

    def _planned(self, storage: int) -> bool:
        mine = self.captured.storages[storage].owner is Owner.PLAN or storage in self.moving
        return mine and storage not in self.captured.streamed

    def _offset(self, tensor: int, k: int) -> int:
        """Return the offset of a tensor in the arena while kernel ``k`` runs."""
        return next(offset for start, end, offset in self.stays[tensor] if start <= k < end)

    def _tensor(self, view: View, k: int) -> torch.Tensor:
        storage = self.captured.storages[view.storage]
        if storage.bytes == 0:
            return torch.empty_strided(
                view.size, view.stride, dtype=view.dtype, device=self.captured.device
            )
        key = view, self._offset(self.number[view.storage], k) + self.shifts.get(view.storage, 0)
        if key not in self.tensors:
            self.tensors[key] = self.arena.tensor(view, key[1], storage.bytes)
        return self.tensors[key]

    def _launch(self, k: int, call: Call) -> Launch:
        loose = False

        def bound(leaf: Any) -> Any:
            nonlocal loose
            if not isinstance(leaf, View):
                return leaf
            if self._planned(leaf.storage):
                return self._tensor(leaf, k)
            loose = True
            return leaf

        arguments, keywords = tree_map(
            bound, (call.arguments, call.keywords), is_leaf=lambda leaf: isinstance(leaf, View)
        )
        results = []
        for i, view in enumerate(call.results):
            if not isinstance(view, View) or view.storage in self.captured.streamed:
                continue
            if view.storage in call.reads and not (call.in_place and i == 0):
                continue
            owner, size = (
                self.captured.storages[view.storage].owner,
                self.captured.storages[view.storage].bytes,
            )
            if self._planned(view.storage) and size > 0:
                offset = self._offset(self.number[view.storage], k)
                results.append(Result(i, view, self._tensor(view, k), self.arena.base + offset))
            elif owner is Owner.RETURNED or size > 0:
                results.append(Result(i, view, None, 0))
        profile = self.profiles[k]
        script = self.memory.script(self._grants(k, call, profile.allocations))
        first = (
            None
            if profile.first is None
            else self.memory.script(self._grants(k, call, profile.first))
        )
        return Launch(
            call.target,
            tuple(arguments),
            dict(keywords),
            loose,
            script,
            tuple(results),
            first,
            profile.library > 0,
        )

    def _grants(
        self, k: int, call: Call, allocations: tuple[Allocated, ...]
    ) -> list[tuple[int, int]]:
        grants = []
        for allocation in allocations:
            offset = LATER
            if allocation.result is not None:
                view = call.results[allocation.result]
                assert view is not None
                if self._planned(view.storage):
                    offset = self._offset(self.number[view.storage], k)
            elif allocation.offset != LATER:
                offset = self.placed.workspaces[k] + allocation.offset
            grants.append((allocation.bytes, offset))
        return grants

    def _copies(self) -> tuple[list[Copy], int]:
        slots: dict[int, int] = {}
        slow = 0
        copies = []
        for move in self.placed.placement.moves:
            size = int(self.problem.sequence.sizes[move.tensor])
            if move.tensor not in slots:
                slots[move.tensor] = slow
                slow += 0 if self.problem.storage[move.tensor] in self.moving else size
            spans = [
                span
                for span in self.stays[move.tensor]
                if span[0] <= move.start and move.end <= span[1]
            ]
            offset = (
                next(offset for start, _, offset in spans if start == move.start)
                if move.to_fast
                else min(spans)[2]
            )
            copies.append(Copy(move.to_fast, offset, slots[move.tensor], size))
        return copies, slow

    def _steps(self) -> list[Step]:
        steps = [Step() for _ in range(len(self.captured.calls) + 1)]
        for i, move in enumerate(self.placed.placement.moves):
            if move.start == move.end:
                steps[move.start].blocking.append(i)
            else:
                steps[move.start].starts.append(i)
                steps[move.end].waits.append(i)
        allowed = self.placed.ceilings
        for k in range(1, len(allowed)):
            if allowed[k] < allowed[k - 1]:
                steps[k].ceiling = int(allowed[k])
        return steps
