"""The view of an answer: figures, tables and charts as plain records.

A builder makes one `Page` of each answer. Three printers show pages without knowing about plans:
`terminal` (rich), `page` (HTML with `charts`) and `notebook` (HTML). Records have
unescaped names; the printers escape them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.core.units import Units, format_bytes
from loadmaster.report.text import NOTHING, distance, percent, plural

_TALL = 1.6
"""Largest ratio of a capacity to the peak with which the capacity is drawn."""


class PagePart:
    """A part of a page: text, a table or a chart; false if empty."""


@dataclass(frozen=True)
class Chart(PagePart):
    """A chart with a remark below, drawn by pages and notebooks only; with its own time axis, or
    None for the page's."""

    title: str
    remark: str = field(default="", kw_only=True)
    axis: TimeAxis | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Figure:
    """A figure with its lower or ``upper`` bound and its distance to the bound, as text; without a
    bound, ``distance`` is a remark on the value."""

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
    """Make a figure of a cost (None: not found) and its lower bound, or of a rate and its ``upper``
    bound."""
    if value is None:
        return Figure(name, NOTHING, "", shown(bound))
    return Figure(name, shown(value), distance(value, bound, upper), shown(bound), upper)


class Share(str):
    """A share in a table: its percentage, which pages show with a bar."""

    value: float

    def __new__(cls, value: float) -> Share:
        """Format the share, and keep its value for the bar."""
        made = super().__new__(cls, percent(value))
        made.value = value
        return made


PLAIN: Units = ((1.0, ""),)
"""The unit of numbers without one."""
Row = Mapping[str, str]
"""A row of a table: cells by the headings of their columns."""
Facts = dict[str, str]
"""Rows of a tooltip by label; ``name`` is the heading."""
Json = Mapping[str, Any]
"""An object as commands print it with ``--json``."""


@dataclass(frozen=True)
class Table(PagePart):
    """A table with a remark on omitted rows; a table without rows is not shown.

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
    """Make a table of the first ``limit`` rows with a remark on the number of omitted ones."""
    left_out = len(rows) - limit
    return Table(rows[:limit], f"and {plural(left_out, noun)}" * (left_out > 0))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Make a table of headings and rows of cells."""
    return Table([dict(zip(heads, row, strict=True)) for row in rows])


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Make a table of two columns without headings."""
    return table(("", "~"), rows)


@dataclass(frozen=True)
class Line(PagePart):
    """A line of text: ``style`` is ``"strong"`` or empty."""

    text: str
    style: str = ""

    def __bool__(self) -> bool:
        return bool(self.text)


@dataclass(frozen=True)
class Notes(PagePart):
    """A list of remarks."""

    lines: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.lines)


@dataclass(frozen=True)
class Figures(PagePart):
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
class Beside(PagePart):
    """Tables that stand side by side in a terminal, if each has rows."""

    tables: Sequence[Table]

    def __bool__(self) -> bool:
        return all(self.tables)


@dataclass(frozen=True)
class Legend(PagePart):
    """The legend of a page: a button for each group of its axis, which hides the shapes of that
    group in all charts."""


@dataclass(frozen=True)
class Shape:
    """A rectangle of a chart over time, from ``start`` to ``end`` and between two heights.

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
class TimelineChart(Chart):
    """Lanes with shapes over time; shapes of lane k are between the heights k and k + 1."""

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
        """Peak, bound and capacity by name, without unknown ones."""
        levels = {"peak": self.peak, "lower bound": self.bound, "capacity": self.capacity}
        return {name: size for name, size in levels.items() if size is not None}

    @property
    def sizes(self) -> str:
        """The levels as text."""
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in self.levels.items())

    @property
    def top(self) -> int:
        """Highest level to draw; a capacity far above the peak would compress the map."""
        return max(size for size in (1, *self.levels.values()) if size <= _TALL * max(1, self.peak))


@dataclass(frozen=True)
class Curve(Chart):
    """An amount over time in steps, zero between them.

    It is drawn in the most suitable of ``units``, with a line at the ``limit`` (value and name).
    """

    label: str
    shapes: Sequence[Shape]
    units: Units = PLAIN
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
class Polyline:
    """A line through points; ``colour`` -1 is that of text."""

    points: Sequence[tuple[float, float]]
    colour: int = -1
    dash: str = "solid"


@dataclass(frozen=True)
class Scatter(Chart):
    """Points over two axes, each in the most suitable of its ``units``; ``groups`` are the names of
    colours, and ``limit`` is a horizontal line with its name."""

    x: str
    y: str
    marks: Sequence[Mark]
    paths: Sequence[Polyline] = ()
    groups: Sequence[str] = ()
    units: tuple[Units, Units] = (PLAIN, PLAIN)
    limit: tuple[float, str] | None = None
    logarithmic: bool = False


PAGE, TERMINAL, NOTEBOOK = "page", "terminal", "notebook"
DRAWN = (PAGE, NOTEBOOK)
BOTH = (PAGE, TERMINAL)
ALL = (PAGE, TERMINAL, NOTEBOOK)


@dataclass(frozen=True)
class Section:
    """Parts under a heading, and the printers that show them; a section without parts is left out.

    Pages show the ``hint`` above the parts, in small print.
    """

    heading: str
    parts: Sequence[PagePart]
    on: Sequence[str] = (PAGE,)
    hint: str = ""

    def __bool__(self) -> bool:
        return any(self.parts)


@dataclass(frozen=True)
class TimeAxis:
    """The time axis that the charts of a page share, from ``start`` to ``end``.

    Its unit suits ``scale`` seconds; ``label`` is the name of an axis without a unit. The legend
    can hide the networks ``groups``.
    """

    end: float
    scale: float = 1.0
    start: float = 0.0
    label: str = ""
    groups: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """The view of an answer: title, subtitle, the answer in a line, and sections.

    Sections, and the rows of the answer's table, are made on demand.
    """

    title: str
    description: str
    sections: Callable[[], Sequence[Section]]
    axis: TimeAxis = TimeAxis(1.0)
    headline: str = ""
    rows: Callable[[], Iterable[Json]] = tuple

    def on(self, printer: str) -> list[Section]:
        """Return the sections that a printer shows, without empty parts."""
        return [
            replace(section, parts=list(filter(None, section.parts)))
            for section in self.sections()
            if section and printer in section.on
        ]
