"""Where jobs stand in an order when mini-batches come and are due at given times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.core.units import PICOSECONDS
from loadmaster.planning.goal import Goal


def timed_keys(goal: Goal, done: Floats, own: Floats) -> Iterator[Floats]:
    """Keys by which to sort jobs, as shares of the time until all is due.

    Each job belongs to work of ``own`` seconds that comes and is due together (a mini-batch, or a
    network whose mini-batches all do), of which ``done`` are before it. Jobs are sorted by the date
    when they are due; by the latest time at which they may start for that; evenly over the time
    that their work has; and by release. What is never due may take until the end.
    """
    counts = np.diff(goal.first)
    dated = np.array([goal.is_due(b) for b in range(len(counts))])
    came = goal.job_release / PICOSECONDS
    last = max(float((came + own).max()), float((goal.due[dated] / PICOSECONDS).max(initial=0.0)))
    until = np.repeat(np.where(dated, goal.due / PICOSECONDS, last), counts)
    for keys in (
        until,
        until - (own - done),
        came + done / own * np.maximum(0.0, until - came),
        came,
    ):
        # A job that stands before its release would hold room and do nothing.
        yield np.maximum(keys, came) / last + 1e-9 * done / own
