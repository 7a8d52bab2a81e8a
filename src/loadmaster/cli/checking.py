"""Checks a large plan in a process of its own, while this one writes it down."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from loadmaster.core.violation import Violation
    from loadmaster.planning.plan_records import PlanRecord

_MANY_JOBS = 2_000
"""Jobs from which on checking takes much longer than to start a process."""


def checking(plan: PlanRecord) -> Callable[[], tuple[Violation, ...]]:
    """Begin to verify a plan; what is returned waits for what was found.

    Small plans are verified at once, and all where no second processor is there or Python cannot well copy a process.
    """
    from loadmaster.planning.verify.plan import verify

    if len(plan.jobs) < _MANY_JOBS or sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        found = verify(plan)
        return lambda: found
    import multiprocessing

    # A copy of this process has the plan already: nothing is sent but what was found.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_check, args=(plan, sender), daemon=True)
    process.start()
    sender.close()

    def result() -> tuple[Violation, ...]:
        try:
            answer: tuple[Violation, ...] = receiver.recv()
        except EOFError:
            # It ended before its time, as for want of memory.
            answer = verify(plan)
        process.join()
        return answer

    return result


def _check(plan: PlanRecord, sender: Connection) -> None:
    from loadmaster.planning.verify.plan import verify

    # Ctrl-C is for the process that waits, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sender.send(verify(plan))
