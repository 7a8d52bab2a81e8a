"""The fit: slownesses and overheads that make the model's times the measured ones, robust against
outliers. Observations are fitted as arrays, term by term.

The loss is Huber's (P. Huber, "Robust Estimation of a Location Parameter", 1964) on the logarithm
of predicted over measured time, so that a layer that takes ten times as long as the others say
counts linearly, not squared. The model is a maximum of sums, and its minimum lies where it is not
smooth. It is found one parameter at a time: of all values at which some row would be predicted
exactly the best, then those around it. The search starts from the target's figures and from what
the measurements suggest, without overheads and with large ones. The end of the least loss is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask, column_of
from loadmaster.cost.calibration.terms import Observation

Item = TypeVar("Item")

_HUBER = 0.1
"""Distance of logarithms up to which errors count squared: about 10 %."""
_MOST_TRIED = 64
"""Values tried for one parameter at once."""
_SWEEPS = 100
_ENOUGH = 1e-7
"""Improvement of the loss over one sweep with which the search ends."""
_STAY = 1e-9
"""What moving a parameter from the target's figure costs, by the square of the logarithm of its
factor: what does not matter stays."""
_HALVINGS = 50


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
        return overheads[self.overhead_of] + self.fixed + self.arithmetic * values[self.rate_of]

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

    A row counts half by itself and half by the root of its time, which counts up to ten times the
    median: a fit should be right for every layer, more so for long ones, and none of them alone
    decides, however wrong its time.
    """
    times = Counter(observed)
    rows, count = list(times), np.array(list(times.values()))
    seconds = column_of(rows, "seconds")
    root = np.sqrt(np.minimum(seconds, 10 * np.median(seconds)))
    rates, rate_of = _numbered((row.core, row.kind) for row in rows)
    overheads, overhead_of = _numbered(row.core for row in rows)
    fields = tuple(dict.fromkeys(name for row in rows for name, _ in row.links))
    _, memory_of = _numbered(name.partition(".")[0] for name in fields)
    _, group = _numbered(row.group for row in rows)
    return Design(
        seconds=seconds,
        arithmetic=column_of(rows, "arithmetic"),
        fixed=column_of(rows, "fixed"),
        links=np.array([[dict(row.links).get(name, 0.0) for name in fields] for row in rows]),
        rates=rates,
        rate_of=rate_of,
        overheads=overheads,
        overhead_of=overhead_of,
        fields=fields,
        memory_of=memory_of,
        group=group,
        count=count,
        weight=count * (0.5 / count.sum() + 0.5 * root / (count @ root)),
    )


def fit(design: Design, given: Floats, least: Floats, rows: Mask) -> Floats:
    """Fit parameters to some rows; each is at least its ``least``, and what does not matter stays
    as ``given``.

    Deterministic. O(sweeps x parameters x values tried x rows).
    """
    ends = []
    # From the given figures, then without overheads, and with ones that are most of every time.
    for overhead in (None, 0.0, 0.9):
        total, found = 0.0, given
        for stage, free in _stages(design, rows):
            start = found.copy()
            if overhead is not None:
                _start_from_measurements(start, design, least, stage, free, overhead)
            loss, found = _Descent(design, start, given, least, stage, free).run()
            total += loss
        ends.append((total, found))
    return min(ends, key=itemgetter(0))[1]


def balanced(design: Design, found: Floats, rows: Mask) -> Floats:
    """The same parameters, with the rate of a kind slower where its rows together would take less
    time than measured.

    For rows that are a whole step: what a plan predicts is their sum, and typical rows leave that
    too low where some are much slower. Rows that use a second memory are left out. O(kinds x
    halvings x rows).
    """
    near, _ = _stages(design, rows)[0]
    result = found.copy()
    for number in range(len(design.rates)):
        mine = near & (design.rate_of == number) & (design.arithmetic > 0)
        if mine.any():
            result[number] = _rate_of_total(design, found, mine, number)
    return result


def _rate_of_total(design: Design, found: Floats, mine: Mask, number: int) -> float:
    """Return the least factor of a rate, from 1 on, with which its rows take their measured time in
    sum, by bisection."""
    count = design.count[mine]
    measured = float(count @ design.seconds[mine])
    low = float(found[number])
    # Arithmetic alone takes as long as measured.
    high = max(low, measured / float(count @ design.arithmetic[mine]))
    tried = found.copy()
    for _ in range(_HALVINGS):
        tried[number] = middle = (low + high) / 2
        is_less = count @ design.predicted(tried)[mine] < measured
        low, high = (middle, high) if is_less else (low, middle)
    return low


def _stages(design: Design, used: Mask) -> list[tuple[Mask, Ints]]:
    """Rows, and the parameters that they decide.

    Where some rows use one memory and others a second one too, the former say what the core and
    that memory do, whatever is wrong with the model of the second: its links come after them, and
    by themselves.
    """
    everything = [(used, np.arange(design.parameters))]
    if not design.fields:
        return everything
    touched = design.moving(np.ones(design.parameters)) > 0
    near = int(np.argmax(touched[used].sum(axis=0)))
    alone = used & ~np.delete(touched, near, axis=1).any(axis=1)
    if not alone.any() or (alone == used).all():
        return everything
    others = len(design.rates) + np.flatnonzero(design.memory_of != near)
    return [(alone, everything[0][1]), (used & ~alone, others)]


def loss_of(design: Design, found: Floats, rows: Mask | slice = slice(None)) -> float:
    """Weighted Huber loss of the rows."""
    error = np.log(design.predicted(found)[rows] / design.seconds[rows])
    return float(design.weight[rows] @ _huber(error))


def _huber(error: Floats) -> Floats:
    """Return Huber's loss of errors."""
    size = np.abs(error)
    return np.where(size <= _HUBER, 0.5 * size**2, _HUBER * (size - 0.5 * _HUBER))


def _start_from_measurements(
    start: Floats, design: Design, least: Floats, used: Mask, free: Ints, overhead: float
) -> None:
    """Set the free figures of a start from the measurements alone: overheads are a share
    ``overhead`` of the shortest row, each kind is at the rate of its median row and each link at
    that of its fastest rows."""
    for number in free.tolist():
        part = design.part(number)
        mine = used & (part > 0)
        if mine.any():
            ratio = design.seconds[mine] / part[mine]
            if number >= design.first_overhead:
                start[number] = overhead * ratio.min()
            else:
                share = 0.5 if number < len(design.rates) else 0.1
                start[number] = max(least[number], np.quantile(ratio, share))


def _distance_from_given(values: Floats, given: Floats, overhead: Mask | bool) -> Floats:
    """Return the distance of values from the given ones: the squared logarithm of their ratio; for
    overheads, which may be 0, whether they differ."""
    factor = np.maximum(values, TINY) / np.maximum(given, TINY)
    return np.where(overhead, values != given, np.log(factor) ** 2)


@dataclass
class _Descent:
    """Coordinate descent over the parameters ``free`` from one start, ``values``, by the rows
    ``used``."""

    design: Design
    values: Floats
    given: Floats
    least: Floats
    used: Mask
    free: Ints

    def run(self) -> tuple[float, Floats]:
        """Improve one figure after another until a sweep changes the score too little; return the
        score and the figures."""
        before = np.inf
        for _ in range(_SWEEPS):
            for number in self.free.tolist():
                self._improve(number)
            now = self._score()
            if now > before - _ENOUGH:
                break
            before = now
        return self._score(), self.values

    def _score(self) -> float:
        """Return the loss of the fit and the penalty for leaving the given figures."""
        overhead = np.arange(self.design.parameters) >= self.design.first_overhead
        moved = float(_distance_from_given(self.values, self.given, overhead).sum())
        return loss_of(self.design, self.values, self.used) + _STAY * moved

    def _improve(self, number: int) -> None:
        """Give one parameter its best value, all others as they are: a row's time is ``max(other,
        base + part * value)``."""
        rows, other, base, part = self._line(number)
        if not len(rows):
            return
        seconds = self.design.seconds[rows]
        weight = self.design.weight[rows]
        least = self.least[number]
        stay = max(self.given[number], least)
        exact = (seconds - base) / part
        exact = np.unique(exact[exact > least])
        if len(exact) > _MOST_TRIED:
            exact = exact[np.linspace(0, len(exact) - 1, _MOST_TRIED).astype(int)]
        overhead = number >= self.design.first_overhead
        tried = np.unique([*exact, stay, self.values[number], *([0.0] * overhead)])
        for _ in range(3):
            times = np.maximum(np.maximum(other, base + part * tried[:, None]), TINY)
            cost = _huber(np.log(times / seconds)) @ weight
            cost = cost + _STAY * _distance_from_given(tried, self.given[number], overhead)
            best = int(np.argmin(cost))
            low = tried[max(0, best - 1)]
            high = tried[min(len(tried) - 1, best + 1)]
            self.values[number] = tried[best]
            tried = np.unique([*np.linspace(low, high, 17), tried[best], stay])
            tried = tried[tried >= least]

    def _line(self, number: int) -> tuple[Ints, Floats, Floats, Floats]:
        """Return how times depend on one figure: the rows that it matters to and, for each, the
        seconds of the other resources, those of its own resource without it, and the slope."""
        design = self.design
        busy = design.busy(self.values)
        moving = design.moving(self.values)
        part = design.part(number)
        if len(design.rates) <= number < design.first_overhead:
            memory = design.memory_of[number - len(design.rates)]
            mine = moving[:, memory]
            others = np.delete(moving, memory, axis=1)
            other = np.maximum(busy, others.max(axis=1, initial=0.0))
        else:
            mine, other = busy, moving.max(axis=1, initial=0.0)
        rows = np.flatnonzero(self.used & (part > 0))
        base = mine - part * self.values[number]
        return rows, other[rows], np.maximum(base[rows], 0.0), part[rows]
