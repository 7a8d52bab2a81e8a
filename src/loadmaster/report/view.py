"""The view of an answer: figures, tables and charts as plain records.

A builder makes one `Page` of each answer. Three printers show it and know nothing of plans:
`terminal` (rich), `page` (HTML with `charts`) and `notebook` (HTML with `picture`).
Names in records are as they were read from files; the printers escape them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.core.units import format_bytes
from loadmaster.report.text import NOTHING, Units, distance, percent, plural

_TALL = 1.6
"""Ratio to the peak up to which a capacity is drawn."""


class Part:
    """A part of what is shown: text, a table or a chart; false if there is nothing in it."""


@dataclass(frozen=True)
class Chart(Part):
    """A part that only pages and notebooks draw, with a remark below it; over an axis of its own,
    if it does not share that of the page."""

    title: str
    remark: str = field(default="", kw_only=True)
    axis: Axis | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Figure:
    """A figure with its lower or ``upper`` bound and its distance to the bound, as text; without a
    bound, ``distance`` says what belongs to the value."""

    name: str
    value: str
    distance: str = ""
    bound: str = ""
    upper: bool = False


def bounded(
    name: str,
    value: float | None,
    bound: float,
    shown: Callable[[float], str],
    upper: bool = False,
) -> Figure:
    """Make a figure of a cost, if one was found, and its lower bound, or of a rate and its
    ``upper`` one."""
    if value is None:
        return Figure(name, NOTHING, "", shown(bound))
    return Figure(name, shown(value), distance(value, bound, upper), shown(bound), upper)


class Share(str):
    """A share in a table: its percentage, which pages show with a bar."""

    value: float

    def __new__(cls, value: float) -> Share:
        """Format the share."""
        made = super().__new__(cls, percent(value))
        made.value = value
        return made


Row = Mapping[str, str]
"""Cells by the heads of their columns."""
Facts = dict[str, str]
"""Rows of a tooltip; ``name`` is its head."""
Json = Mapping[str, Any]
"""An object as commands print it with ``--json``."""


@dataclass(frozen=True)
class Table(Part):
    """A table with a remark on rows that are left out; one without rows is not shown.

    Columns whose head begins with ``>`` are aligned right. In a terminal, those whose head begins
    with ``~`` may be wrapped, those with ``+`` are left out, and so are rows beyond ``limit``;
    names in the first column are clipped to ``width`` characters there.
    """

    rows: Sequence[Row]
    rest: str = ""
    limit: int | None = None
    width: int = 60

    def __bool__(self) -> bool:
        return bool(self.rows)


def first_rows(rows: Sequence[Row], limit: int, noun: str) -> Table:
    """Make a table of the first rows that says how many more there are."""
    left_out = len(rows) - limit
    return Table(rows[:limit], f"and {plural(left_out, noun)}" * (left_out > 0))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Make a table of rows without heads."""
    return Table([dict(zip(heads, row, strict=True)) for row in rows])


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Make a table of names and what is said of each."""
    return table(("", "~"), rows)


@dataclass(frozen=True)
class Line(Part):
    """A line of text: ``style`` is ``"strong"`` or empty."""

    text: str
    style: str = ""

    def __bool__(self) -> bool:
        return bool(self.text)


@dataclass(frozen=True)
class Notes(Part):
    """A list of remarks."""

    lines: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.lines)


@dataclass(frozen=True)
class Figures(Part):
    """Headline figures: cards on a page, a table in a terminal with ``head`` above the names."""

    figures: Sequence[Figure]
    head: str = "Figure"

    def table(self) -> Table:
        """Make the table, with a column of bounds if there are any."""
        bounds = any(each.bound for each in self.figures)
        rows = []
        for each in self.figures:
            bound = {">Bound": each.bound, "~Distance": each.distance}
            row = {self.head: each.name, ">Value": each.value}
            rows.append(row | (bound if bounds else {"~": each.distance}))
        return Table(rows)


@dataclass(frozen=True)
class Beside(Part):
    """Tables that stand side by side in a terminal, if each has rows."""

    tables: Sequence[Table]

    def __bool__(self) -> bool:
        return all(self.tables)


@dataclass(frozen=True)
class Legend(Part):
    """The legend of a page: a button for each group of its axis, which hides the shapes of that
    group in all charts."""


@dataclass(frozen=True)
class Shape:
    """A rectangle of a chart over time: what holds from ``start`` to ``end``, between two heights.

    ``tip`` makes the tooltip. ``tint`` numbers the shades of a colour.
    """

    start: float
    end: float
    low: float
    high: float
    tip: Callable[[], Facts] = dict
    colour: int = 0
    tint: int = 0
    alpha: float = 0.75


@dataclass(frozen=True)
class Timeline(Chart):
    """Lanes with what runs on them over time: that of lane k lies between the heights k and k +
    1."""

    lanes: Sequence[str]
    shapes: Sequence[Shape]


@dataclass(frozen=True)
class MemoryMap(Chart):
    """Addresses of a memory over time, with its peak, the lower bound of the peak, and its
    capacity."""

    shapes: Sequence[Shape]
    peak: int
    bound: int | None = None
    capacity: int | None = None

    @property
    def levels(self) -> dict[str, int]:
        """What is known of peak, bound and capacity, by name."""
        levels = {"peak": self.peak, "lower bound": self.bound, "capacity": self.capacity}
        return {name: size for name, size in levels.items() if size is not None}

    @property
    def sizes(self) -> str:
        """The levels as text."""
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in self.levels.items())

    @property
    def top(self) -> int:
        """The highest level that is drawn: a capacity far above the peak would compress the map."""
        return max(size for size in (1, *self.levels.values()) if size <= _TALL * max(1, self.peak))


@dataclass(frozen=True)
class Curve(Chart):
    """An amount that changes in steps from 0 to the height of each, zero between them.

    It is drawn in the one of ``units`` that suits it, and ``limit`` as a line with its name.
    """

    label: str
    shapes: Sequence[Shape]
    units: Units = ()
    limit: tuple[float, str] | None = None


def steps(amounts: Iterable[tuple[float, float, float]]) -> list[Shape]:
    """Make the shapes of a curve of ``(start, end, amount)``."""
    return [Shape(start, end, 0, amount) for start, end, amount in amounts]


@dataclass(frozen=True)
class Mark:
    """A point of a chart with its tooltip; ``hollow`` points are less important, and ``bound`` is
    the lower end of a bar below the point."""

    x: float
    y: float
    name: str
    facts: Facts
    colour: int = 0
    size: float = 8.0
    hollow: bool = False
    bound: float | None = None


@dataclass(frozen=True)
class Path:
    """A line through points; ``colour`` -1 is that of text."""

    points: Sequence[tuple[float, float]]
    colour: int = -1
    dash: str = "solid"


@dataclass(frozen=True)
class Scatter(Chart):
    """Points over two axes, each in the one of its ``units`` that suits them; ``groups`` names the
    colours, and ``limit`` is a horizontal line with its name."""

    x: str
    y: str
    marks: Sequence[Mark]
    paths: Sequence[Path] = ()
    groups: Sequence[str] = ()
    units: tuple[Units, Units] = ((), ())
    limit: tuple[float, str] | None = None
    logarithmic: bool = False


PAGE, TERMINAL, NOTEBOOK = "page", "terminal", "notebook"
DRAWN = (PAGE, NOTEBOOK)
BOTH = (PAGE, TERMINAL)
ALL = (PAGE, TERMINAL, NOTEBOOK)


@dataclass(frozen=True)
class Section:
    """Parts under a heading, and the printers that show them; left out if there is nothing in them.

    Pages have a ``hint`` above them, in small print.
    """

    heading: str
    parts: Sequence[Part]
    on: Sequence[str] = (PAGE,)
    hint: str = ""

    def __bool__(self) -> bool:
        return any(self.parts)


@dataclass(frozen=True)
class Axis:
    """The time axis that the charts of a page share, from ``start`` to ``end``.

    Its unit suits ``scale`` seconds; ``label`` names an axis that has no unit. ``groups`` are the
    networks that the legend hides.
    """

    end: float
    scale: float = 1.0
    start: float = 0.0
    label: str = ""
    groups: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """All that is shown of an answer: what it is, the answer in a line, and sections.

    Sections, and the rows of the answer's table, are made when they are asked for.
    """

    title: str
    description: str
    sections: Callable[[], Sequence[Section]]
    axis: Axis = Axis(1.0)
    headline: str = ""
    rows: Callable[[], Iterable[Json]] = tuple

    def on(self, printer: str) -> list[Section]:
        """Return the sections that a printer shows, with the parts in which there is anything."""
        return [
            replace(section, parts=list(filter(None, section.parts)))
            for section in self.sections()
            if section and printer in section.on
        ]
