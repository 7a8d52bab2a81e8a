"""The executor: runs a plan's kernels in order, with copies before and during them."""

from __future__ import annotations

import itertools
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from loadmaster import _native
from loadmaster.core.arrays import Floats, column_of
from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile.blocks import update_of
from loadmaster.integrations.torch_compile.captured import (
    THIS_RUN,
    Call,
    GraphPart,
    Owner,
    View,
    is_view,
    on_storage,
    views,
)
from loadmaster.integrations.torch_compile.cpu_memory import (
    ArenaCopy,
    FilePlace,
    Wait,
    free_library_buffers,
    pages,
)
from loadmaster.integrations.torch_compile.kernel_profile import UNPLANNED, Allocated
from loadmaster.integrations.torch_compile.persistent import FileRegion
from loadmaster.integrations.torch_compile.placing import DeviceMemory, Placed
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor
from loadmaster.integrations.torch_compile.updates import Traced, Update
from loadmaster.placement.decisions import TensorPlacement
from loadmaster.placement.sequence import CopyLink, KernelSequence
from loadmaster.placement.timing import time_moves

_RECENT_STEPS = 6
"""Number of the latest steps whose times are kept."""
_LEAST_COPIED = 1 << 20
"""Bytes from which on measured copies give a bandwidth; latency dominates smaller copies: one of a
page takes as long as one of 100 pages."""


@dataclass(slots=True)
class Result:
    """A result of a call: its position among the call's results, its view, and the tensor at its
    planned address (None if the plan does not place it)."""

    index: int
    view: View
    planned: torch.Tensor | None


@dataclass(slots=True)
class Launch:
    """One call, ready to run.

    Attributes
    ----------
    unbound
        Whether some operands are known only at run time.
    script, first
        Allocation scripts of the call, and of the first call of an optimizer's update, which
        allocates its state.
    update
        The optimizer's update that the call makes, whole or in blocks; else None.
    frees
        Whether the matrix library's buffers are freed after the call.
    """

    target: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    unbound: bool
    script: Any
    results: tuple[Result, ...]
    first: Any = None
    update: Update | None = None
    frees: bool = False


@dataclass(slots=True)
class CallPreparation:
    """Actions before a call, in order: copies to wait for, blocking copies, arena memory to free
    from address ``ceiling`` on (None: none), copies to start. Copies are indices."""

    waits: list[int] = field(default_factory=list)
    blocking: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ceiling: int | None = None


class ExecutablePlan:
    """An executable plan on one arena, with all tensors created at their addresses.

    Attributes
    ----------
    captured, problem, placed, memory
        The graph, its placement problem and placement, and the device's memory.
    launches, steps
        The calls, and the actions before each of them and after the last.
    copies, slow_bytes
        All copies, and the bytes of slow memory that a run reserves for them.
    streamed_offsets
        Storages of the plan that stay in slow memory, each with its offset in a run's slow memory.
    kept
        The (storage, offset, bytes) of tensors that stay in the arena between the two parts.
    persistent
        For copies of parameters, buffers, optimizer state and gradients, the storage by index of
        the copy. Their places in slow memory outlive a run.
    """

    def __init__(
        self,
        traced: Traced,
        placed: Placed,
        memory: DeviceMemory,
        moving: frozenset[int],
        shifts: Mapping[int, int],
    ) -> None:
        """Create the tensors of a plan that moves the caller's storages in ``moving``. ``shifts``
        are, by storage, the bytes from the beginning of its first page, as in its file of
        weights."""
        self.captured, self.problem, self.placed = traced, placed.problem, placed
        self.memory, self.arena = memory, memory.arena(placed.arena)
        self._shifts = shifts
        self._number = {storage: t for t, storage in enumerate(self.problem.storage)}
        self._stays: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for stay, offset in zip(placed.placement.stays, placed.stays, strict=True):
            self._stays[stay.tensor].append((stay.start, stay.end, offset))
        self._tensors: dict[tuple[View, int], torch.Tensor] = {}
        self.launches = [self._launch(k, call) for k, call in enumerate(traced.calls)]
        self.steps = self._steps()
        self.slow_bytes = 0
        moved = [self.problem.storage[move.tensor] for move in placed.placement.moves]
        self.persistent = {i: storage for i, storage in enumerate(moved) if storage in moving}
        self.copies = self._copies()
        self.streamed_offsets = {
            s: self._reserve(pages(traced.storages[s].bytes))
            for s in sorted(traced.streamed)
            if traced.storages[s].owner is Owner.PLAN
        }
        boundary = traced.parts[0].end
        self.kept = tuple(
            (self.problem.storage[t], offset, int(self.problem.sequence.sizes[t]))
            for t, spans in self._stays.items()
            for start, end, offset in spans
            if start < boundary <= end
        )

    @property
    def blocking(self) -> frozenset[int]:
        """Indices of copies that do not overlap kernels."""
        return frozenset(i for step in self.steps for i in step.blocking)

    def handle(self, view: View) -> torch.Tensor:
        """Return the tensor that autograd saves in place of a planned tensor: same shape, no
        valid contents."""
        t, size = self._number.get(view.storage), self.captured.storages[view.storage].bytes
        if not size:
            return view.empty(self.captured.device)
        return self.arena.tensor(view, 0 if t is None else self._stays[t][0][2], size)

    def _offset(self, tensor: int, k: int) -> int:
        """Return the offset of a tensor in the arena while kernel ``k`` runs."""
        return next(offset for start, end, offset in self._stays[tensor] if start <= k < end)

    def _tensor(self, view: View, k: int) -> torch.Tensor:
        """Return a view at its planned address during call ``k``."""
        s = view.storage
        key = view, self._offset(self._number[s], k) + self._shifts.get(s, 0)
        if key not in self._tensors:
            self._tensors[key] = self.arena.tensor(view, key[1], self.captured.storages[s].bytes)
        return self._tensors[key]

    def _launch(self, k: int, call: Call) -> Launch:
        """Return call ``k`` ready to launch: its operands at their addresses, the addresses of its
        allocations and its results."""

        def bind(view: View) -> Any:
            """Return the tensor at an operand's planned address, or an empty one without bytes;
            other operands stay."""
            if view.storage in self._number:
                return self._tensor(view, k)
            empty = (
                self.captured.is_planned(view) and not self.captured.storages[view.storage].bytes
            )
            return view.empty(self.captured.device) if empty else view

        arguments, keywords = call.mapped(bind)
        profile = self.captured.profiles[k]
        script, first = (
            None if made is None else self.memory.script(self._grants(k, call, made))
            for made in (profile.allocations, profile.first)
        )
        return Launch(
            call.target,
            tuple(arguments),
            dict(keywords),
            any(views((arguments, keywords))),
            script,
            tuple(self._results(k, call)),
            first,
            update_of(call),
            profile.library > 0,
        )

    def _results(self, k: int, call: Call) -> Iterator[Result]:
        """Yield the results of a call that are tensors of their own, with their planned address
        where they have one."""
        for i, view in enumerate(call.results):
            if not isinstance(view, View) or view.storage in self.captured.streamed:
                continue
            if view.storage in call.reads and not (call.in_place and i == 0):
                continue
            yield Result(i, view, self._tensor(view, k) if view.storage in self._number else None)

    def _grants(
        self, k: int, call: Call, allocations: tuple[Allocated, ...]
    ) -> list[tuple[int, int]]:
        """Return bytes and address of every allocation that call ``k`` makes; UNPLANNED for those
        that the plan leaves out."""
        grants = []
        for allocation in allocations:
            offset = UNPLANNED
            if allocation.result is not None:
                storage = call.results[allocation.result].storage
                if storage in self._number:
                    offset = self._offset(self._number[storage], k)
            elif allocation.offset != UNPLANNED:
                offset = self.placed.workspaces[k] + allocation.offset
            grants.append((allocation.bytes, offset))
        return grants

    def _reserve(self, count: int) -> int:
        """Add ``count`` bytes to the slow memory of a run, and return their offset in it."""
        self.slow_bytes += count
        return self.slow_bytes - count

    def _copies(self) -> list[ArenaCopy]:
        """Return the plan's copies with addresses in the fast memory and slots in the slow one."""
        slots: dict[int, int] = {}
        copies = []
        for i, move in enumerate(self.placed.placement.moves):
            size = int(self.problem.sequence.sizes[move.tensor])
            if move.tensor not in slots:
                slots[move.tensor] = self._reserve(0 if i in self.persistent else size)
            # A copy that blocks may be between two stays: the first leaves, the second comes.
            offsets = [
                offset
                for start, end, offset in sorted(self._stays[move.tensor])
                if start <= move.start and move.end <= end
            ]
            offset = offsets[-1 if move.to_fast else 0]
            copies.append(ArenaCopy(move.to_fast, offset, slots[move.tensor], size))
        return copies

    def _steps(self) -> list[CallPreparation]:
        """Return what happens before each call: copies that block, start or are waited for, and a
        lower ceiling of the fast memory."""
        steps = [CallPreparation() for _ in range(len(self.captured.calls) + 1)]
        for i, move in enumerate(self.placed.placement.moves):
            if move.start == move.end:
                steps[move.start].blocking.append(i)
            else:
                steps[move.start].starts.append(i)
                steps[move.end].waits.append(i)
        allowed = self.placed.ceilings.tolist()
        for k, (before, now) in enumerate(itertools.pairwise(allowed), 1):
            if now < before:
                steps[k].ceiling = now
        return steps


_SESSION = "_loadmaster_session"


class Session:
    """One run of a plan: its forward and its backward part. Between them the saved tensors may be
    offloaded.

    A session lives as long as the tensors that autograd has saved from it; then its slow memory is
    released.

    Attributes
    ----------
    second
        Function that runs the backward part.
    tensors, places
        The caller's tensors by storage, and the places in slow memory of those that move.
    gradients
        Gradients that move, by storage; they are in slow memory when the backward part returns
        them.
    updates
        Updates that the run makes: number of updates so far, by the position of the gradient.
    times
        Times of kernels and copies.
    offload_slot
        Offset in slow memory of the tensors offloaded between the parts; None if none are.
    """

    def __init__(
        self,
        second: Callable[[Session, Sequence[Any]], list[Any]],
        program: ExecutablePlan,
        tensors: Mapping[int, torch.Tensor],
        places: dict[int, FileRegion | FilePlace],
        updates: Mapping[int, int],
    ) -> None:
        self.second, self.program, self.memory = second, program, program.memory
        self.tensors, self.places, self.updates = tensors, places, updates
        self.gradients: dict[int, torch.Tensor] = {}
        self.times = RunTimes(len(program.launches), len(program.copies))
        self.pending: dict[int, Wait] = {}
        self.offload_slot: int | None = None
        self.finished = False
        self._held: list[tuple[int, int]] = []
        self._release_slow_memory = weakref.finalize(
            self, _release, self.memory, self._held, self.pending
        )
        self.slot = self._reserve(program.slow_bytes)
        self._versions = {
            s: tensors[s]._version
            for s, *_ in program.kept
            if s in tensors and not tensors[s].is_inference()
        }

    def streamed_tensor(self, view: View) -> SlowTensor:
        """Return a tensor that stays in slow memory throughout the run."""
        if view.storage in self.program.streamed_offsets:
            assert self.memory.file is not None
            start = self.slot + self.program.streamed_offsets[view.storage]
            return SlowTensor(view, self.memory.file, start)
        place = self.places[view.storage]
        return SlowTensor(view, place.file, place.slot + place.shift)

    def _reserve(self, bytes: int) -> int:
        """Reserve slow memory, which is released at the end."""
        slot = self.memory.reserve(bytes)
        self._held.append((slot, bytes))
        return slot

    def run(self, number: int, arguments: Sequence[Any]) -> list[Any]:
        """Run the calls of part ``number`` and return its results, with handles for tensors that
        stay in the arena or in slow memory."""
        program, part = self.program, self.program.captured.parts[number]
        values = _Values(self, part, arguments)
        free_library_buffers()  # left by kernels outside of the plan
        k = part.first
        try:
            try:
                for k in range(part.first, part.end):
                    step = program.steps[k]
                    if step.waits or step.blocking or step.starts or step.ceiling is not None:
                        self._copy_around(step)
                    begun = time.perf_counter()
                    values.launch(program.launches[k])
                    self.times.kernels[k] = time.perf_counter() - begun
                k = part.end
                if k == len(program.launches):
                    self._copy_around(program.steps[k])
            except BaseException:
                _drain(self.pending)
                self.memory.synchronize()
                self._save_changes(k)
                raise
            return [values.external_value(value) for value in part.returned]
        except BaseException:
            self.abandon()
            raise

    def _copy_around(self, step: CallPreparation) -> None:
        """Do the actions before a kernel."""
        begun = time.perf_counter()
        for i in step.waits:
            self._wait(i)
        for i in step.blocking:
            self.pending[i] = self._start_copy(i)
            self._wait(i)
        if step.ceiling is not None:
            self.program.arena.drop(step.ceiling)
        started = time.perf_counter()
        for i in step.starts:
            self.pending[i] = self._start_copy(i)
        ended = time.perf_counter()
        self.times.starting += ended - started
        self.times.waiting += ended - begun

    def _wait(self, i: int) -> None:
        """Wait for copy ``i``. It stays in ``pending`` until it is complete, so that an interrupt
        does not lose it."""
        if i in self.pending:
            self.times.copies[i] = self.pending[i]()
            del self.pending[i]

    def _start_copy(self, i: int) -> Wait:
        """Start a copy; return the function that waits for it."""
        copy, persistent = self.program.copies[i], self.program.persistent.get(i)
        if persistent is None:
            copy = copy._replace(slot=copy.slot + self.slot)
        else:
            place = self.places[persistent]
            copy = copy._replace(slot=place.slot, file=place.file)
        return self.memory.copy(self.program.arena, copy)

    def _save_changes(self, stopped: int) -> None:
        """Write parameters and state changed by updates to slow memory, after a step has failed at
        call ``stopped``."""
        storages, placed = self.program.captured.storages, self.program.placed
        for i, storage in self.program.persistent.items():
            move = placed.placement.moves[i]
            if move.to_fast or move.start < stopped or storages[storage].owner is not Owner.CALLER:
                continue
            uses = placed.problem.sequence.uses[move.tensor]
            if max(k for k, operand in uses if operand.write and k < move.start) < stopped:
                self._start_copy(i)()

    def offload(self) -> None:
        """Copy the tensors saved in the arena to slow memory, because another run needs the
        arena."""
        for wait in self.pending.values():
            wait()
        slot = self._reserve(sum(bytes for *_, bytes in self.program.kept))
        try:
            self._copy_kept(slot, to_fast=False)
        except BaseException:
            self.memory.release(*self._held.pop())
            raise
        self.offload_slot = slot

    def reload(self) -> None:
        """Copy the offloaded tensors back to their addresses in the arena."""
        assert self.offload_slot is not None
        self._copy_kept(self.offload_slot, to_fast=True)
        self.offload_slot = None
        self.memory.release(*self._held.pop())

    def refresh(self) -> None:
        """Read tensors again that stayed in the arena, and that the caller has changed since the
        forward part."""
        for storage, offset, size in self.program.kept:
            before = self._versions.get(storage)
            if before is not None and self.tensors[storage]._version != before:
                for wait in self.pending.values():
                    wait()
                place = self.places[storage]
                copy = ArenaCopy(True, offset, place.slot, size, place.file)
                self.memory.copy(self.program.arena, copy)()

    def _copy_kept(self, slot: int, to_fast: bool) -> None:
        """Copy the kept tensors to or from the slow memory."""
        try:
            for _, offset, bytes in self.program.kept:
                self.memory.copy(self.program.arena, ArenaCopy(to_fast, offset, slot, bytes))()
                slot += bytes
        except BaseException:
            self.memory.synchronize()
            raise

    def end(self) -> None:
        """End the run, complete or failed, and release its slow memory."""
        self.finished = True
        self.offload_slot = None
        self.gradients.clear()
        self._release_slow_memory()

    def abandon(self) -> None:
        """End a failed run after all its copies have ended."""
        self.finished = True
        _drain(self.pending)
        self.memory.synchronize()
        self.end()


def _drain(pending: dict[int, Wait]) -> None:
    """Wait for all copies; their errors are dropped."""
    for wait in pending.values():
        with suppress(LoadmasterError):
            wait()
    pending.clear()


def _release(memory: DeviceMemory, held: list[tuple[int, int]], pending: dict[int, Wait]) -> None:
    """Wait for all copies, then release the slow memory."""
    _drain(pending)
    while held:
        memory.release(*held.pop())


class RunTimes:
    """Seconds of one run.

    Attributes
    ----------
    kernels, copies
        Seconds of every kernel and of every copy, shapes (kernels,) and (copies,).
    waiting, starting
        Seconds of waiting for copies in sum, and those of them spent on starting copies.
    total
        Seconds of the whole run.
    copied_results
        Number of results that were not written to their planned addresses.
    unforeseen
        Number of allocations outside of the plan.
    """

    def __init__(self, kernels: int, copies: int) -> None:
        self.kernels = np.zeros(kernels)
        self.copies = np.zeros(copies)
        self.waiting = self.starting = self.total = 0.0
        self.copied_results = 0
        self.unforeseen = 0

    @property
    def overhead(self) -> float:
        """Seconds of the run that are neither kernels nor waiting for copies."""
        return max(self.total - float(self.kernels.sum()) - self.waiting + self.starting, 0.0)


class History:
    """Seconds of kernels and bandwidths of copies, from profiles at first and from measured steps
    later."""

    def __init__(self, link: CopyLink, refine_after: int = 0) -> None:
        self.link, self.steps = link, 0
        self._refine_after = refine_after
        self._used_steps: list[RunTimes] = []
        self._recent: deque[RunTimes] = deque(maxlen=_RECENT_STEPS)

    def kernel_seconds(self, traced: Traced) -> Floats:
        """Return the seconds of every call, shape (calls,): the median over measured steps, or its
        profile's if there are none."""
        steps = [self._seconds_in(step, traced) for step in self._used_steps]
        return np.median(steps or [column_of(traced.profiles, "seconds")], axis=0)

    def _seconds_in(self, step: RunTimes, traced: Traced) -> Floats:
        """Return the seconds of every call of a version of the graph, shape (calls,), in a measured
        step.

        Calls that the step did not run get their profile's seconds, scaled by the ratio of measured
        to profiled seconds of those that it ran: profiles are made on cold memory, or while other
        graphs compile.
        """
        profiled = column_of(self._ran.profiles, "seconds")
        ran = profiled > 0
        pace = step.kernels[ran].sum() / profiled.sum() if ran.any() else 1.0
        rows = zip(traced.calls, self._ran.calls, step.kernels, traced.profiles, strict=True)
        return np.array(
            [own if call is seen else profile.seconds * pace for call, seen, own, profile in rows]
        )

    def predicted_seconds(
        self, traced: Traced, sequence: KernelSequence, placement: TensorPlacement
    ) -> float:
        """Return the predicted seconds of a step under a placement: the median over measured steps
        of the seconds with each step's times of kernels and copies.

        Other load on the machine slows down many kernels of one step at once. A step made of each
        kernel's median would hide that and be too short.
        """
        if not self._used_steps:
            return time_moves(sequence, placement).total
        totals = []
        for step in self._used_steps:
            pairs = zip(sequence.kernels, self._seconds_in(step, traced).tolist(), strict=True)
            kernels = tuple(
                replace(kernel, algorithms=(kernel.algorithms[0]._replace(seconds=seconds),))
                for kernel, seconds in pairs
            )
            as_then = replace(sequence, kernels=kernels, link=self._link_of_step(step.copies))
            totals.append(time_moves(as_then, placement).total + step.overhead)
        return float(np.median(totals))

    def note(self, times: RunTimes) -> None:
        """Add the times of a step."""
        self.steps += 1
        self._recent.append(times)

    def forget(self) -> None:
        """Drop the times of recent steps, because the plan or the conditions change."""
        self._recent.clear()

    @property
    def provisional(self) -> bool:
        """Whether the plan will be made again with measured times."""
        return self._refine_after > 0

    def due(self) -> bool:
        """Return whether to plan again with measured times now; true once."""
        if not self.provisional or self.steps < self._refine_after:
            return False
        self._refine_after = 0
        return True

    def adopt_recent_times(self, program: ExecutablePlan) -> None:
        """Use the times of recent steps from now on, without the first step of a plan, which
        touches memory for the first time."""
        recent = list(self._recent)[1 if len(self._recent) < _RECENT_STEPS else 0 :]
        if recent:
            self._used_steps, self._ran = recent, program.captured
            self._link_of_step = partial(
                link_with_measured_bandwidths, self.link, program.copies, program.blocking
            )
            self.link = self._link_of_step(np.median([times.copies for times in recent], axis=0))


def link_with_measured_bandwidths(
    link: CopyLink, copies: Sequence[ArenaCopy], blocking: frozenset[int], seconds: Floats
) -> CopyLink:
    """Return the link with measured bandwidths.

    ``seconds`` are those of the copies, shape (copies,), and ``blocking`` the indices of copies
    that do not overlap kernels. Directions and kinds that moved less than `_LEAST_COPIED` bytes
    keep their bandwidth.
    """
    kinds: dict[str, list[int]] = defaultdict(list)
    for i in np.flatnonzero(seconds > 0).tolist():
        direction = "to_fast" if copies[i].to_fast else "to_slow"
        kinds[direction if i in blocking else f"asynchronous_{direction}"].append(i)
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        moved = sum(copies[i].bytes for i in kind)
        if moved >= _LEAST_COPIED:
            found[name] = moved / float(seconds[kind].sum())
    return replace(link, **found)


class _Values:
    """The tensors of one part of a run, by view."""

    def __init__(self, session: Session, part: GraphPart, arguments: Sequence[Any]) -> None:
        captured, given = session.program.captured, zip(part.given, arguments, strict=True)
        self._session, self._streamed = session, captured.streamed
        self._tensors: dict[View, torch.Tensor] = {
            slot: argument
            for slot, argument in given
            if is_view(slot) and not captured.is_planned(slot)
        }
        self._roots = {**session.tensors, **captured.constants}
        for view, argument in reversed(self._tensors.items()):
            self._roots[view.storage] = argument

    def find(self, value: Any) -> Any:
        """Return the tensor of a view, and other values unchanged."""
        if not isinstance(value, View):
            return value
        if value not in self._tensors:
            root = self._roots[value.storage]
            if root.dtype == value.dtype:
                # Shares the counter by which autograd sees that a saved tensor was changed.
                at = value.offset + root.storage_offset()
                tensor = root.detach().as_strided(value.size, value.stride, at)
            else:
                start = root.storage_offset() * root.dtype.itemsize // value.dtype.itemsize
                moved = value._replace(offset=value.offset + start)
                tensor = on_storage(root.untyped_storage(), moved)
            self._tensors[value] = tensor
        return self._tensors[value]

    def _operand(self, value: Any) -> Any:
        """Return the tensor of a view, a `SlowTensor` if its storage is streamed, and other values
        unchanged."""
        if isinstance(value, View) and value.storage in self._streamed:
            return self._session.streamed_tensor(value)
        return self.find(value)

    def launch(self, launch: Launch) -> None:
        """Run a call. Results that were not written to their planned addresses are copied there,
        and their own memory is freed on return."""
        out = self._run_target(launch)
        if launch.frees:
            free_library_buffers()
        for result in launch.results:
            value = out[result.index] if isinstance(out, tuple | list) else out
            if result.planned is None:
                self._tensors[result.view] = self._roots[result.view.storage] = value
            # None is a gradient that a mask leaves out.
            elif value is not None and (
                value.untyped_storage().data_ptr() != result.planned.untyped_storage().data_ptr()
            ):
                result.planned.copy_(value)
                self._session.times.copied_results += 1

    def _run_target(self, launch: Launch) -> Any:
        """Run the target of a launch, whose allocations get the addresses of its script, and return
        its results."""
        given, named = launch.arguments, launch.keywords
        if launch.unbound:
            operand = self._operand
            given = tuple(
                tree_map(operand, a, is_leaf=is_view) if isinstance(a, list) else operand(a)
                for a in given
            )
            named = {name: operand(a) for name, a in named.items()}
        script, update = launch.script, launch.update
        if update is not None:
            # A held update allocates nothing but the gradient that it keeps.
            script = None if update.held else script if update.begun else launch.first
        if script is None and update is None:
            return launch.target(*given, **named)
        try:
            # Inside the try block, because an interrupt may come right after it.
            if script is not None:
                script.begin(self._session.program.arena.base)
            return launch.target(*given, **named)
        finally:
            self._session.times.unforeseen += _native.end_script()
            if update is not None:
                update.sync_to_optimizer()

    def external_value(self, value: Any) -> Any:
        """Return a value for the caller: a handle for tensors that stay in the arena or in slow
        memory. The session is an attribute of the tensors that autograd saves."""
        session = self._session
        if value is THIS_RUN or session.program.captured.is_planned(value):
            saved = torch.empty(0) if value is THIS_RUN else session.program.handle(value)
            setattr(saved, _SESSION, session)
            return saved
        if isinstance(value, View) and value.storage in session.gradients:
            # Popped, because autograd copies gradients that have other references.
            return session.gradients.pop(value.storage)
        return self.find(value)


def has_session(arguments: Sequence[Any]) -> bool:
    """Return whether a planned forward part saved some of these arguments of a backward part."""
    return any(hasattr(argument, _SESSION) for argument in arguments)


def session_of(arguments: Sequence[Any]) -> Session:
    """Return the session whose forward part saved these arguments of a backward part. Raises
    `LoadmasterError` if they are not all from one session."""
    named = (getattr(argument, _SESSION, None) for argument in arguments)
    session: Session | None = next((one for one in named if one is not None), None)
    if session is not None:
        captured = session.program.captured
        given = zip(captured.parts[1].given, arguments, strict=True)
        if all(
            getattr(argument, _SESSION, None) is session
            for slot, argument in given
            if slot is THIS_RUN or captured.is_planned(slot)
        ):
            return session
        session.abandon()
    raise LoadmasterError(
        "saved tensors were replaced between forward and backward (saved_tensors_hooks): the plan"
        " cannot go on"
    )
