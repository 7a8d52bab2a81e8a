"""The view of an answer: figures, tables and charts as plain records.

Builders make these records once for each answer. Three printers show them and know nothing of
plans: `terminal` (rich), `page` (HTML with `bokeh_charts`) and `notebook` (HTML with `picture`).
Names in records are as they were read from files; the printers escape them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadmaster.report.text import clipped, excess, percent, plural, printable


class Part:
    """A part of what is shown: text, a table or a chart."""


@dataclass(frozen=True)
class Chart(Part):
    """A part that only pages and notebooks draw."""

    title: str


@dataclass(frozen=True)
class Figure:
    """A figure with its lower or ``upper`` bound and its distance to the bound, as text; without a
    bound, ``distance`` says what belongs to the value."""

    name: str
    value: str
    bound: str = ""
    distance: str = ""
    upper: bool = False


@dataclass(frozen=True)
class Share:
    """A share in a table: a bar and its percentage."""

    value: float

    @property
    def text(self) -> str:
        """The percentage."""
        return percent(self.value)


@dataclass(frozen=True)
class Shaded:
    """A text in a table over a colour that is the darker the larger ``share``."""

    text: str
    share: float


@dataclass(frozen=True)
class Marked:
    """A name in a table with the colour of its shapes in charts."""

    text: str
    colour: int


Cell = str | Share | Shaded | Marked


@dataclass(frozen=True)
class Table(Part):
    """A table with a remark on rows that are left out.

    Columns whose head begins with ``>`` are aligned right; in a terminal, those whose head begins
    with ``~`` may be wrapped.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    rest: str = ""

    def brief(self, *columns: str, limit: int | None = None, width: int = 24) -> Table:
        """Return some of the columns, by head, or all, and the first rows; names in the first
        column are clipped to ``width`` characters and the other rows are counted."""
        columns = columns or tuple(self.columns)
        at = [self.columns.index(column) for column in columns]
        rows: list[list[Cell]] = [[row[i] for i in at] for row in self.rows[:limit]]
        for row in rows:
            row[0] = clipped(printable(text_of(row[0])), width)
        left_out = len(self.rows) - len(rows)
        if left_out:
            rows.append([f"{left_out} more", *[""] * (len(at) - 1)])
        return replace(self, columns=columns, rows=rows, rest="")


def first_rows(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], limit: int, noun: str
) -> Table:
    """Make a table of the first rows that says how many more there are."""
    left_out = len(rows) - limit
    return Table(columns, rows[:limit], f"and {plural(left_out, noun)}" * (left_out > 0))


def text_of(cell: Cell) -> str:
    """Return what a cell says."""
    return cell if isinstance(cell, str) else cell.text


@dataclass(frozen=True)
class Line(Part):
    """A line of text: ``style`` is ``"strong"``, ``"hint"`` (small print), ``"heading"`` or
    empty."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Notes(Part):
    """A list of remarks."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Figures(Part):
    """Headline figures: cards on a page, a table in a terminal with ``head`` above the names."""

    figures: Sequence[Figure]
    head: str = "Figure"


@dataclass(frozen=True)
class Beside(Part):
    """Tables that stand side by side in a terminal."""

    tables: Sequence[Table]


@dataclass(frozen=True)
class Legend(Part):
    """The legend of a page: a button for each group of its axis, which hides the shapes of that
    group in all charts."""


Tip = Callable[[int], dict[str, str]]
"""The tooltip of the shape of an item: ``name``, then rows."""


@dataclass(frozen=True)
class Span:
    """An interval in seconds on a lane; ``tint`` numbers the shades of a colour."""

    lane: int
    start: float
    end: float
    colour: int = 0
    tint: int = 0
    alpha: float = 0.85


@dataclass(frozen=True)
class Timeline(Chart):
    """Lanes with what runs on them over time.

    ``stacked``: intervals that overlap in a lane lie one above the other, over a time axis of their
    own.
    """

    lanes: Sequence[str]
    spans: Sequence[Span]
    tip: Tip
    noun: str = "jobs"
    stacked: bool = False


@dataclass(frozen=True)
class Box:
    """Addresses [low, high) that are taken over [start, end)."""

    start: float
    end: float
    low: int
    high: int
    colour: int = 0
    alpha: float = 0.6


@dataclass(frozen=True)
class MemoryMap(Chart):
    """Addresses of a memory over time, with its peak, the lower bound of the peak, and its
    capacity."""

    boxes: Sequence[Box]
    tip: Tip
    peak: int
    bound: int | None = None
    capacity: int | None = None


@dataclass(frozen=True)
class Curve(Chart):
    """An amount that changes in steps: ``(start, end, value)``, zero between them.

    ``limit`` is a line with a name. ``tip`` makes the tooltip of a step, or of several that were
    merged. ``along`` names the horizontal axis where it is not time.
    """

    label: str
    steps: Sequence[tuple[float, float, float]]
    limit: float | None = None
    limit_name: str = ""
    tip: Callable[[Sequence[int]], dict[str, str]] | None = None
    along: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Mark:
    """A point of a chart with its tooltip; ``hollow`` points are less important, and ``bound`` is
    the lower end of a bar below the point."""

    x: float
    y: float
    name: str
    facts: dict[str, str]
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
    """Points over two axes; ``groups`` names the colours, and ``limit`` is a horizontal line with
    its name."""

    x: str
    y: str
    marks: Sequence[Mark]
    paths: Sequence[Path] = ()
    groups: Sequence[str] = ()
    logarithmic: bool = False
    limit: tuple[float, str] | None = None
    remark: str = ""
    height: int = 400


@dataclass(frozen=True)
class Bar:
    """An amount as a bar, with its text."""

    name: str
    value: float
    text: str


@dataclass(frozen=True)
class Section:
    """Parts of a page under a heading."""

    heading: str
    parts: Sequence[Part]


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
    """A whole page."""

    title: str
    description: str
    sections: Sequence[Section]
    axis: Axis = Axis(1.0)


@dataclass(frozen=True)
class View:
    """An answer at a glance: what it is, a headline, figures, small pictures and notes.

    Pictures and the rows of the answer's table are made when they are asked for.
    """

    title: str
    headline: str
    figures: Sequence[Figure]
    pictures: Callable[[], Iterable[Timeline | MemoryMap | Curve | Sequence[Bar]]]
    rows: Callable[[], Iterable[Mapping[str, Any]]]
    notes: Sequence[str] = ()


def bounded(name: str, value: float, bound: float, shown: Callable[[float], str]) -> Figure:
    """Make a figure of a cost and its lower bound."""
    return Figure(name, shown(value), shown(bound), excess(value, bound))
