"""Names and figures as readable text: names are made printable here, escaped where they are put
into a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from rich.text import Text

from loadmaster.core.names import printable as printable
from loadmaster.planning.plan_records import Cost, Rate
from loadmaster.workloads.graph import uncounted

NOTHING = "\N{EN DASH}"
"""The text for a missing value in a table."""


class Html(str):
    """Text that is markup already and must not be escaped again."""

    __slots__ = ()


def to_html(value: object) -> Html:
    """Convert ``value`` to markup: escaped, unless it is :class:`Html`."""
    return value if isinstance(value, Html) else Html(escape(printable(str(value))))


def chart_text(name: str) -> str:
    """Prepare ``name`` for a title, tick or legend of a chart, which would interpret ``$$x$$`` as
    TeX."""
    joined = printable(name)
    for opening in ("$$", "\\[", "\\("):
        joined = joined.replace(opening, f"{opening[0]}\N{ZERO WIDTH SPACE}{opening[1]}")
    return joined


def shortened(names: Sequence[str], limit: int = 4) -> str:
    """List the first few names and count the others."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def clipped(name: str, limit: int) -> str:
    """Shorten ``name`` to at most ``limit`` characters in the middle, because generated names
    differ at the end."""
    if len(name) <= limit:
        return name
    tail = (limit - 3) // 2
    return f"{name[: limit - tail - 3]}...{name[len(name) - tail :]}"


def percent(share: float) -> str:
    """Format a share as ``"12.3 %"``; a small one keeps two digits, so that only 0 is shown as
    0."""
    value = 100 * share
    if value == 0 or abs(value) >= 0.95:
        return f"{value:.1f} %" if abs(value) < 99.95 else f"{value:.0f} %"
    return f"{value:.2g} %" if abs(value) >= 1e-3 else "< 0.001 %"


def excess(cost: Cost) -> str:
    """Format how far a cost is above its lower bound."""
    if cost.lower_bound <= 0:
        return "at the bound" if cost.value <= 0 else "no bound"
    share = cost.value / cost.lower_bound - 1
    return "at the bound" if share <= 0 else f"{percent(share)} above"


def shortfall(rate: Rate) -> str:
    """Format how far a rate is below its upper bound."""
    if rate.upper_bound <= 0 or not math.isfinite(rate.upper_bound):
        return "no bound"
    share = 1 - rate.value / rate.upper_bound
    return "at the bound" if share <= 0 else f"{percent(share)} below"


def warnings(unknown: Iterable[str]) -> list[Text]:
    """Make the first line of a summary where operators are not understood; none otherwise."""
    line = uncounted(map(printable, unknown))
    return [Text(line, style="bold")] if line else []


def plural(count: int, noun: str) -> str:
    """Format a count with its noun, such as ``"1 job"`` or ``"1,200 jobs"``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def comma(parts: Iterable[str]) -> str:
    """Join the parts with commas; a dash if there are none."""
    return ", ".join(parts) or NOTHING
