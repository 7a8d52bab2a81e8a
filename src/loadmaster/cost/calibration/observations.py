"""Measured times beside what the model says of the same work, term by term: what a calibration
fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask

Item = TypeVar("Item")


class Observation(NamedTuple):
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
        Fields of the target (``dram.read_bandwidth``), each with the seconds of that link at the
        target's figure.
    """

    group: str
    kind: str
    core: str
    seconds: float
    arithmetic: float
    fixed: float
    links: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class MeasuredCopy:
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
    copies: tuple[MeasuredCopy, ...] = ()
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

    Parameters stand in one array: factors on the time that the target's figures give, of arithmetic
    by rate and of links by field, and overheads in seconds.
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

    @property
    def first_overhead(self) -> int:
        """The number of the first parameter that is an overhead."""
        return len(self.rates) + len(self.fields)

    @property
    def parameters(self) -> int:
        """How many parameters there are."""
        return self.first_overhead + len(self.overheads)

    def of_kind(self, kind: str) -> Mask:
        """Whether each row is of a kind of operator; all rows are of ``all``."""
        return np.array([kind in ("all", each) for _, each in self.rates])[self.rate_of]

    def part(self, number: int) -> Floats:
        """Return the factor of one parameter in every row."""
        if number < len(self.rates):
            return np.where(self.rate_of == number, self.arithmetic, 0.0)
        if number < self.first_overhead:
            return self.links[:, number - len(self.rates)]
        return np.where(self.overhead_of == number - self.first_overhead, 1.0, 0.0)

    def busy(self, values: Floats) -> Floats:
        """Seconds of the core in every row."""
        overheads = values[self.first_overhead :]
        return np.asarray(
            overheads[self.overhead_of] + self.fixed + self.arithmetic * values[self.rate_of]
        )

    def moving(self, values: Floats) -> Floats:
        """Seconds of each memory's link, shape (rows, memories)."""
        seconds = np.zeros((len(self.seconds), int(self.memory_of.max(initial=-1)) + 1))
        factors = values[len(self.rates) : self.first_overhead]
        np.add.at(seconds.T, self.memory_of, (self.links * factors).T)
        return seconds

    def predicted(self, values: Floats) -> Floats:
        """Seconds of every row."""
        links = self.moving(values).max(axis=1, initial=TINY)
        return np.asarray(np.maximum(self.busy(values), links))


TINY = 1e-15
"""The least seconds that are predicted, and the least factor."""


def _numbered(items: Iterable[Item]) -> tuple[tuple[Item, ...], Ints]:
    """Return the distinct items in their order, and the number of each item among them."""
    known: dict[Item, int] = {}
    numbers = [known.setdefault(item, len(known)) for item in items]
    return tuple(known), np.array(numbers, dtype=np.int64)


def design_of(observed: Sequence[Observation]) -> Design:
    """Make the arrays of observations. O(rows x links).

    A row counts half by itself and half by the root of its time: a fit should be right for every
    layer, more so for long ones, and none of them alone decides.
    """
    times = Counter(observed)
    rows, count = list(times), np.array(list(times.values()))
    seconds = np.array([row.seconds for row in rows])
    rates, rate_of = _numbered((row.core, row.kind) for row in rows)
    overheads, overhead_of = _numbered(row.core for row in rows)
    fields = tuple(dict.fromkeys(name for row in rows for name, _ in row.links))
    _, memory_of = _numbered(name.partition(".")[0] for name in fields)
    _, group = _numbered(row.group for row in rows)
    return Design(
        seconds=seconds,
        arithmetic=np.array([row.arithmetic for row in rows]),
        fixed=np.array([row.fixed for row in rows]),
        links=np.array([[dict(row.links).get(name, 0.0) for name in fields] for row in rows]),
        rates=rates,
        rate_of=rate_of,
        overheads=overheads,
        overhead_of=overhead_of,
        fields=fields,
        memory_of=memory_of,
        group=group,
        count=count,
        weight=count * (0.5 / count.sum() + 0.5 * np.sqrt(seconds) / (count @ np.sqrt(seconds))),
    )
