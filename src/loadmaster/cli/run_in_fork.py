"""Runs slow work on a large plan in forked processes: the plan is verified and drawn while this
process writes it."""

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
"""Number of jobs from which on verification takes much longer than starting a process."""

Result = TypeVar("Result")


@contextmanager
def run_in_fork(function: Callable[[], Result], plan: PlanRecord) -> Iterator[Callable[[], Result]]:
    """Start ``function`` in a forked process, and yield a function that waits for its result. The
    process is ended at the end of the block.

    For small plans, without a second processor, or if forking is unsafe, ``function`` is called
    in this process.
    """
    if len(plan.jobs) < _MANY_JOBS or sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        found = function()
        yield lambda: found
        return
    import multiprocessing

    # A forked process has the plan already; only the result is sent back.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(function, sender), daemon=True)
    process.start()
    sender.close()

    def result() -> Result:
        """Wait for the result; run the function here if the process was killed."""
        try:
            answer: Result = receiver.recv()
        except EOFError:
            # The process was killed, for example for lack of memory: run here to report errors.
            answer = function()
        return answer

    try:
        yield result
    finally:
        process.kill()
        process.join()


def _send_result(function: Callable[[], Result], sender: Connection) -> None:
    """Run the function and send its result; exceptions are dropped, and the caller runs it
    again."""
    # The waiting process handles Ctrl-C and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(Exception):
        sender.send(function())
