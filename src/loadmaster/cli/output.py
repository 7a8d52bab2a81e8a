"""The options of commands for output, and functions that write files and print results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from loadmaster.cli.options import OUTPUT, option
from loadmaster.cli.printing import print_tables, say
from loadmaster.cli.progress_line import LateProgress
from loadmaster.core.files import OutputDirectory, directory_if_asked
from loadmaster.core.progress import deferred_interrupts

if TYPE_CHECKING:
    from loadmaster.report.view import Page, PagePart


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
