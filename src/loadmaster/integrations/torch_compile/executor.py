"""Runs prepared plans: calls in order, copies before and beside them, under one budget for all graphs of a model."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils._pytree import tree_map

from loadmaster import _native
from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile.captured import Owner, Part, View, on_storage
from loadmaster.integrations.torch_compile.devices.device_memory import Copy, DeviceMemory, Pending
from loadmaster.integrations.torch_compile.program import Launch, Program

_SESSION = "_loadmaster_session"


class Runner(Protocol):
    """Who runs sessions."""

    def backward(self, session: Session | None, arguments: Sequence[Any]) -> list[Any]:
        """Run the second part of a session."""


class Session:
    """One run through a plan, from the start of its first part to the end of its last; between them it may be parked.

    A session lives as long as the tensors that autograd has saved from it. Its slow memory goes back with it. ``tensors`` are those of the
    caller that any part may use, by storage, and ``slots`` the places in the slow memory of those that move. ``updates`` are those that
    the run is to make, by the position of the gradient, with how many there were of each when it began, and ``parameters`` what they
    update (by ``id``); ``callers`` are the addresses of PyTorch's storages that the caller gave, by storage. ``runner`` is who runs it,
    and knows how to go on.
    """

    def __init__(
        self,
        runner: Runner,
        program: Program,
        memory: DeviceMemory,
        tensors: Mapping[int, torch.Tensor],
        slots: Mapping[int, int],
        updates: Mapping[int, int],
        parameters: frozenset[int],
        callers: Mapping[int, int],
    ) -> None:
        self.runner, self.program, self.memory, self.tensors, self.slots = runner, program, memory, tensors, slots
        self.updates, self.parameters, self.callers = updates, parameters, callers
        self.pending: dict[int, Pending] = {}
        self.parked: int | None = None
        self.finished = False
        self._held: list[tuple[int, int]] = []
        self._give_back = weakref.finalize(self, _release, memory, self._held, self.pending)
        self.slot = self._reserve(program.slow_bytes)

    def _reserve(self, bytes: int) -> int:
        slot = self.memory.reserve(bytes)
        self._held.append((slot, bytes))
        return slot

    def drain(self) -> None:
        """Wait for all copies under way, whatever becomes of them."""
        _drain(self.pending)

    def save_changes(self, stopped: int) -> None:
        """A step has ended in the middle, at call ``stopped``: what calls before it have changed for good must not be lost."""
        for i, last in self.program.changed.items():
            if last < stopped <= self.program.placed.placement.moves[i].start:
                _start(self, i).wait()

    def park(self) -> None:
        """Bring what waits in the arena to the slow memory: somebody else needs the arena."""
        for pending in self.pending.values():
            pending.wait()
        slot = self._reserve(sum(bytes for _, bytes in self.program.kept))
        try:
            self._carry(slot, to_fast=False)
        except BaseException:
            self.memory.settle()
            self._release_last()
            raise
        self.parked = slot

    def unpark(self) -> None:
        """Bring it back to where it was."""
        assert self.parked is not None
        try:
            self._carry(self.parked, to_fast=True)
        except BaseException:
            self.memory.settle()
            raise
        self.parked = None
        self._release_last()

    def _carry(self, slot: int, to_fast: bool) -> None:
        for offset, bytes in self.program.kept:
            self.memory.copy(self.program.arena, Copy(to_fast, offset, slot, bytes)).wait()
            slot += bytes

    def _release_last(self) -> None:
        self.memory.release(*self._held.pop())

    def end(self) -> None:
        """The run is over, well or not: nothing stays behind."""
        self.finished = True
        self.parked = None
        self._give_back()

    def abandon(self) -> None:
        """The run has failed: end it once no copy can touch its memory any more."""
        self.finished = True
        self.drain()
        self.memory.settle()
        self.end()


def _drain(pending: dict[int, Pending]) -> None:
    for copy in pending.values():
        try:
            copy.wait()
        except LoadmasterError:
            continue
    pending.clear()


def _release(memory: DeviceMemory, held: list[tuple[int, int]], pending: dict[int, Pending]) -> None:
    _drain(pending)
    while held:
        memory.release(*held.pop())


class Times:
    """Seconds of every kernel and copy of a run, and what did not go as planned."""

    def __init__(self, kernels: int, copies: int) -> None:
        self.kernels = np.zeros(kernels)
        self.copies = np.zeros(copies)
        self.waiting = 0.0
        self.copied_results = 0
        self.unforeseen = 0


def run_part(session: Session, part: Part, arguments: Sequence[Any], times: Times) -> list[Any]:
    """Run the calls of a part; what it returns, with handles for tensors that stay in the plan's care."""
    program = session.program
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
            known[view] = on_storage(root.untyped_storage(), view._replace(offset=view.offset + start))
        return known[view]

    base = program.arena.base
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
            if launch.loose:
                given, named = _filled(launch, find)
            else:
                given, named = launch.arguments, launch.keywords
            script = launch.script if launch.first is None or getattr(launch.target, "begun", True) else launch.first
            if script is None:
                out = launch.target(*given, **named)
            else:
                try:
                    script.begin(base)  # inside: an interrupt may come between any two calls
                    out = launch.target(*given, **named)
                finally:
                    times.unforeseen += _native.end_script()
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
        session.memory.settle()
        session.save_changes(k)
        raise
    return [_handle(session, value) if _planned(program, value) else find(value) for value in part.returned]


def _copy_around(session: Session, k: int, times: Times) -> None:
    """The copies that are due before kernel ``k``."""
    step = session.program.steps[k]
    for i in step.waits:
        _wait(session, i, times)
    for i in step.blocking:
        session.pending[i] = _start(session, i)
        _wait(session, i, times)
    if step.ceiling is not None:
        session.program.arena.drop(step.ceiling)
    for i in step.starts:
        session.pending[i] = _start(session, i)


def _wait(session: Session, i: int, times: Times) -> None:
    """Wait for copy ``i``, which is pending until then: whoever is interrupted finds it there."""
    if i in session.pending:
        times.copies[i] = session.pending[i].wait()
        del session.pending[i]


def _start(session: Session, i: int) -> Pending:
    copy = session.program.copies[i]
    lasting = session.program.lasting.get(i)
    slot = copy.slot + session.slot if lasting is None else session.slots[lasting]
    return session.memory.copy(session.program.arena, copy._replace(slot=slot))


def _filled(launch: Launch, find: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arguments = tuple(
        find(a) if isinstance(a, View) else tree_map(find, a, is_leaf=_is_view) if isinstance(a, list) else a for a in launch.arguments
    )
    keywords = {name: find(a) for name, a in launch.keywords.items()} if launch.keywords else launch.keywords
    return arguments, keywords


def _is_view(leaf: Any) -> bool:
    return isinstance(leaf, View)


def _planned(program: Program, value: Any) -> bool:
    return isinstance(value, View) and program.captured.storages[value.storage].owner is Owner.PLAN


def _handle(session: Session, view: View) -> torch.Tensor:
    """What autograd keeps for a tensor that stays in the plan's care: its shape, and the session; never its bytes."""
    program = session.program
    offset, bytes = program.handles[view]
    if bytes:
        handle = program.arena.tensor(view, offset, bytes)
    else:
        handle = torch.empty_strided(view.size, view.stride, dtype=view.dtype, device=program.captured.device)
    setattr(handle, _SESSION, session)
    return handle


def session_of(part: Part, arguments: Sequence[Any]) -> Session | None:
    """The run whose saved tensors ``arguments`` hold."""
    for i in part.saved:
        session = getattr(arguments[i], _SESSION, None)
        if session is None:
            raise LoadmasterError("saved tensors were replaced between forward and backward (saved_tensors_hooks): the plan cannot go on")
        return session  # type: ignore[no-any-return]
    return None
