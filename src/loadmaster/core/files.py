"""Results of one command appear in a directory together or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadmaster.core.errors import OutputError


@dataclass(frozen=True)
class OutputDirectory:
    """Files are written into ``draft`` and moved to ``final`` by :meth:`publish`."""

    final: Path
    draft: Path

    def write(self, name: str, text: str) -> None:
        """Write a file of the draft, in UTF-8. Raises `OutputError` if that fails, as it does when a disk is full."""
        try:
            (self.draft / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{self.final / name}: cannot be written: {error.strerror}") from None

    def publish(self) -> list[Path]:
        """Move every file of the draft into place and return their paths; nothing is moved if something is in the way."""
        names = sorted(file.name for file in self.draft.iterdir())
        for name in names:
            if (self.final / name).is_dir():
                raise OutputError(f"{self.final / name}: a directory is in the way: remove it, or choose another --out")
        try:
            for name in names:
                os.replace(self.draft / name, self.final / name)
        except OSError as error:
            raise OutputError(f"{self.final / name}: cannot be written: {error.strerror}") from None
        return [self.final / name for name in names]


@contextmanager
def output_directory(path: Path) -> Iterator[OutputDirectory]:
    """Make ``path`` if need be, before the work rather than after it; take it away again if the work fails and it is new.

    Raises
    ------
    OutputError
        If it cannot be made or written.
    """
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=path))
    except OSError as error:
        raise OutputError(f"--out {path}: cannot be written: {error.strerror}") from None
    try:
        yield OutputDirectory(path, draft)
    except OutputError as error:
        raise OutputError(str(error).replace(str(draft), str(path))) from None  # drafts are gone when this is read
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        for folder in made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
