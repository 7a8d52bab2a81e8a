"""What commands print and write: JSON, tables, violations, a progress line, and files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.options import OUTPUT, option
from loadmaster.core.files import OutputDirectory, directory_if_asked
from loadmaster.core.json_object import json_of
from loadmaster.core.names import printable, printable_text
from loadmaster.core.progress import deferred_interrupts

if TYPE_CHECKING:
    from rich.progress import Progress

    from loadmaster.core.errors import Violation
    from loadmaster.report.view import Page, PagePart

_NARROWEST = 80
"""Least width in columns of tables, so that no figure is truncated; a narrower terminal wraps
lines."""
_WIDEST = 1000
"""Width in columns in which the needed width of a table is measured."""
_SHOW_AFTER_SECONDS = 1.0
"""Seconds before the line is shown."""
_LINE_AFTER_SECONDS = 10.0
"""Seconds between lines if standard error is not a terminal."""
_ESTIMATE_AFTER_SECONDS, _ESTIMATE_AFTER_SHARE = 2.0, 0.02
"""Seconds of a stage, and its share done, from which on the remaining time is estimated."""


def versioned(kind: Any, value: object, **given: object) -> dict[str, Any]:
    """Return a command's JSON object of type ``kind`` (see `json_of`), with the type's version
    first."""
    return {"version": kind.VERSION, **json_of(value, kind, **given)}


def say(text: str, *, err: bool = False, newline: bool = True) -> None:
    """Print text, with ``err`` on standard error, without control characters for the terminal.

    All output of the program goes through this function or `print_tables`.
    """
    typer.echo(printable_text(text), err=err, nl=newline)


def print_tables(shown: Page | Iterable[PagePart]) -> None:
    """Print tables and text on standard output in the terminal's width, but wide enough for all
    figures."""
    from rich.console import Console
    from rich.measure import Measurement

    from loadmaster.report.terminal import printed

    made, console = printed(shown), Console()
    unlimited = console.options.update(width=_WIDEST)
    needed = max(_NARROWEST, Measurement.get(console, unlimited, made).minimum)
    if console.width < needed:
        console = Console(width=needed, soft_wrap=True)
    console.print(made)


def print_violations(violations: tuple[Violation, ...], what: str) -> None:
    """Print violations on standard error; ``what`` is the name of the checked object."""
    for violation in violations:
        say(f"{violation.rule}: {violation.message}", err=True)
    say(f"the {what} does not hold; violations: {len(violations)}", err=True)


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


@dataclass(frozen=True)
class Output:
    """The options of all commands for printing."""

    as_json: Annotated[
        bool,
        option(None, OUTPUT, "Print exactly one JSON object on standard output.", "--json"),
    ] = False
    quiet: Annotated[
        bool,
        option(
            None, OUTPUT, "Print nothing but errors and what `--json` asks for.", "--quiet", "-q"
        ),
    ] = False

    @contextmanager
    def working(self, folder: Path | None) -> Iterator[tuple[OutputDirectory | None, LateProgress]]:
        """Prepare the folder for files (None without one), and the progress line."""
        with directory_if_asked(folder) as place, closing(LateProgress(self.quiet)) as progress:
            progress("reading", 0.0)
            yield place, progress

    @deferred_interrupts()
    def show(
        self,
        shown: dict[str, Any],
        page: Callable[[], Page | Iterable[PagePart]],
        files: Sequence[Path] = (),
    ) -> None:
        """Print the result of a command and the paths of its files: as a JSON object, as tables, or
        not at all, by the options. Ctrl-C is deferred."""
        if self.as_json:
            say(json.dumps(shown | {"files": list(map(str, files))}, indent=2, allow_nan=False))
        elif not self.quiet:
            print_tables(page())
            for file in files:
                say(f"wrote {file}")


@dataclass(frozen=True)
class PageOutput(Output):
    """The options of commands that can also write a page."""

    no_report: Annotated[
        bool,
        option(None, OUTPUT, "Of the files, write data only, no page to look at.", "--no-report"),
    ] = False

    @deferred_interrupts()
    def publish(
        self,
        place: OutputDirectory | None,
        data: Mapping[str, Any],
        page: Callable[[], Page] | None = None,
        name: str = "report.html",
    ) -> list[Path]:
        """Write JSON objects by names of files, and a page unless the options exclude it, and
        return the paths of all files in the folder. Without a folder, no file is written. Ctrl-C is
        deferred."""
        if place is None:
            return []
        for file, value in data.items():
            place.write(file, json.dumps(value, indent=1, allow_nan=False) + "\n")
        if page and not self.no_report:
            from loadmaster.report.page import render

            place.write(name, render(page()))
        return place.publish()
