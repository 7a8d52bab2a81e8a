"""Runs prepared plans: calls in order, with copies before and during them, under one budget for all
graphs of a model."""

from __future__ import annotations

import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils._pytree import tree_map

from loadmaster import _native
from loadmaster.core.arrays import Floats
from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile.captured import (
    Call,
    Captured,
    Owner,
    Part,
    Run,
    View,
    is_view,
    on_storage,
    views,
)
from loadmaster.integrations.torch_compile.devices.allocator_hook import free_library_buffers
from loadmaster.integrations.torch_compile.devices.slow_file import (
    Copy,
    DeviceMemory,
    FastArena,
    FilePlace,
    Pending,
    pages,
)
from loadmaster.integrations.torch_compile.kernel_profile import LATER, Allocated
from loadmaster.integrations.torch_compile.persistent import Region
from loadmaster.integrations.torch_compile.placing import Placed, Problem
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor
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


class ProgramBuilder:
    """Builds all tensors at their addresses, once. ``moving`` are the caller's storages that the
    plan moves.

    ``shifts`` are bytes that come before storages in their place, in the arena as in the file of
    weights that they are read from.
    """

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
        """The program of the plan."""
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
                    t = self.number.get(view.storage)
                    kept_bytes = self.captured.storages[view.storage].bytes
                    handles[view] = (
                        0 if t is None else self.stays[t][0][2],
                        kept_bytes if t is not None or view.storage in resting else 0,
                    )
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


_SESSION = "_loadmaster_session"


class Runner(Protocol):
    """Runs the second part of sessions that it began."""

    def backward(self, session: Session, arguments: Sequence[Any]) -> list[Any]:
        """Run the second part of a session."""


class Session:
    """One run through a plan, from the start of its first part to the end of its last; between them
    its tensors may be offloaded.

    A session exists as long as the tensors that autograd has saved from it; then its slow memory is
    released. ``tensors`` are those of the caller that any part may use, by storage, and ``places``
    those in the slow memory of the ones that move. ``gradients`` are those that move, by storage:
    they are in the slow memory when the second part returns them. ``updates`` are those that the
    run is to make, by the position of the gradient, with how many there were of each when it began,
    and ``parameters`` what they update (by ``id``). ``runner`` runs the second part.
    ``offload_slot`` is the place in the slow memory of what was offloaded between the parts, None
    if nothing is.
    """

    def __init__(
        self,
        runner: Runner,
        program: Program,
        memory: DeviceMemory,
        tensors: Mapping[int, torch.Tensor],
        places: dict[int, Region | FilePlace],
        updates: Mapping[int, int],
        parameters: frozenset[int],
    ) -> None:
        self.runner, self.program, self.memory, self.tensors = runner, program, memory, tensors
        self.places, self.updates, self.parameters = places, updates, parameters
        self.gradients: dict[int, torch.Tensor] = {}
        self.pending: dict[int, Pending] = {}
        self.offload_slot: int | None = None
        self.finished = False
        self._held: list[tuple[int, int]] = []
        self._give_back = weakref.finalize(self, _release, memory, self._held, self.pending)
        self.slot = self._reserve(program.slow_bytes)

    def again(self) -> Session:
        """Another run on the same tensors."""
        given = self.runner, self.program, self.memory, self.tensors
        return Session(*given, self.places, self.updates, self.parameters)

    def resting(self, view: View) -> SlowTensor:
        """A tensor that rests in the slow memory throughout the run."""
        if view.storage in self.program.resting:
            assert self.memory.file is not None
            start = self.slot + self.program.resting[view.storage]
            return SlowTensor(view, self.memory.file, start)
        place = self.places[view.storage]
        return SlowTensor(view, place.file, place.slot + place.shift)

    def _reserve(self, bytes: int) -> int:
        slot = self.memory.reserve(bytes)
        self._held.append((slot, bytes))
        return slot

    def drain(self) -> None:
        """Wait for all copies under way; those that fail are ignored."""
        _drain(self.pending)

    def save_changes(self, stopped: int) -> None:
        """Write to the slow memory what updates have changed, when a step has stopped before its
        end, at call ``stopped``."""
        for i, last in self.program.changed.items():
            if last < stopped <= self.program.placed.placement.moves[i].start:
                _start(self, i).wait()

    def offload(self) -> None:
        """Copy what waits in the arena to the slow memory, because another run needs the arena."""
        for pending in self.pending.values():
            pending.wait()
        slot = self._reserve(sum(bytes for _, bytes in self.program.kept))
        try:
            self._carry(slot, to_fast=False)
        except BaseException:
            self.memory.synchronize()
            self._release_last()
            raise
        self.offload_slot = slot

    def reload(self) -> None:
        """Copy what was offloaded back to its addresses in the arena."""
        assert self.offload_slot is not None
        try:
            self._carry(self.offload_slot, to_fast=True)
        except BaseException:
            self.memory.synchronize()
            raise
        self.offload_slot = None
        self._release_last()

    def _carry(self, slot: int, to_fast: bool) -> None:
        for offset, bytes in self.program.kept:
            self.memory.copy(self.program.arena, Copy(to_fast, offset, slot, bytes)).wait()
            slot += bytes

    def _release_last(self) -> None:
        self.memory.release(*self._held.pop())

    def end(self) -> None:
        """End the run, complete or failed, and release its slow memory."""
        self.finished = True
        self.offload_slot = None
        self.gradients.clear()
        self._give_back()

    def abandon(self) -> None:
        """End a failed run, once no copy can touch its memory any more."""
        self.finished = True
        self.drain()
        self.memory.synchronize()
        self.end()


def _drain(pending: dict[int, Pending]) -> None:
    for copy in pending.values():
        try:
            copy.wait()
        except LoadmasterError:
            continue
    pending.clear()


def _release(
    memory: DeviceMemory, held: list[tuple[int, int]], pending: dict[int, Pending]
) -> None:
    _drain(pending)
    while held:
        memory.release(*held.pop())


class Times:
    """Times of a run, in seconds: every kernel and copy, ``waiting`` in total for copies, of that
    ``starting`` them, and all ``inside``.

    ``copied_results`` counts results that were not written to their planned address, ``unforeseen``
    allocations outside of the plan.
    """

    def __init__(self, kernels: int, copies: int) -> None:
        self.kernels = np.zeros(kernels)
        self.copies = np.zeros(copies)
        self.waiting = self.starting = self.inside = 0.0
        self.copied_results = 0
        self.unforeseen = 0


def run_part(session: Session, part: Part, arguments: Sequence[Any], times: Times) -> list[Any]:
    """Run the calls of a part and return its results, with handles for tensors that stay in the
    arena or the slow memory."""
    program = session.program
    resting = program.captured.streamed
    known: dict[View, torch.Tensor] = {}
    roots: dict[int, torch.Tensor] = {}
    for i, (slot, argument) in enumerate(zip(part.given, arguments, strict=True)):
        if isinstance(slot, View) and i not in part.saved:
            known[slot] = argument
            roots.setdefault(slot.storage, argument)
    for storage, tensor in chain(program.captured.constants.items(), session.tensors.items()):
        roots.setdefault(storage, tensor)

    def find(view: Any) -> Any:
        if not isinstance(view, View):
            return view
        if view not in known:
            root = roots[view.storage]
            start = root.storage_offset() * root.dtype.itemsize // view.dtype.itemsize
            known[view] = on_storage(
                root.untyped_storage(), view._replace(offset=view.offset + start)
            )
        return known[view]

    def operand(view: Any) -> Any:
        return (
            session.resting(view)
            if isinstance(view, View) and view.storage in resting
            else find(view)
        )

    base = program.arena.base
    free_library_buffers()  # those of whoever has run before
    seconds = times.kernels
    k = part.first
    now = time.perf_counter()
    try:
        for k in range(part.first, part.end):
            step = program.steps[k]
            if step.waits or step.blocking or step.starts or step.ceiling is not None:
                _copy_around(session, k, times)
                now, before = time.perf_counter(), now
                times.waiting += now - before
            launch = program.launches[k]
            out = _called(launch, operand, base, times)
            if launch.frees:
                free_library_buffers()
            for result in launch.results:
                value = out[result.index] if isinstance(out, tuple | list) else out
                if result.planned is None:
                    known[result.view] = value
                    roots[result.view.storage] = value
                elif value.untyped_storage().data_ptr() != result.address:
                    result.planned.copy_(value)
                    times.copied_results += 1
                del value  # what was copied would take memory beside the next kernel's results
            del out
            now, before = time.perf_counter(), now
            seconds[k] = now - before
        k = part.end
        if k == len(program.launches):
            _copy_around(session, k, times)
            times.waiting += time.perf_counter() - now
    except BaseException:
        session.drain()
        session.memory.synchronize()
        session.save_changes(k)
        raise

    def given_back(value: Any) -> Any:
        if value is Run.THIS:
            return _marked(torch.empty(0), session)
        if _planned(program, value):
            return _handle(session, value)
        if isinstance(value, View) and value.storage in session.gradients:
            return session.gradients.pop(
                value.storage
            )  # autograd keeps it as it is only if nobody else holds it
        return find(value)

    return [given_back(value) for value in part.returned]


def _called(launch: Launch, operand: Callable[[Any], Any], base: int, times: Times) -> Any:
    """What the target of a launch returns; what it allocates meanwhile gets the addresses of its
    script."""
    given, named = _filled(launch, operand) if launch.loose else (launch.arguments, launch.keywords)
    script = (
        launch.script
        if launch.first is None or getattr(launch.target, "begun", True)
        else launch.first
    )
    if script is None:
        return launch.target(*given, **named)
    try:
        script.begin(base)  # inside: an interrupt may come between any two calls
        return launch.target(*given, **named)
    finally:
        times.unforeseen += _native.end_script()


def _copy_around(session: Session, k: int, times: Times) -> None:
    """Wait for and start the copies that are due before kernel ``k``."""
    step = session.program.steps[k]
    for i in step.waits:
        _wait(session, i, times)
    for i in step.blocking:
        session.pending[i] = _start(session, i)
        _wait(session, i, times)
    if step.ceiling is not None:
        session.program.arena.drop(step.ceiling)
    if step.starts:
        begun = time.perf_counter()
        for i in step.starts:
            session.pending[i] = _start(session, i)
        times.starting += time.perf_counter() - begun


def _wait(session: Session, i: int, times: Times) -> None:
    """Wait for copy ``i``; it stays in ``pending`` until it is complete, so that it is not lost on
    an interrupt."""
    if i in session.pending:
        times.copies[i] = session.pending[i].wait()
        del session.pending[i]


def _start(session: Session, i: int) -> Pending:
    copy = session.program.copies[i]
    persistent = session.program.persistent.get(i)
    if persistent is None:
        copy = copy._replace(slot=copy.slot + session.slot)
    else:
        place = session.places[persistent]
        copy = copy._replace(slot=place.slot, file=place.file)
    return session.memory.copy(session.program.arena, copy)


def _filled(launch: Launch, find: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arguments = tuple(
        (
            find(a)
            if isinstance(a, View)
            else tree_map(find, a, is_leaf=is_view)
            if isinstance(a, list)
            else a
        )
        for a in launch.arguments
    )
    keywords = (
        {name: find(a) for name, a in launch.keywords.items()}
        if launch.keywords
        else launch.keywords
    )
    return arguments, keywords


def _planned(program: Program, value: Any) -> bool:
    return isinstance(value, View) and program.captured.storages[value.storage].owner is Owner.PLAN


def _handle(session: Session, view: View) -> torch.Tensor:
    """Make what autograd keeps for a tensor that the plan manages: its shape and the session, but
    not its bytes."""
    program = session.program
    offset, bytes = program.handles[view]
    if bytes:
        handle = program.arena.tensor(view, offset, bytes)
    else:
        handle = torch.empty_strided(
            view.size, view.stride, dtype=view.dtype, device=program.captured.device
        )
    return _marked(handle, session)


def _marked(tensor: torch.Tensor, session: Session) -> torch.Tensor:
    """Have a tensor that autograd keeps name the run that it is from."""
    setattr(tensor, _SESSION, session)
    return tensor


def session_of(arguments: Sequence[Any]) -> Session:
    """Return the run whose forward pass has saved these arguments of a backward pass. Raises
    `LoadmasterError`."""
    named = (getattr(argument, _SESSION, None) for argument in arguments)
    session: Session | None = next((one for one in named if one is not None), None)
    if session is not None:
        part = session.program.captured.parts[1]
        ours = {part.given.index(Run.THIS), *part.saved}
        if all(getattr(arguments[i], _SESSION, None) is session for i in ours):
            return session
        session.abandon()
    raise LoadmasterError(
        "saved tensors were replaced between forward and backward (saved_tensors_hooks): the plan"
        " cannot go on"
    )
