"""Runs prepared plans: calls in order, copies before and beside them, under one budget for all graphs of a model."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from loadmaster import _native
from loadmaster.errors import LoadmasterError
from loadmaster.runtime.captured import Owner, Part, View
from loadmaster.runtime.device_memory import Copy, DeviceMemory, Pending
from loadmaster.runtime.kernel_profile import on_storage
from loadmaster.runtime.program import Launch, Program

_SESSION = "_loadmaster_session"


class Session:
    """One run through a plan, from the start of its first part to the end of its last; between them it may be parked.

    A session lives as long as the tensors that autograd has saved from it. Its slow memory goes back with it.
    """

    def __init__(self, program: Program, memory: DeviceMemory) -> None:
        self.program, self.memory = program, memory
        self.slot = memory.reserve(program.slow_bytes)
        self.pending: dict[int, Pending] = {}
        self.parked: int | None = None
        self.finished = False
        self._give_back = weakref.finalize(self, _release, memory, self.slot, program.slow_bytes, self.pending)

    def drain(self) -> None:
        """Wait for all copies under way, whatever becomes of them."""
        _drain(self.pending)

    def park(self) -> None:
        """Bring what waits in the arena to the slow memory: somebody else needs the arena."""
        for pending in self.pending.values():
            pending.wait()
        slot = self.memory.reserve(sum(bytes for _, bytes in self.program.kept))
        self.parked = slot
        self._carry(to_fast=False)

    def unpark(self) -> None:
        """Bring it back to where it was."""
        self._carry(to_fast=True)
        assert self.parked is not None
        self.memory.release(self.parked, sum(bytes for _, bytes in self.program.kept))
        self.parked = None

    def _carry(self, to_fast: bool) -> None:
        assert self.parked is not None
        slot = self.parked
        for offset, bytes in self.program.kept:
            self.memory.copy(self.program.arena, Copy(to_fast, offset, slot, bytes)).wait()
            slot += bytes

    def end(self) -> None:
        """The run is over, well or not: nothing stays behind."""
        self.finished = True
        if self.parked is not None:
            self.memory.release(self.parked, sum(bytes for _, bytes in self.program.kept))
            self.parked = None
        self._give_back()


def _drain(pending: dict[int, Pending]) -> None:
    for copy in pending.values():
        try:
            copy.wait()
        except LoadmasterError:
            continue
    pending.clear()


def _release(memory: DeviceMemory, slot: int, bytes: int, pending: dict[int, Pending]) -> None:
    _drain(pending)
    memory.release(slot, bytes)


class Times:
    """Seconds of every kernel and copy of the last run, and what did not go as planned."""

    def __init__(self, kernels: int, copies: int) -> None:
        self.kernels = np.zeros(kernels)
        self.copies = np.zeros(copies)
        self.start()

    def start(self) -> None:
        """A step begins."""
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
    for storage, constant in program.captured.constants.items():
        roots.setdefault(storage, constant)

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
    now = time.perf_counter()
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
        if launch.script is None:
            out = launch.target(*given, **named)
        else:
            launch.script.begin(base)
            try:
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
    return [_handle(session, value) if _planned(program, value) else find(value) for value in part.returned]


def _copy_around(session: Session, k: int, times: Times) -> None:
    """The copies that are due before kernel ``k``."""
    step = session.program.steps[k]
    for i in step.waits:
        times.copies[i] = session.pending.pop(i).wait() if i in session.pending else times.copies[i]
    for i in step.blocking:
        times.copies[i] = _start(session, i).wait()
    if step.ceiling is not None:
        session.program.arena.drop(step.ceiling)
    for i in step.starts:
        session.pending[i] = _start(session, i)


def _start(session: Session, i: int) -> Pending:
    copy = session.program.copies[i]
    return session.memory.copy(session.program.arena, copy._replace(slot=copy.slot + session.slot))


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
