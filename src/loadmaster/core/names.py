"""Names that are told apart from others, and that can be shown."""

from __future__ import annotations

from collections.abc import Container, Iterable


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names, where one that stood before gets a number: ``name-2``. O(names)."""
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
    """The name with as many underscores behind it as it takes to be in none of the containers."""
    while any(name in each for each in taken):
        name += "_"
    return name


def printable(name: str) -> str:
    """Replace control and direction characters in ``name``, which could change the text around it,
    or what a terminal does."""
    return (
        name
        if name.isprintable()
        else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    )


def printable_text(text: str) -> str:
    """Text of several lines, with what is `printable` in each."""
    return "\n".join(map(printable, text.split("\n")))
