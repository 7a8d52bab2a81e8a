"""Formats names and figures as text; printers make names printable and escape them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from loadmaster.core.names import printable as printable
from loadmaster.core.units import format_bytes, format_seconds

NOTHING = "\N{EN DASH}"
"""Text for a missing value in a table."""
_IN_OPENING = re.compile(r"(?<=\$)(?=\$)|(?<=\\)(?=[\[(])")
"""Between the two characters with which a formula of TeX begins."""


def if_known(value: float | None, text: Callable[[float], str], otherwise: str = NOTHING) -> str:
    """Format a value with ``text``; None becomes ``otherwise``."""
    return otherwise if value is None else text(value)


def to_html(text: str) -> str:
    """Make text printable and escape it for a page."""
    return escape(printable(text))


def chart_text(name: str) -> str:
    """Prepare ``name`` for a title, tick or legend of a chart, which would interpret ``$$x$$`` as
    TeX."""
    return _IN_OPENING.sub("\N{ZERO WIDTH SPACE}", printable(name))


def shortened(names: Sequence[str], limit: int = 4) -> str:
    """Return the first ``limit`` names and the number of the others as text."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def clipped(name: str, limit: int) -> str:
    """Shorten ``name`` to at most ``limit`` characters by cutting its middle, because generated
    names differ at the end."""
    if len(name) <= limit:
        return name
    tail = (limit - 3) // 2
    return f"{name[: limit - tail - 3]}...{name[len(name) - tail :]}"


def exact_bytes(size: float) -> str:
    """Format a number of bytes exactly, and, if large, rounded to a unit, too."""
    exact = f"{size:.0f} bytes"
    return f"{exact} ({format_bytes(size)})" if size >= 1024 else exact


def percent(share: float) -> str:
    """Format a share as ``"12.3 %"``; small shares keep two digits, so only 0 is shown as 0."""
    value = 100 * share
    if value == 0 or abs(value) >= 0.95:
        return f"{value:.1f} %" if abs(value) < 99.95 else f"{value:.0f} %"
    return f"{value:.2g} %" if abs(value) >= 1e-3 else "< 0.001 %"


def signed(change: float) -> str:
    """Format a relative change as ``"+12.3 %"``, or ``"the same"`` for 0."""
    return "the same" if not change else f"{'+' if change > 0 else '-'}{percent(abs(change))}"


def distance(value: float, bound: float, upper: bool = False) -> str:
    """Format the relative distance of a cost above its lower bound, or of a rate below its
    ``upper`` bound; the last digits of floats do not count."""
    if bound <= 0 or not math.isfinite(bound):
        return "at the bound" if value <= 0 and not upper else "no bound"
    share = 1 - value / bound if upper else value / bound - 1
    return "at the bound" if share < 1e-12 else f"{percent(share)} {'below' if upper else 'above'}"


def gap_text(status: str, value: float, lower_bound: float) -> str:
    """Format the relative distance of a cost above its lower bound; a proven optimum has none, even
    if floats differ in their last digits."""
    far = "at the bound" if status == "optimal" else distance(value, lower_bound)
    return far.replace("above", "above the bound")


def plural(count: int, noun: str) -> str:
    """Format a count with its noun, such as ``"1 job"`` or ``"1,200 jobs"``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def comma(parts: Iterable[str]) -> str:
    """Join the parts with commas; without parts, return a dash."""
    return ", ".join(parts) or NOTHING


def above_the_best(gap: float | None) -> str:
    """Format the largest possible distance of a value from the optimum, given its relative ``gap``
    to the bound."""
    if gap is None or not math.isfinite(gap):
        return "not known how far above the best possible"
    return f"at most {percent(gap)} above the best possible"


def search_rows(answer: Any, seconds: float) -> dict[str, str]:
    """Return the status, strategy and seconds of a search as rows of a table."""
    gap = getattr(answer, "gap", None)
    status = answer.status
    if status == "feasible" and gap is not None:
        status = f"{status}: {above_the_best(gap)}"
    return {
        "Status": status + (" (stopped early)" if answer.interrupted else ""),
        "Strategy": f"{answer.strategy}, seed {answer.seed}",
        "Took": f"{format_seconds(seconds)} ({format_seconds(answer.cpu_seconds)} of CPU)",
    }
