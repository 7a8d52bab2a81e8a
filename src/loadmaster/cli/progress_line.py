"""A progress line on standard error for work that takes more than a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from loadmaster.cli.printing import say
from loadmaster.core.names import printable

if TYPE_CHECKING:
    from rich.progress import Progress

_SHOW_AFTER_SECONDS = 1.0
"""Seconds before the line is shown."""
_LINE_AFTER_SECONDS = 10.0
"""Seconds between lines if standard error is not a terminal."""
_ESTIMATE_AFTER_SECONDS, _ESTIMATE_AFTER_SHARE = 2.0, 0.02
"""Seconds of a stage, and its share done, from which on the remaining time is estimated."""


class LateProgress:
    """A progress line, never shown if ``quiet``; call it with the name of a stage and the share
    done.

    The first call after a second shows the line; closing removes it. If standard error
    is not a terminal, a line is written every ten seconds instead. After some seconds of a stage,
    the line shows the estimated remaining time. A new stage begins when the share falls, or if the
    name changes at a share of 0.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._started = self._written = time.monotonic()
        self._bar: Progress | None = None
        self._stage = ""
        self._begun, self._first, self._last = self._started, 0.0, 0.0

    def __call__(self, stage: str, share: float) -> None:
        """Show a stage of which ``share`` is done, from 0 to 1; 0 also means unknown."""
        now = time.monotonic()
        if share < self._last or (self._last == 0 and stage != self._stage):
            self._begun, self._first = now, share
        self._stage, self._last = stage, share
        if self._quiet:
            return
        if self._bar is None and now - self._started > _SHOW_AFTER_SECONDS:
            self._show()
        if self._bar is None:
            return
        said = printable(stage) + self._remaining_time(share)
        if not self._bar.disable:
            total = 1.0 if share else None
            self._bar.update(self._bar.task_ids[0], description=said, total=total, completed=share)
        elif now - self._written >= _LINE_AFTER_SECONDS:
            self._written = now
            say(f"{said}, {now - self._started:.0f} s so far", err=True)

    def _remaining_time(self, share: float) -> str:
        """Return the estimated remaining time of the stage as text; empty if it is too early to
        estimate."""
        elapsed, done = time.monotonic() - self._begun, share - self._first
        if elapsed < _ESTIMATE_AFTER_SECONDS or done < _ESTIMATE_AFTER_SHARE or share >= 1:
            return ""
        seconds = elapsed * (1 - share) / done
        left = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(1, round(seconds))} s"
        return f", about {left} left"

    def _show(self) -> None:
        """Start the progress line on stderr; nothing is shown where stderr is not a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        # Lines in a file or a pipe cannot be removed, so write few.
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar.add_task("", total=None)
        self._bar.start()

    def close(self) -> None:
        """Remove the line."""
        if self._bar is not None:
            self._bar.stop()
