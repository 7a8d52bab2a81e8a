"""Names and figures as readable text; printers make names printable and escape them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from loadmaster.core.names import printable as printable
from loadmaster.core.units import format_bytes, format_seconds

NOTHING = "\N{EN DASH}"
"""The text for a missing value in a table."""
Units = Sequence[tuple[float, str]]
TIMES: Units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
ENERGIES: Units = ((1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ"), (1e-9, "nJ"), (1e-12, "pJ"))
SIZES: Units = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
BANDWIDTHS: Units = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))


def largest_unit(value: float, units: Units) -> tuple[float, str]:
    """Choose the largest unit in which ``value`` is at least one: its size and its name."""
    return next((unit for unit in units if value >= unit[0]), units[-1])


def to_html(text: str) -> str:
    """Make text printable and escape it for a page."""
    return escape(printable(text))


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


def exact_bytes(size: float) -> str:
    """Format bytes as a whole number, and as a readable one if they are many."""
    exact = f"{size:.0f} bytes"
    return f"{exact} ({format_bytes(size)})" if size >= 1024 else exact


def percent(share: float) -> str:
    """Format a share as ``"12.3 %"``; a small one keeps two digits, so that only 0 is shown as
    0."""
    value = 100 * share
    if value == 0 or abs(value) >= 0.95:
        return f"{value:.1f} %" if abs(value) < 99.95 else f"{value:.0f} %"
    return f"{value:.2g} %" if abs(value) >= 1e-3 else "< 0.001 %"


def signed(change: float) -> str:
    """Format a change as ``"+12.3 %"``; none is ``"the same"``."""
    return "the same" if not change else f"{'+' if change > 0 else '-'}{percent(abs(change))}"


def distance(value: float, bound: float, upper: bool = False) -> str:
    """Format how far a cost is above its lower bound, or a rate below its ``upper`` one."""
    if bound <= 0 or not math.isfinite(bound):
        return "at the bound" if value <= 0 and not upper else "no bound"
    share = 1 - value / bound if upper else value / bound - 1
    return "at the bound" if share <= 0 else f"{percent(share)} {'below' if upper else 'above'}"


def reached(status: str, value: float, lower_bound: float) -> str:
    """Say how far a cost is above its lower bound; what is proven optimal is at it, although
    floats may differ in their last digits."""
    far = "at the bound" if status == "optimal" else distance(value, lower_bound)
    return far.replace("above", "above the bound")


def plural(count: int, noun: str) -> str:
    """Format a count with its noun, such as ``"1 job"`` or ``"1,200 jobs"``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def comma(parts: Iterable[str]) -> str:
    """Join the parts with commas; a dash if there are none."""
    return ", ".join(parts) or NOTHING


def above_the_best(gap: float | None) -> str:
    """Say how far a value may be from the best possible one, by how far it is above its bound."""
    if gap is None or not math.isfinite(gap):
        return "not known how far above the best possible"
    return f"at most {percent(gap)} above the best possible"


def search_rows(answer: Any, seconds: float) -> dict[str, str]:
    """List status, strategy and time of a search by name."""
    gap = getattr(answer, "gap", None)
    status = answer.status
    if status == "feasible" and gap is not None:
        status = f"{status}: {above_the_best(gap)}"
    return {
        "Status": status + (" (stopped early)" if answer.interrupted else ""),
        "Strategy": f"{answer.strategy}, seed {answer.seed}",
        "Took": f"{format_seconds(seconds)} ({format_seconds(answer.cpu_seconds)} of CPU)",
    }
