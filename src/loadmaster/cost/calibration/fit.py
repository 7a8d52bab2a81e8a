"""The fit: slownesses and overheads that make the model's times the measured ones, robust against
outliers.

The loss is Huber's (P. Huber, "Robust Estimation of a Location Parameter", 1964) on the logarithm
of predicted over measured time, so that a layer that takes ten times as long as the others say
counts linearly, not squared. The model is a maximum of sums, and its minimum lies where it is not
smooth. It is found one parameter at a time: of all values at which some row would be predicted
exactly the best, then those around it. The search starts from the target's figures and from what
the measurements suggest, and takes the better end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.cost.calibration.observations import Design

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
_TINY = 1e-15
_HALVINGS = 50


@dataclass(frozen=True, eq=False)
class Fit:
    """Factors on the time that the target's figures give: of arithmetic by rate, of links by field;
    and overheads in seconds."""

    rates: Floats
    links: Floats
    overheads: Floats

    def predicted(self, design: Design) -> Floats:
        """Seconds of every row."""
        return np.asarray(
            np.maximum(
                np.maximum(_busy(design, self), _moving(design, self).max(axis=1, initial=0.0)),
                _TINY,
            )
        )


def fit(design: Design, given: Fit, slowest: Floats, rows: Mask | None = None) -> Fit:
    """Fit to all rows, or to those of a mask; a rate's factor is at least its ``slowest``, and what
    does not matter stays as ``given``.

    Deterministic. O(sweeps x parameters x values tried x rows).
    """
    used = np.ones(len(design.seconds), dtype=bool) if rows is None else rows
    found = given
    for stage, free in _stages(design, used):
        starts = (found, _from_measurements(design, found, stage, slowest, free))
        found = min(
            (_Search(design, start, given, stage, slowest, free).run() for start in starts),
            key=lambda end: end[0],
        )[1]
    return found


def balanced(design: Design, found: Fit, rows: Mask | None = None) -> Fit:
    """The same fit, with the rate of a kind slower where its rows together would take less time
    than measured.

    For rows that are a whole step: what a plan predicts is their sum, and typical rows leave that
    too low where some are much slower. Rows that use a second memory are left out. O(kinds x
    halvings x rows).
    """
    used = np.ones(len(design.seconds), dtype=bool) if rows is None else rows
    near, _ = _stages(design, used)[0]
    rates = found.rates.copy()
    for number in range(len(rates)):
        mine = near & (design.rate_of == number) & (design.arithmetic > 0)
        if mine.any():
            rates[number] = _rate_of_total(design, found, mine, number)
    return Fit(rates, found.links, found.overheads)


def _rate_of_total(design: Design, found: Fit, mine: Mask, number: int) -> float:
    """The least factor of a rate, from the fit's on, with which its rows take their measured time,
    by bisection."""
    count, seconds, arithmetic = design.count[mine], design.seconds[mine], design.arithmetic[mine]
    measured = float(count @ seconds)
    low = float(found.rates[number])
    # Arithmetic alone takes as long as measured.
    high = max(low, measured / float(count @ arithmetic))
    for _ in range(_HALVINGS):
        rates = found.rates.copy()
        rates[number] = middle = (low + high) / 2
        total = float(count @ Fit(rates, found.links, found.overheads).predicted(design)[mine])
        low, high = (middle, high) if total < measured else (low, middle)
    return low


def _stages(design: Design, used: Mask) -> list[tuple[Mask, Mask | None]]:
    """Rows, and which link parameters alone are free (None: everything is).

    Where some rows use one memory and others a second one too, the former say what the core and
    that memory do, whatever is wrong with the model of the second: it comes after them, and by
    itself.
    """
    if not len(design.fields):
        return [(used, None)]
    touched = np.stack(
        [
            (design.links[:, design.memory_of == m] > 0).any(axis=1)
            for m in range(int(design.memory_of.max()) + 1)
        ]
    )
    near = int(np.argmax(touched[:, used].sum(axis=1)))
    alone = used & ~np.delete(touched, near, axis=0).any(axis=0)
    if not alone.any() or (alone == used).all():
        return [(used, None)]
    return [(alone, None), (used & ~alone, design.memory_of != near)]


def loss_of(design: Design, found: Fit, rows: Mask) -> float:
    """Weighted Huber loss of the rows."""
    error = np.log(found.predicted(design)[rows] / design.seconds[rows])
    return float(design.weight[rows] @ _huber(error))


def _huber(error: Floats) -> Floats:
    size = np.abs(error)
    return np.asarray(np.where(size <= _HUBER, 0.5 * size**2, _HUBER * (size - 0.5 * _HUBER)))


def _busy(design: Design, found: Fit) -> Floats:
    return np.asarray(
        found.overheads[design.overhead_of]
        + design.fixed
        + design.arithmetic * found.rates[design.rate_of]
    )


def _moving(design: Design, found: Fit) -> Floats:
    """Seconds of each memory's link, shape (rows, memories)."""
    memories = int(design.memory_of.max(initial=-1)) + 1
    seconds = np.zeros((len(design.seconds), memories))
    np.add.at(seconds.T, design.memory_of, (design.links * found.links).T)
    return seconds


def _from_measurements(
    design: Design, given: Fit, used: Mask, slowest: Floats, free: Mask | None
) -> Fit:
    """A start that knows nothing of the target: each kind at the rate of its median row, each link
    at that of its quickest rows."""
    rates, links = given.rates.copy(), given.links.copy()
    for number in range(len(rates) if free is None else 0):
        mine = used & (design.rate_of == number) & (design.arithmetic > 0)
        if mine.any():
            rates[number] = max(
                float(slowest[number]),
                float(np.median(design.seconds[mine] / design.arithmetic[mine])),
            )
    for number in range(len(links)):
        mine = used & (design.links[:, number] > 0)
        if mine.any() and (free is None or free[number]):
            links[number] = float(
                np.quantile(design.seconds[mine] / design.links[mine, number], 0.1)
            )
    return Fit(rates, links, np.zeros(len(design.overheads)) if free is None else given.overheads)


def _strayed(values: Floats, given: Floats | float, overheads: bool) -> Floats:
    """How far values are from what was given: squares of the logarithm of their ratio; for
    overheads, which may be nothing, 0 or 1."""
    if overheads:
        return np.asarray(values != given, dtype=np.float64)
    return np.asarray(np.log(np.maximum(values, _TINY) / given) ** 2)


class _Search:
    """Coordinate descent from one start."""

    def __init__(
        self, design: Design, start: Fit, given: Fit, used: Mask, slowest: Floats, free: Mask | None
    ) -> None:
        self._design, self._used, self._slowest = design, used, slowest
        everything = [
            (what, number)
            for what, values in enumerate(vars(start).values())
            for number in range(len(values))
        ]
        self._free = (
            everything if free is None else [(1, int(number)) for number in np.flatnonzero(free)]
        )
        self._given = (given.rates, given.links, given.overheads)
        self._values = [start.rates.copy(), start.links.copy(), start.overheads.copy()]

    def run(self) -> tuple[float, Fit]:
        before = np.inf
        for _ in range(_SWEEPS):
            for what, number in self._free:
                self._improve(what, number)
            now = self._score()
            if now > before - _ENOUGH:
                break
            before = now
        return self._score(), self._fit()

    def _fit(self) -> Fit:
        return Fit(*(values.copy() for values in self._values))

    def _score(self) -> float:
        moved = sum(
            float(_strayed(values, given, what == 2).sum())
            for what, (values, given) in enumerate(zip(self._values, self._given, strict=True))
        )
        return loss_of(self._design, self._fit(), self._used) + _STAY * moved

    def _improve(self, what: int, number: int) -> None:
        """Give one parameter its best value, all others as they are: a row's time is ``max(other,
        base + part * value)``."""
        rows, other, base, part = self._line(what, number)
        if not len(rows):
            return
        seconds, weight = self._design.seconds[rows], self._design.weight[rows]
        least = float(self._slowest[number]) if what == 0 else 0.0 if what == 2 else _TINY
        stay = float(self._given[what][number])
        exact = (seconds - base) / part
        exact = np.unique(exact[exact > least])
        if len(exact) > _MOST_TRIED:
            exact = exact[np.linspace(0, len(exact) - 1, _MOST_TRIED).astype(int)]
        tried = np.unique(
            np.concatenate(
                [
                    exact,
                    [max(stay, least), self._values[what][number], *([0.0] if what == 2 else [])],
                ]
            )
        )
        for _ in range(3):
            times = np.maximum(
                np.maximum(other[None, :], base[None, :] + part[None, :] * tried[:, None]), _TINY
            )
            cost = _huber(np.log(times / seconds[None, :])) @ weight
            cost = cost + _STAY * _strayed(tried, stay, what == 2)
            best = int(np.argmin(cost))
            low, high = tried[max(0, best - 1)], tried[min(len(tried) - 1, best + 1)]
            self._values[what][number] = tried[best]
            tried = np.unique(
                np.concatenate([np.linspace(low, high, 17), [tried[best], max(stay, least)]])
            )
            tried = tried[tried >= least]

    def _line(self, what: int, number: int) -> tuple[Ints, Floats, Floats, Floats]:
        design, found = self._design, self._fit()
        moving = _moving(design, found)
        if what == 1:
            memory = design.memory_of[number]
            part = design.links[:, number]
            base = moving[:, memory] - part * found.links[number]
            others = np.delete(moving, memory, axis=1).max(axis=1, initial=0.0)
            other = np.maximum(_busy(design, found), others)
        else:
            mine = (design.rate_of if what == 0 else design.overhead_of) == number
            part = np.where(mine, design.arithmetic if what == 0 else 1.0, 0.0)
            value = found.rates[number] if what == 0 else found.overheads[number]
            base = _busy(design, found) - part * value
            other = moving.max(axis=1, initial=0.0)
        rows = np.flatnonzero(self._used & (part > 0))
        return rows, other[rows], np.maximum(base[rows], 0.0), part[rows]
