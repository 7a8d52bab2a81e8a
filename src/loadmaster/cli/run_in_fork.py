"""Does what a large plan takes long for in processes of their own: it is checked and drawn while
this process writes it down."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from loadmaster.planning.plan_records import PlanRecord

_MANY_JOBS = 2_000
"""Jobs from which on checking takes much longer than to start a process."""

Result = TypeVar("Result")


@contextmanager
def run_in_fork(function: Callable[[], Result], plan: PlanRecord) -> Iterator[Callable[[], Result]]:
    """Begin something that takes the longer the larger a plan is; what is given waits for its
    result. Nobody awaits it afterwards.

    For small plans it is done at once, and for all where no second processor is there or Python
    cannot well copy a process.
    """
    if len(plan.jobs) < _MANY_JOBS or sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        found = function()
        yield lambda: found
        return
    import multiprocessing

    # A copy of this process has the plan already: nothing is sent but what was found.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=(function, sender), daemon=True)
    process.start()
    sender.close()

    def result() -> Result:
        try:
            answer: Result = receiver.recv()
        except EOFError:
            # It ended before its time, as for want of memory, or of room on a disk: here it can be
            # told.
            answer = function()
        return answer

    try:
        yield result
    finally:
        process.kill()
        process.join()


def _do(function: Callable[[], Result], sender: Connection) -> None:
    # Ctrl-C is for the process that waits, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(Exception):
        sender.send(function())
