"""Colours that are distinct with any common colour blindness: Okabe and Ito's, then Tol's muted
ones."""

from __future__ import annotations

PALETTE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#332288",
    "#999933",
    "#882255",
    "#44aa99",
)
MERGED = "#9aa1a9"
COPY = "#5b6570"
_SHADES = (0.0, 0.34, -0.28, 0.17, -0.42)
"""Share of white (positive) or black (negative) in each shade of a colour; consecutive shades are
clearly different."""


def colour(number: int) -> str:
    """Return a colour by number; colours repeat after ten, and negative numbers are grey."""
    return PALETTE[number % len(PALETTE)] if number >= 0 else COPY


def shade(base: str, number: int) -> str:
    """Return a shade of a colour: number 0 is the colour itself, and shades repeat after five."""
    share = _SHADES[number % len(_SHADES)]
    towards = 255 if share > 0 else 0
    channels = (int(base[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(c + (towards - c) * abs(share)):02x}" for c in channels)
