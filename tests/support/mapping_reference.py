"""M3E's bandwidth allocator, as slowly and as exactly as it can be said: work that remains, in
fractions."""

from fractions import Fraction
from typing import Any

import numpy as np

from loadmaster.mapping.group import Group


def makespan(group: Group, queues: list[list[int]]) -> Fraction:
    """Seconds until the last job ends."""
    waiting = [list(queue) for queue in queues]
    running: dict[int, list[Any]] = {}
    now = Fraction(0)
    while True:
        for core, queue in enumerate(waiting):
            if core not in running and queue:
                job = queue.pop(0)
                running[core] = [
                    Fraction(float(group.latency[job, core])),
                    Fraction(float(group.demand[job, core])),
                ]
        if not running:
            return now
        asked = sum(demand for _, demand in running.values())
        speed = {
            core: 1 / max(Fraction(1), asked) if demand > 0 else Fraction(1)
            for core, (_, demand) in running.items()
        }
        step = min(left / speed[core] for core, (left, _) in running.items())
        now += step
        for core in list(running):
            running[core][0] -= step * speed[core]
            if running[core][0] == 0:
                del running[core]


def row(group: Group, queues: list[list[int]]) -> np.ndarray:
    """Queues as the kernels take them."""
    return np.array([[job for queue in queues for job in [*queue, group.jobs]]], dtype=np.int32)
