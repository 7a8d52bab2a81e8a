"""Results of a command: all files or none, and no traces of what failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadmaster.core import files
from loadmaster.core.errors import OutputError
from loadmaster.core.files import output_directory


def test_files_appear_together_when_they_are_published(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    with output_directory(out) as directory:
        (directory.draft / "b.json").write_text("two")
        (directory.draft / "a.json").write_text("one")
        assert [path.name for path in out.iterdir()] == [directory.draft.name]
        assert directory.publish() == [out / "a.json", out / "b.json"]
    assert {path.name: path.read_text() for path in out.iterdir()} == {"a.json": "one", "b.json": "two"}


def test_files_that_were_there_are_replaced_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "other").write_text("kept")
    with output_directory(tmp_path) as directory:
        (directory.draft / "a").write_text("new")
        directory.publish()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "new", "other": "kept"}


def test_a_failure_takes_away_the_folders_that_it_made(tmp_path: Path) -> None:
    def fail(out: Path) -> None:
        with output_directory(out) as directory:
            (directory.draft / "a").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail(tmp_path / "one" / "two")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "one").mkdir()
    with pytest.raises(KeyboardInterrupt):
        fail(tmp_path / "one" / "two")
    assert [*tmp_path.rglob("*")] == [tmp_path / "one"]


def test_a_folder_that_somebody_else_has_used_meanwhile_stays(tmp_path: Path) -> None:
    with output_directory(tmp_path / "out"):
        (tmp_path / "out" / "theirs").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]


def test_nothing_is_moved_where_a_directory_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with output_directory(tmp_path) as directory:
        (directory.draft / "a").touch()
        (directory.draft / "b").touch()
        with pytest.raises(OutputError, match=r"/b: a directory is in the way: remove it, or choose another --out"):
            directory.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_file_that_cannot_be_moved_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(files.os, "replace", full)
    with output_directory(tmp_path / "out") as directory:
        (directory.draft / "a").touch()
        with pytest.raises(OutputError, match=r"out/a: cannot be written: No space left on device"):
            directory.publish()
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_no_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match=rf"--out {out}: cannot be written: "), output_directory(out):
            pytest.fail("the work has begun")
