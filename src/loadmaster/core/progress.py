"""How work says how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A function that is told, now and then, what is being done and how much of it is done."""

    def __call__(self, stage: str, share: float, /) -> object:
        """Take a stage, in words, and the share of it that is done, from 0 to 1. What it returns is
        ignored."""


def no_progress(stage: str, share: float, /) -> None:
    """Stands for a listener where nobody listens."""


def part_of(progress: Progress, stage: str, number: int, parts: int) -> Progress:
    """Report one of several equal parts of a stage, counted from 0, under the stage's name,
    whatever the part is called itself."""
    return lambda _, share: progress(stage, (number + share) / parts)
