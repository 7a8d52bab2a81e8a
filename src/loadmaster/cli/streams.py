"""Standard output and error that raise our own exceptions if they cannot be written."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from loadmaster.core.errors import OutputError


class ClosedPipe(OutputError):
    """Raised when the reader of standard output has closed the pipe, as ``head`` does after ten
    lines; not an error for users."""


class CheckedStream(io.TextIOWrapper):
    """A text stream that raises our own errors, and replaces characters outside of its encoding.

    After a failure later text goes to the null device, so that the flush at exit does not fail
    again.
    """

    def __init__(self, stream: TextIO, title: str, errors: str) -> None:
        # A raw stream, as with PYTHONUNBUFFERED, may write a part and tell only its own caller.
        super().__init__(
            io.BufferedWriter(stream.buffer)
            if isinstance(stream.buffer, io.RawIOBase)
            else stream.buffer,
            encoding=stream.encoding,
            errors=errors,
            line_buffering=stream.isatty(),
        )
        self._title = title

    def write(self, text: str) -> int:
        """Write text. Raises `OutputError`, or `ClosedPipe` if the reader has closed the pipe."""
        with self._failures():
            return super().write(text)

    def flush(self) -> None:
        """Flush the stream. Raises the errors of :meth:`write`."""
        with self._failures():
            super().flush()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn failures to write into ClosedPipe or OutputError, and discard later output."""
        try:
            yield
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            kind = ClosedPipe if isinstance(error, BrokenPipeError) else OutputError
            raise kind(f"{self._title} cannot be written: {error.strerror}") from None


def check_streams() -> None:
    """Replace the standard streams with checked ones.

    Raises
    ------
    OutputError
        If standard output is closed.
    """
    if sys.stderr is not None:
        sys.stderr = CheckedStream(sys.stderr, "standard error", "backslashreplace")
    if sys.stdout is None:
        raise OutputError(
            "standard output is closed: leave it open, or send it to a file or /dev/null"
        )
    sys.stdout = CheckedStream(sys.stdout, "standard output", "replace")
