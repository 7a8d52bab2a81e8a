"""Where commands write files, and how they print what came of their work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from loadmaster.cli.options import OUTPUT, NoReport, option
from loadmaster.cli.printing import print_tables, say
from loadmaster.cli.progress_line import LateProgress
from loadmaster.core.files import OutputDirectory, directory_if_asked

if TYPE_CHECKING:
    from loadmaster.report.view import Page, Part


@dataclass(frozen=True)
class Output:
    """The options that every command has: what it prints."""

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
        """Prepare the folder for files, if one was asked for, and the progress line."""
        with directory_if_asked(folder) as place, LateProgress(self.quiet) as progress:
            progress("reading", 0.0)
            yield place, progress

    def show(
        self,
        shown: dict[str, Any],
        page: Callable[[], Page | Iterable[Part]],
        files: Sequence[Path] = (),
    ) -> None:
        """Print what came of a command: its JSON object with the paths of its files, or tables and
        those paths, or nothing."""
        if self.as_json:
            named = shown | {"files": [str(file) for file in files]}
            say(json.dumps(named, indent=2, allow_nan=False))
        elif not self.quiet:
            print_tables(page())
            for file in files:
                say(f"wrote {file}")


@dataclass(frozen=True)
class PageOutput(Output):
    """The options of commands that can write a page, too."""

    no_report: NoReport = False

    def publish(
        self,
        place: OutputDirectory | None,
        data: Mapping[str, Any],
        page: Callable[[], Page] | None = None,
        name: str = "report.html",
    ) -> list[Path]:
        """Write JSON by the names of files, and a page if it is wanted, beside what is in the
        folder already; return the paths of all. Without a folder nothing is written."""
        if place is None:
            return []
        for file, value in data.items():
            place.write(file, json.dumps(value, indent=1, allow_nan=False) + "\n")
        if page is not None and not self.no_report:
            from loadmaster.report.page import render

            place.write(name, render(page()))
        return place.publish()
