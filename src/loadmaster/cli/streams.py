"""Standard output and standard error as the commands write them: a stream that cannot take what is written ends the command properly."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from loadmaster.core.errors import OutputError


class ClosedPipe(OutputError):
    """Whoever read standard output has gone, as ``head`` does after ten lines: there is nothing to complain about."""


class CheckedStream(io.TextIOWrapper):
    """A text stream whose failures are errors of our own, and which replaces characters that its encoding lacks.

    After a failure the rest goes to the null device, so that the interpreter's last flush does not fail again.
    """

    def __init__(self, stream: TextIO, title: str, errors: str) -> None:
        super().__init__(stream.buffer, encoding=stream.encoding, errors=errors, line_buffering=stream.isatty())
        self._title = title

    def write(self, text: str) -> int:
        """Write text; raises `OutputError`, or `ClosedPipe` if nobody reads any more."""
        with self._failures():
            return super().write(text)

    def flush(self) -> None:
        """Pass on what was written; raises as :meth:`write` does."""
        with self._failures():
            super().flush()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            kind = ClosedPipe if isinstance(error, BrokenPipeError) else OutputError
            raise kind(f"{self._title} cannot be written: {error.strerror}") from None


def check_streams() -> None:
    """Put checked streams in the place of the standard ones.

    Raises
    ------
    OutputError
        If standard output is closed: there is nowhere to put results.
    """
    if sys.stderr is not None:
        sys.stderr = CheckedStream(sys.stderr, "standard error", "backslashreplace")
    if sys.stdout is None:
        raise OutputError("standard output is closed: leave it open, or send it to a file or /dev/null")
    sys.stdout = CheckedStream(sys.stdout, "standard output", "replace")
