"""Measured times beside what the model says of the same work, term by term: what a calibration
fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured time, and the parts of the model's answer for it.

    Attributes
    ----------
    group
        A name that equal work shares: cross-validation keeps it together.
    kind
        The kind of operator, under which a target states its efficiency.
    core
        The core's table in the target file.
    seconds
        What was measured.
    arithmetic
        Seconds on the core at full efficiency and without overhead.
    fixed
        Seconds besides, at the target's figures: first and last tiles, and what the on-chip network
        takes beyond arithmetic.
    links
        By field of the target (``dram.read_bandwidth``), seconds of that link at the target's
        figure.
    """

    group: str
    kind: str
    core: str
    seconds: float
    arithmetic: float
    fixed: float
    links: dict[str, float]


@dataclass(frozen=True, slots=True)
class CopyTime:
    """A measured copy: the field of the target's ``copy`` table that it informs, bytes and
    seconds."""

    field: str
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Observations:
    """All that was measured: rows in the order of the file, and copies; ``skipped`` says which rows
    tell nothing of this target."""

    rows: tuple[Observation, ...]
    copies: tuple[CopyTime, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Design:
    """Observations as arrays: the model is ``max(overhead + fixed + arithmetic / efficiency, link
    seconds of each memory)``.

    Rows are distinct; ``count`` says how often each was there. ``seconds``, ``arithmetic`` and
    ``fixed`` have shape (rows,). ``rate_of`` and ``overhead_of`` are each row's parameter, by
    number. ``links[r, l]`` are seconds of link parameter ``l`` at the target's figure, and
    ``memory_of[l]`` is the memory whose link it is: parameters of one memory add up, memories
    overlap. ``group`` numbers equal work, ``weight`` says what a row counts, 1 together.
    """

    seconds: Floats
    arithmetic: Floats
    fixed: Floats
    links: Floats
    rates: tuple[tuple[str, str], ...]
    rate_of: Ints
    overheads: tuple[str, ...]
    overhead_of: Ints
    fields: tuple[str, ...]
    memory_of: Ints
    group: Ints
    count: Ints
    weight: Floats


def design_of(observed: Sequence[Observation]) -> Design:
    """Make the arrays of observations. O(rows x links).

    A row counts half by itself and half by the root of its time: a fit should be right for every
    layer, more so for long ones, and none of them alone decides.
    """
    times = Counter(
        (
            row.group,
            row.kind,
            row.core,
            row.seconds,
            row.arithmetic,
            row.fixed,
            tuple(row.links.items()),
        )
        for row in observed
    )
    rows = [
        Observation(group, kind, core, took, busy, fixed, dict(links))
        for group, kind, core, took, busy, fixed, links in times
    ]
    count = np.array(list(times.values()))
    seconds = np.array([row.seconds for row in rows])
    rates = tuple(dict.fromkeys((row.core, row.kind) for row in rows))
    overheads = tuple(dict.fromkeys(row.core for row in rows))
    fields = tuple(dict.fromkeys(name for row in rows for name in row.links))
    memories = list(dict.fromkeys(name.partition(".")[0] for name in fields))
    groups = {name: number for number, name in enumerate(dict.fromkeys(row.group for row in rows))}
    return Design(
        seconds=seconds,
        arithmetic=np.array([row.arithmetic for row in rows]),
        fixed=np.array([row.fixed for row in rows]),
        links=np.array([[row.links.get(name, 0.0) for name in fields] for row in rows]).reshape(
            len(rows), len(fields)
        ),
        rates=rates,
        rate_of=np.array([rates.index((row.core, row.kind)) for row in rows]),
        overheads=overheads,
        overhead_of=np.array([overheads.index(row.core) for row in rows]),
        fields=fields,
        memory_of=np.array(
            [memories.index(name.partition(".")[0]) for name in fields], dtype=np.int64
        ),
        group=np.array([groups[row.group] for row in rows]),
        count=count,
        weight=count * (0.5 / count.sum() + 0.5 * np.sqrt(seconds) / (count @ np.sqrt(seconds))),
    )
