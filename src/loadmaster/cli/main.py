"""The ``loadmaster`` program: its commands, and the handling of errors, signals and standard
streams that cannot be written."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, NoReturn, TextIO

import typer

from loadmaster import __version__
from loadmaster.cli.options import grouped, option
from loadmaster.cli.output import say
from loadmaster.core.errors import LoadmasterError, OutputError, missing
from loadmaster.core.files import protect
from loadmaster.core.progress import gc_relaxed

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Plans neural networks onto accelerators: which core runs each layer and when, which memory"
        " holds each tensor, and at which address."
    ),
)
export = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Write a plan in the form in which another system runs it.",
)


def _show_version(asked: bool) -> None:
    """Print the version and exit."""
    if asked:
        say(f"loadmaster {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        option(
            None,
            None,
            "Print the version and exit.",
            "--version",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Declare the options that precede the command."""


def _add_commands(group: typer.Typer, folder: str, names: str) -> None:
    """Add to a group the commands of a folder, each the function ``NAME_command`` of its file."""
    for name in names.split():
        command = getattr(import_module(f"loadmaster.cli.{folder}.{name}"), f"{name}_command")
        group.command(name)(grouped(command))


_add_commands(
    app,
    "commands",
    "plan size map place allocate run profile calibrate verify report targets inspect",
)
_add_commands(export, "commands.export", "iree tflite")
app.add_typer(export, name="export")

_OUTPUTS = ("--out", "--c-struct")

# Base class of typer's errors for command lines; typer exports only the subclass.
_UsageError: Any = typer.BadParameter.__mro__[1]


def _hide_types(command: Any, parent: Any = None) -> None:
    """Remove types (``<bool>``, ``<list[str]>``) and the range of seeds from help texts."""
    context = command.make_context(command.name, [], parent=parent, resilient_parsing=True)
    for param in command.get_params(context):
        if param.metavar is None or param.param_type_name == "argument":
            param.display_type_rich = lambda _=None, ctx=None: None
        elif param.name == "seed":
            param.max = None
    for inner in getattr(command, "commands", {}).values():
        _hide_types(inner, context)


def main() -> NoReturn:
    """Run the command line.

    An error is one line on standard error, with exit code 2. Signals and a closed pipe give the
    usual exit code, 128 plus the signal's number.
    """
    code, words = 0, sys.argv[1:] or ["--help"]
    asks_help = not {"--help", "-h"}.isdisjoint(words)
    try:
        _end_properly_at(signal.SIGTERM, signal.SIGHUP)
        if not asks_help:
            _load_native()
        check_streams()
        protect(_inputs(words))
        with gc_relaxed():
            command = typer.main.get_command(app)
            if asks_help:
                _hide_types(command)
            answer = command(words, standalone_mode=False)
            # No garbage collection at exit, where no object needs it.
            gc.freeze()
        code = answer if isinstance(answer, int) else 0
        sys.stdout.flush()
    except ClosedPipe:
        code = 128 + signal.SIGPIPE
    except LoadmasterError as error:
        code = _refuse(str(error))
    except ModuleNotFoundError as error:
        needed = missing(error, "this command")
        if needed is error:
            raise
        code = _refuse(str(needed))
    except _UsageError as error:
        code = _refuse(f"{error.format_message()} (see --help)")
    except (Exception, KeyboardInterrupt) as error:
        code = _code_of_signal(error)
        # A full disk, or a folder that is gone, needs a message and no traceback.
        if not code and isinstance(error, OSError):
            code = _refuse(str(error))
        if not code:
            raise
    if code == 128 + signal.SIGINT:
        # Whoever presses Ctrl-C twice has asked once.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _print_error("interrupted")
    sys.exit(code)


def _inputs(words: Sequence[str]) -> Iterator[str]:
    """Yield possible names of input files in a command line: all words, and their parts at commas
    and after equals signs, without the values of options for outputs."""
    before = ""
    for word in words:
        option = word.partition("=")[0]
        if before not in _OUTPUTS and option not in _OUTPUTS:
            yield word
            yield from (part.rpartition("=")[2] for part in word.split(","))
        before = word


def _end_properly_at(*signals: signal.Signals) -> None:
    """Make signals raise an exception, so that no half-written file remains; ignored signals stay
    ignored."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        """Exit with the shell's code for a signal."""
        sys.exit(128 + number)

    for number in signals:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


def _code_of_signal(error: BaseException | None) -> int:
    """Return the exit code of a signal that caused an error, else 0. Modules that are being loaded
    may raise another error from the signal's exception."""
    while error:
        if isinstance(error, KeyboardInterrupt):
            return 128 + signal.SIGINT
        if isinstance(error, SystemExit):
            return int(error.code or 0)
        error = error.__cause__ or error.__context__
    return 0


def _load_native() -> None:
    """Load native code with signals blocked, because a signal during loading would be lost."""
    waiting = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
    import_module("loadmaster._native")
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _refuse(message: str) -> int:
    """Print an error on one line, and return exit code 2."""
    _print_error(" ".join(message.split()))
    return 2


def _print_error(message: str) -> None:
    """Print a line to stderr, if it can be written."""
    with suppress(OutputError):
        say(f"loadmaster: {message}", err=True)


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


if __name__ == "__main__":
    main()
