"""Networks that come again and again and must be done in time: periods, deadlines and priorities, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.arguments import instead
from loadmaster.core.errors import MappingError
from loadmaster.core.units import parse_seconds
from loadmaster.cost.job_pool import JobPool
from loadmaster.mapping.answer import JobMapping

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NetworkTiming:
    """Mini-batch ``k`` comes at ``k`` x ``period`` and is due ``deadline`` later (seconds); lateness counts ``priority`` times."""

    network: str
    period: float = 0.0
    deadline: float = float("inf")
    priority: float = 1.0


@dataclass(frozen=True)
class NetworkLatency:
    """What became of one mini-batch of a network: seconds from its release to the end of its last job, and whether that was too late."""

    network: str
    mini_batch: int
    release: float
    end: float
    latency: float
    deadline: float | None
    missed: bool


def parse_timing(text: str) -> NetworkTiming:
    """Read ``NAME:period=10ms,deadline=12ms,priority=2``, each of the three optional.

    Raises
    ------
    MappingError
        If it does not read so.
    """
    name, _, fields = text.rpartition(":")
    values: dict[str, float] = {}
    for field in fields.split(","):
        key, _, value = field.partition("=")
        if not name or key not in ("period", "deadline", "priority") or not value or key in values:
            raise MappingError(f"--timing {text!r}: write NAME:period=10ms,deadline=12ms,priority=2, of which each field may be left out")
        try:
            values[key] = float(value) if key == "priority" else parse_seconds(value)
        except ValueError:
            raise MappingError(f"--timing {text!r}: {key} {value!r} is not a number") from None
    if not 0 <= values.get("priority", 1.0) < float("inf"):
        raise MappingError(f"--timing {text!r}: the priority is a number of at least 0")
    return NetworkTiming(name, **values)


def job_times_of(pool: JobPool, timings: Sequence[NetworkTiming]) -> tuple[Floats, Floats, Floats]:
    """Release, due date and weight of every job; a network is due when the jobs that no other waits for are.

    Raises
    ------
    MappingError
        If a timing names no network of the pool, or one twice.
    """
    by_name = _by_name(pool, timings)
    usual = NetworkTiming("")
    mine = [by_name.get(network, usual) for network in pool.network]
    release = np.array([timing.period * number for timing, number in zip(mine, pool.mini_batch, strict=True)])
    due = release + np.array([timing.deadline for timing in mine])
    waited_for = {before for befores in pool.after for before in befores}
    due[sorted(waited_for)] = np.inf
    return release, due, np.array([timing.priority for timing in mine])


def latencies(pool: JobPool, timings: Sequence[NetworkTiming], mapping: JobMapping) -> tuple[NetworkLatency, ...]:
    """Latency of every mini-batch of every network."""
    by_name = _by_name(pool, timings)
    ends: dict[tuple[str, int], float] = {}
    for key, end in zip(zip(pool.network, pool.mini_batch, strict=True), mapping.end.tolist(), strict=True):
        ends[key] = max(end, ends.get(key, 0.0))
    found = []
    for (network, number), end in ends.items():
        timing = by_name.get(network, NetworkTiming(network))
        release = timing.period * number
        deadline = None if np.isinf(timing.deadline) else timing.deadline
        found.append(
            NetworkLatency(network, number, release, end, end - release, deadline, deadline is not None and end - release > deadline)
        )
    return tuple(found)


def _by_name(pool: JobPool, timings: Sequence[NetworkTiming]) -> dict[str, NetworkTiming]:
    known = dict.fromkeys(pool.network)
    by_name: dict[str, NetworkTiming] = {}
    for timing in timings:
        if timing.network not in known:
            raise MappingError(f"--timing: there is no network {timing.network!r}: {instead(timing.network, known)}")
        if timing.network in by_name:
            raise MappingError(f"--timing: network {timing.network!r} is named twice")
        by_name[timing.network] = timing
    return by_name
