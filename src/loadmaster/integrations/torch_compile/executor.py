"""Runs prepared plans: calls in order, with copies before and during them, under one budget for all
graphs of a model."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils._pytree import tree_map

from loadmaster import _native
from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile.captured import (
    Owner,
    Part,
    Run,
    View,
    is_view,
    on_storage,
)
from loadmaster.integrations.torch_compile.devices.allocator_hook import free_library_buffers
from loadmaster.integrations.torch_compile.devices.device_memory import Copy, DeviceMemory, Pending
from loadmaster.integrations.torch_compile.devices.slow_file import FilePlace
from loadmaster.integrations.torch_compile.persistent import Region
from loadmaster.integrations.torch_compile.program import Launch, Program
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor

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
