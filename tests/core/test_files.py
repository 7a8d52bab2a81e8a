"""Results of a command: all files or none, and no traces of what failed."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.support.command_line import names

from loadmaster.core import files
from loadmaster.core.errors import OutputError
from loadmaster.core.files import output_directory


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_files_appear_together_when_they_are_published(tmp_path):
    out = tmp_path / "new" / "folder"
    with output_directory(out) as directory:
        (directory.draft / "b.json").write_text("two")
        (directory.draft / "a.json").write_text("one")
        assert names(out) == [directory.draft.name]
        assert directory.publish() == [out / "a.json", out / "b.json"]
    assert contents(out) == {"a.json": "one", "b.json": "two"}


def test_files_that_were_there_are_replaced_and_others_stay(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "other").write_text("kept")
    with output_directory(tmp_path) as directory:
        (directory.draft / "a").write_text("new")
        directory.publish()
    assert contents(tmp_path) == {"a": "new", "other": "kept"}


def test_a_failure_takes_away_the_folders_that_it_made(tmp_path):
    def fail(out):
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


def test_a_folder_whose_name_is_too_long_is_an_error(tmp_path):
    with (
        pytest.raises(OutputError, match="File name too long"),
        output_directory(tmp_path / ("x" * 300)),
    ):
        pass


def test_a_folder_that_somebody_else_has_used_meanwhile_stays(tmp_path):
    with output_directory(tmp_path / "out"):
        (tmp_path / "out" / "theirs").touch()
    assert names(tmp_path / "out") == ["theirs"]


def test_nothing_is_moved_where_a_directory_is_in_the_way(tmp_path):
    (tmp_path / "b").mkdir()
    with output_directory(tmp_path) as directory:
        (directory.draft / "a").touch()
        (directory.draft / "b").touch()
        with pytest.raises(
            OutputError, match=r"/b: a directory is in the way: remove it, or choose another --out"
        ):
            directory.publish()
    assert names(tmp_path) == ["b"]


def full(monkeypatch):
    """There is no space left for files."""
    replace = Mock(side_effect=OSError(28, os.strerror(28)))
    monkeypatch.setattr(os, "replace", replace)


def test_a_file_that_cannot_be_moved_is_named(tmp_path, monkeypatch):
    full(monkeypatch)
    with output_directory(tmp_path / "out") as directory:
        (directory.draft / "a").touch()
        with pytest.raises(OutputError, match=r"out/a: cannot be written: No space left on device"):
            directory.publish()
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_no_folder_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with (
            pytest.raises(OutputError, match=rf"--out {out}: cannot be written .*give another"),
            output_directory(out),
        ):
            pytest.fail("the work has begun")


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a"
    assert files.replace_file(path, "söme", "it") == path
    assert path.read_bytes() == "söme".encode()
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()

    full(monkeypatch)
    with pytest.raises(
        OutputError, match=r"/a: the answer cannot be written: No space left on device$"
    ):
        files.replace_file(path, b"new", "the answer")
    assert contents(tmp_path) == {"a": "söme"}


def test_several_files_are_replaced_together_or_none_is(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(OutputError, match="missing/b: the other cannot be written"):
        files.replace_files(
            [(tmp_path / "a", "new", "one"), (tmp_path / "missing/b", "", "the other")]
        )
    assert contents(tmp_path) == {"a": "old"}
    every = [(tmp_path / name, name, "it") for name in ("a", "b")]
    assert files.replace_files(every) == [path for path, *_ in every]
    assert contents(tmp_path) == {"a": "a", "b": "b"}


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "real")
    for content in (b"first", b"second"):
        files.replace_file(tmp_path / "link", content, "it")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "real").read_bytes() == content


@pytest.mark.parametrize("name", ["missing/a", "folder", "x" * 300, "nul\0"])
def test_where_nothing_can_be_written_an_error_says_so_and_nothing_is_left(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="it cannot be written: "):
        files.replace_file(tmp_path / name, b"new", "it")
    assert names(tmp_path) == ["folder"]


def test_devices_and_pipes_are_written_to_and_not_replaced(tmp_path):
    files.replace_file("/dev/null", b"new", "it")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(
        OutputError, match="/dev/full: it cannot be written: No space left on device"
    ):
        files.replace_file("/dev/full", b"new", "it")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.replace_file(tmp_path / "pipe", b"new", "it")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("mobilenet2.onnx", "; did you mean "),
        ("Mobilenetv2.onxx", "; did you mean "),
        ("bert.onnx", ""),
        ("no/such/x", ""),
    ],
)
def test_a_misspelt_file_is_met_half_way(written, meant, tmp_path):
    (tmp_path / "mobilenetv2.onnx").touch()
    (tmp_path / "mobilenetv2.onnx.d").mkdir()
    error = FileNotFoundError(2, "No such file or directory")
    expected = f"{meant}{tmp_path / 'mobilenetv2.onnx'}?" if meant else ""
    assert files.why_unreadable(tmp_path / written, error) == f"No such file or directory{expected}"


def test_a_file_that_may_not_be_read_is_not_taken_for_a_misspelt_one(tmp_path):
    (tmp_path / "a.csv").touch()
    assert (
        files.why_unreadable(tmp_path / "a.csv", PermissionError(13, "Permission denied"))
        == "Permission denied"
    )


def test_drafts_of_processes_that_were_killed_are_removed(tmp_path):
    """Those of this process, of other machines, and files that only look alike are not."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    host = socket.gethostname()
    drafts = (
        f".draft-{host}-{process.pid}-dead",
        f".draft-{host}-{os.getpid()}-alive",
        f".draft-elsewhere-{process.pid}-dead",
        f".draft-{host}-x-other",
    )
    for name in drafts:
        (tmp_path / name).mkdir()
    with output_directory(tmp_path):
        pass
    assert names(tmp_path) == sorted(drafts[1:])


def test_nothing_of_a_directory_is_written_over_an_input(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_inputs", set())
    source = tmp_path / "mapping.json"
    source.write_text("old")
    files.protect([str(source), "no file", str(tmp_path), "a\0b"])
    with files.output_directory(tmp_path) as directory:
        directory.write("mapping.json", "new")
        directory.write("report.html", "new")
        with pytest.raises(OutputError, match="is an input of this command"):
            directory.publish()
    assert names(tmp_path) == ["mapping.json"]
    assert source.read_text() == "old"
