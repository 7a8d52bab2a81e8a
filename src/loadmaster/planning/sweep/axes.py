"""Axes of a sweep: fields of the target, networks and batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.errors import TargetError
from loadmaster.core.units import Quantity, parse_quantity
from loadmaster.targets.document import with_fields
from loadmaster.targets.hardware import Target

MOST_POINTS = 10_000
"""Most points of one sweep."""
NETWORKS, BATCH, MINI_BATCHES = "networks", "batch", "mini_batches"
_HOW = (
    "write FIELD=LOW:HIGH, such as scratchpad=1MiB:32MiB or cores.ws.count=1:4, or values with"
    " commas between them"
)
_SHORT = {"scratchpad": "B", "bandwidth": "B/s"}
"""Short names of fields that any target has, with their units."""


@dataclass(frozen=True)
class Axis:
    """A field of the target by its dotted path, or ``networks``, ``batch`` or ``mini_batches``, and
    its values; numbers ascend."""

    name: str
    values: tuple[Quantity | str, ...]

    @property
    def is_machine(self) -> bool:
        """Whether the axis changes the machine, not the networks."""
        return self.name not in (NETWORKS, BATCH, MINI_BATCHES)

    @property
    def numbers(self) -> tuple[Quantity, ...]:
        """The values, where all are numbers.

        Raises
        ------
        TargetError
            If one is text.
        """
        numbers = tuple(value for value in self.values if isinstance(value, Quantity))
        if len(numbers) < len(self.values):
            raise TargetError(
                f"{self.name}: {next(v for v in self.values if isinstance(v, str))!r} is no number:"
                " give numbers with units"
            )
        return numbers

    def labels(self) -> tuple[str, ...]:
        """The values as text; rounded, if the rounded values remain distinct."""
        rounded = [str(value) for value in self.values]
        exact = [
            value if isinstance(value, str) else f"{value.exact} {value.unit}".rstrip()
            for value in self.values
        ]
        return tuple(
            short if rounded.count(short) == 1 else long
            for short, long in zip(rounded, exact, strict=True)
        )

    def index(self, value: float | str) -> int:
        """Position of a value, in the form of :func:`plain`, in the axis."""
        return [plain(each) for each in self.values].index(value)


def plain(value: Quantity | str) -> float | str:
    """Convert a value for JSON: numbers in units without prefixes."""
    return value.value if isinstance(value, Quantity) else value


@validate_arguments(TargetError)
def parse_axes(texts: str | Iterable[str]) -> tuple[Axis, ...]:
    """Read ``scratchpad=1MiB:32MiB``, ``cores.ws.count=1:4``, ``bandwidth=4GB/s,10GB/s``,
    ``dram.energy=10pJ/B:40pJ/B:10pJ/B``; one text or several.

    A range ``LOW:HIGH`` doubles from the low end to the high one; of a ``count`` it goes by ones,
    and ``LOW:HIGH:STEP`` by its step. ``scratchpad`` is the capacity of the fast memory,
    ``bandwidth`` that of main memory both ways.

    Raises
    ------
    TargetError
        If an axis is malformed or given twice, or there are more than 10,000 points.
    """
    texts = [texts] if isinstance(texts, str) else texts
    axes = [parse_axis(text, "--sweep", doubling=True) for text in texts]
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise TargetError(
                f"--sweep: {name} is swept already: put all its values into one --sweep, with"
                " commas between them"
            )
    points = math.prod(len(axis.values) for axis in axes)
    if points > MOST_POINTS:
        raise TargetError(
            f"--sweep: {points} points are more than the {MOST_POINTS} of one sweep: give fewer"
            " values"
        )
    return tuple(axes)


@validate_arguments(TargetError)
def parse_axis(text: str, option: str = "--vary", *, doubling: bool = False) -> Axis:
    """Read one axis as :func:`parse_axes` does; unless ``doubling``, a range without a step goes by
    its low end: 256KiB:8MiB has 32 values.

    Raises
    ------
    TargetError
        As :func:`parse_axes`; ``option`` is named.
    """
    name, _, values = text.partition("=")
    name = name.strip().replace("mini-batches", MINI_BATCHES)
    if not name or not values.strip():
        raise TargetError(f"{option} {text!r}: {_HOW}")
    where = f"{option} {text!r}"
    found = [
        value
        for part in values.split(",")
        for value in _values(name, part.strip(), where, doubling)
    ]
    units = {value.unit for value in found if isinstance(value, Quantity)} - {""} or {
        _SHORT.get(name, "")
    }
    if len(units) > 1:
        raise TargetError(
            f"{option} {text!r}: its values have different units: {' and '.join(sorted(units))}"
        )
    unit = units.pop()
    numbers = sorted({value.value for value in found if isinstance(value, Quantity)})
    words = dict.fromkeys(value for value in found if isinstance(value, str))
    if name in (BATCH, MINI_BATCHES) and (
        words or unit or not all(number >= 1 and number % 1 == 0 for number in numbers)
    ):
        raise TargetError(f"{option} {text!r}: give whole numbers of at least 1")
    return Axis(name, (*(Quantity(number, unit) for number in numbers), *words))


def _values(name: str, part: str, where: str, doubling: bool) -> Iterator[Quantity | str]:
    """Yield the values of one part of an axis: a word, a number, or a range ``low:high:step``,
    which always ends with ``high``. Raise TargetError for a malformed range."""
    low, colon, rest = part.partition(":")
    if not part:
        raise TargetError(f"{where}: {_HOW}")
    if name == NETWORKS or not (part[0].isdigit() or part[0] in "+-."):
        yield part
        return
    first = parse_quantity(low)
    if not colon:
        yield first
        return
    high, _, step = rest.partition(":")
    last = parse_quantity(high)
    if not 0 < first.value <= last.value < math.inf:
        raise TargetError(f"{where}: a range goes from a low end above zero to a finite high end")
    by = (
        parse_quantity(step).value
        if step
        else 1
        if name.endswith("count")
        else None
        if doubling
        else first.value
    )
    if by is not None and not by > 0:
        raise TargetError(f"{where}: a step is above zero")
    unit = last.unit or first.unit
    if {first.unit, last.unit} - {unit}:
        raise TargetError(f"{where}: the two ends of a range have one unit")
    if by is not None and (last.value - first.value) / by > MOST_POINTS:
        raise TargetError(f"{where}: more than {MOST_POINTS} points: give a larger step")
    value, number = first.value, 0
    # Sums of steps are rounded, and may end just below the high end.
    while value < last.value * 0.999_999_999_999:
        yield Quantity(value, unit)
        number += 1
        value = first.value * 2**number if by is None else first.value + number * by
    yield last


def machine(target: Target, settings: Sequence[tuple[str, Quantity | str]]) -> Target:
    """Return the target with fields set to values of axes.

    Raises
    ------
    TargetError
        If there is no such field, or the value is not valid for it.
    """
    return with_fields(
        target,
        [override for name, value in settings for override in _overrides(target, name, value)],
    )


def _overrides(target: Target, name: str, value: Quantity | str) -> list[str]:
    """Return the ``--set`` overrides that set a field of the target to a value."""
    text = (
        value if isinstance(value, str) else f"{value.exact}{' ' if value.unit else ''}{value.unit}"
    )
    if name == "scratchpad":
        if target.fast is None:
            raise TargetError(f"scratchpad: {target.name} has no fast memory: vary another field")
        return [f"{target.fast.name}.capacity={text}"]
    if name == "bandwidth":
        main = target.main
        # As documents of targets write them.
        ways = ("",) if main.read_bandwidth == main.write_bandwidth else ("read_", "write_")
        return [f"{main.name}.{way}bandwidth={text}" for way in ways]
    if "." not in name and name != "static_power":
        raise TargetError(
            f"{name}: {target.name} has no such field to vary: choose {', '.join(_SHORT)},"
            f" static_power, or a field of a table, such as {target.main.name}.capacity"
        )
    return [f"{name}={text}"]
