"""Unique names, and names that are safe to print."""

from __future__ import annotations

from collections.abc import Container, Iterable


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """Append a number to repeated names: ``name-2``. O(names)."""
    taken: dict[str, None] = {}
    last: dict[str, int] = {}
    for name in names:
        number, free = last.get(name, 1), name
        while free in taken:
            number += 1
            free = f"{name}-{number}"
        last[name] = number
        taken[free] = None
    return tuple(taken)


def free_name(name: str, *taken: Container[str]) -> str:
    """Append underscores to a name until it is in none of the containers."""
    while any(name in each for each in taken):
        name += "_"
    return name


def printable(name: str) -> str:
    """Replace control and direction characters, which could corrupt the surrounding text or control
    the terminal."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def printable_text(text: str) -> str:
    """Apply `printable` to every line of a text."""
    return "\n".join(map(printable, text.split("\n")))
