"""Atomic output: a file, or all files of a command's output directory, appear completely or not at
all."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from loadmaster.core.errors import OutputError

_ALIKE = 0.75
"""Least similarity of two file names for one to be suggested for the other."""


_inputs: set[tuple[int, int]] = set()
"""(Device, inode) of the command's input files, which must not be overwritten."""


def protect(paths: Iterable[str]) -> None:
    """Refuse these existing files as outputs from now on: a command never overwrites its inputs."""
    _inputs.update(filter(None, map(_identity, paths)))


def _identity(path: str | Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is no file at the path."""
    with suppress(OSError, ValueError):
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode):
            return found.st_dev, found.st_ino
    return None


def _require_no_input(path: Path) -> None:
    """Raise OutputError if a path is one of the command's inputs."""
    if _identity(path) in _inputs:
        raise OutputError(
            f"{path}: is an input of this command, and would be overwritten: choose another --out"
        )


def replace_file(path: str | Path, data: bytes | str, what: str) -> Path:
    """Write one file as :func:`replace_files` does, and return its path."""
    return replace_files([(path, data, what)])[0]


def replace_files(files: Sequence[tuple[str | Path, bytes | str, str]]) -> list[Path]:
    """Write files, each a path, its content (text in UTF-8), and a name of the content for errors;
    return their paths.

    All are written under temporary names beside their paths, then renamed, so that readers never
    see half a file. For a link, the file that it points to is replaced; devices and pipes are
    written directly.

    Raises
    ------
    OutputError
        If two paths are of one file, or one cannot be written: all old files are as they were. Or
        if a draft cannot be renamed: those before it are in place. No draft is left behind.
    """
    drafts: dict[Path, tuple[Path, str]] = {}
    path, name = Path(), ""
    try:
        for given, data, name in files:
            path, content = Path(given), data.encode() if isinstance(data, str) else data
            _require_no_input(path)
            if is_special(path):
                path.write_bytes(content)
                continue
            real = Path(os.path.realpath(path))
            if real in drafts:
                other = drafts[real][1]
                raise OutputError(f"{path}: one file for {other} and for {name}: give two")
            draft = real.with_name(_draft_name())
            drafts[real] = draft, name
            with draft.open("xb") as file:
                file.write(content)
        for path, (draft, what) in drafts.items():
            name = what
            os.replace(draft, path)
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: {name} cannot be written: {_reason(error)}") from error
    finally:
        for draft, _ in drafts.values():
            with suppress(OSError):
                draft.unlink(missing_ok=True)
    return [Path(path) for path, *_ in files]


def is_special(path: Path) -> bool:
    """Return whether there is something at a path that is no file, such as a folder or a pipe.

    False where permissions forbid to look: here and where ``os.path`` is asked elsewhere, pathlib
    would raise an error.
    """
    return os.path.exists(path) and not os.path.isfile(path)


def why_unreadable(path: str | Path, error: Exception) -> str:
    """Say why a file cannot be read; if it does not exist, suggest a file of a similar name in its
    folder."""
    reason = _reason(error)
    if not isinstance(error, FileNotFoundError):
        return reason
    path = Path(path)
    try:
        names = [other.name for other in path.parent.iterdir() if other.is_file()]
    except OSError:
        return reason
    near = get_close_matches(path.name, names, n=1, cutoff=_ALIKE)
    return f"{reason}; did you mean {path.parent / near[0]}?" if near else reason


def _reason(error: Exception) -> str:
    """Return an error's reason in words."""
    return getattr(error, "strerror", None) or str(error)


def _draft_name() -> str:
    """Return a new name for a draft of this process."""
    return f"{_draft_prefix()}{os.getpid()}-{secrets.token_hex(8)}"


def _draft_prefix() -> str:
    """Prefix of draft folders of this machine, as folders may be shared with other machines."""
    return f".draft-{socket.gethostname()}-"


def _remove_abandoned(folder: Path) -> None:
    """Remove drafts of processes that were killed."""
    prefix = _draft_prefix()
    for draft in folder.glob(glob.escape(prefix) + "*"):
        process = draft.name.removeprefix(prefix).partition("-")[0]
        if process.isdecimal() and not Path(f"/proc/{process}").exists() and Path("/proc").exists():
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink(missing_ok=True)


@dataclass(frozen=True)
class OutputDirectory:
    """Files are written into ``draft`` and moved to ``final`` by :meth:`publish`."""

    final: Path
    draft: Path

    def write(self, name: str, text: str) -> None:
        """Write a file of the draft in UTF-8. Raises `OutputError` on failure, such as a full
        disk."""
        try:
            (self.draft / name).write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise OutputError(f"{self.final / name}: cannot be written: {_reason(error)}") from None

    def publish(self) -> list[Path]:
        """Move all files of the draft into place and return their paths; none is moved where a
        directory is in the way."""
        paths = sorted(self.final / file.name for file in self.draft.iterdir())
        for path in paths:
            _require_no_input(path)
            if path.is_dir():
                raise OutputError(
                    f"{path}: a directory is in the way: remove it, or choose another --out"
                )
        try:
            for path in paths:
                os.replace(self.draft / path.name, path)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {_reason(error)}") from None
        return paths


def directory_if_asked(path: Path | None) -> AbstractContextManager[OutputDirectory | None]:
    """Prepare :func:`output_directory`, or nothing where no directory was asked for."""
    return nullcontext() if path is None else output_directory(path)


@contextmanager
def output_directory(path: Path) -> Iterator[OutputDirectory]:
    """Make ``path`` if it does not exist, before the work begins; remove it again if the work
    fails.

    Raises
    ------
    OutputError
        If it cannot be made or written.
    """
    made = [folder for folder in (path, *path.parents) if not os.path.exists(folder)]
    draft = path / _draft_name()
    try:
        # Inside the block, because a signal may come between any two calls.
        try:
            path.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(path)
            draft.mkdir(mode=0o700)
        except OSError as error:
            raise OutputError(
                f"--out {path}: cannot be written ({_reason(error)}): give another folder"
            ) from None
        yield OutputDirectory(path, draft)
    except OutputError as error:
        raise OutputError(
            str(error).replace(str(draft), str(path))
        ) from None  # drafts are gone when this is read
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        for folder in made:
            if os.path.isdir(folder) and not any(folder.iterdir()):
                folder.rmdir()
