"""Runs the program, and checks how it refuses."""

import io
import json
import os
import shlex
import signal
import sys
from subprocess import CompletedProcess
from unittest.mock import Mock

import pytest
import typer

from loadmaster.cli import main
from loadmaster.core import files

COMMAND = typer.main.get_command(main.app)
"""Made once, because it takes 50 ms; help texts change their own."""


def words(*arguments):
    """Strings are parts of a command line as a shell reads them; all else is one word."""
    for each in arguments:
        if isinstance(each, tuple):
            yield from words(*each)
        elif isinstance(each, str):
            yield from shlex.split(each)
        else:
            yield str(each)


def run(*arguments, cwd=None, columns=100):
    """What the program does, in this process, with its own streams and whatever else it changes."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8") for name in ("stdout", "stderr")}
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    command = ["loadmaster", *words(*arguments)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_COLOR", "1")
        patch.setenv("COLUMNS", str(columns))
        patch.chdir(cwd or os.getcwd())
        patch.setattr(files, "_inputs", set())
        patch.setattr(main, "gc", Mock())
        patch.setattr(sys, "argv", command)
        if {"--help", "-h"}.isdisjoint(command) and len(command) > 1:
            patch.setattr(typer.main, "get_command", lambda app: COMMAND)
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as end:
            main.main()
        printed = [written(stream) for stream in (sys.stdout, sys.stderr)]
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return CompletedProcess(command, int(end.value.code or 0), *printed)


def ran(*arguments, code=0, **options):
    """What the program does, which must end with this exit code."""
    result = run(*arguments, **options)
    assert result.returncode == code, result.stderr
    return result


def printed(*arguments, **options):
    """The object that the program prints with ``--json``."""
    return json.loads(ran(*arguments, "--json", **options).stdout)


def written(stream):
    stream.flush()
    return str(stream.buffer.getvalue().decode())


def unwrapped(result):
    """What was printed, with one space for whatever is between words."""
    return " ".join(result.stdout.split())


def refused(result, *words):
    """Exit code 2, nothing on standard output, one line on standard error that holds all words."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def names(folder):
    """Names of all that is in a folder."""
    return sorted(path.name for path in folder.iterdir())
