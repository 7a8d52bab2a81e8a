"""Streams and disks that cannot take what is written, and signals: one line, the usual exit code,
nothing half-written."""

import resource
import signal
import subprocess
import sys
import time

import pytest
from tests.support.command_line import names, refused, run

pytestmark = pytest.mark.slow

JOBS = "K,C,Y,X,R,S,type\n" + "64,32,14,14,3,3,1\n" * 8
UNLIKE_JOBS = "K,C,Y,X,R,S,type\n" + "".join(
    f"{40 + 7 * i},{32 + 5 * i % 41},{7 + i % 13},14,3,3,1\n" for i in range(30)
)
"""No mapping's product of energy and delay meets the bound, so that the search of a great many
samples lasts until it is ended."""
HARD_BUFFERS = "id,lower,upper,size\n" + "".join(
    f"{i},{i * 37 % 101},{i * 37 % 101 + 1 + i * 13 % 29},{1000 + 7919 * i % 4999}\n"
    for i in range(300)
)
MAP = "map jobs.csv --target m3e-s1 --samples 20"
PLACE = "place onnx:squeezenet --target optane-server --strategy all-slow"
COMMAND = (sys.executable, "-m", "loadmaster")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "jobs.csv").write_text(JOBS)
    return tmp_path


def shell(script, folder, **options):
    """Run a script in which ``$LM`` is the command."""
    return subprocess.run(
        ["bash", "-c", f'LM="{" ".join(COMMAND)}"; {script}'],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.parametrize("arguments", ["targets", "--help", f"{MAP} --json", MAP])
@pytest.mark.parametrize(("stream", "words"), [("/dev/full", "No space left"), ("&-", "closed")])
def test_a_full_or_closed_standard_output_is_one_line_and_exit_code_2(
    arguments, stream, words, folder
):
    refused(shell(f"$LM {arguments} >{stream}", folder), "standard output", words)


def test_an_output_without_a_buffer_is_written_whole_or_refused(folder):
    """It takes a part of what is written and says so, on a disk that fills."""
    script = f"ulimit -f 1; PYTHONUNBUFFERED=1 $LM {MAP} --json >out.json"
    refused(shell(script, folder), "standard output cannot be written: File too large")


def test_a_full_standard_error_changes_no_exit_code(folder):
    assert shell("$LM targets no-such 2>/dev/full", folder).returncode == 2


@pytest.mark.parametrize("arguments", ["targets edge-npu", MAP, "map --help"])
def test_a_closed_pipe_is_no_mistake(arguments, folder):
    """As of programs that a broken pipe ends: 128 and the number of SIGPIPE, and not a word. 1
    would mean that a plan was rejected."""
    # A reader that has gone before anything is written, whatever the machine does meanwhile.
    done = shell(f"mkfifo p; exec 3<>p 4>p 3<&-; $LM {arguments} >&4", folder)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGPIPE, "", "")


def test_what_a_terminal_cannot_show_is_replaced(folder):
    done = shell(f"PYTHONIOENCODING=latin-1 COLUMNS=120 $LM {PLACE}", folder)
    assert done.returncode == 0, done.stderr
    assert "squeezenet" in done.stdout


@pytest.mark.parametrize(
    "arguments", [PLACE, MAP, "plan onnx:squeezenet --target m3e-s1 --effort test"]
)
def test_a_full_disk_is_named_and_leaves_nothing(arguments, folder):
    """Files of more than a few bytes fail as they do on a full disk, some time after they were
    opened."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # noqa: E731
    # Python would leave what it compiles cut short, too, for whoever imports it next.
    script = f"PYTHONDONTWRITEBYTECODE=1 $LM {arguments} --out out"
    done = shell(script, folder, preexec_fn=limit)
    refused(done, "out/", "written")
    assert ".draft" not in done.stderr
    assert names(folder) == ["jobs.csv"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("arguments", "moment"),
    [
        ("map jobs.csv --target m3e-s5 --objective edp --samples 1000000000 --out out", 0.0),
        # Native code is at work, which looks for signals by itself.
        ("allocate jobs.csv --strategy exact --time-limit 300 --out out", 1.5),
    ],
)
def test_a_signal_that_ends_the_command_leaves_nothing(number, arguments, moment, folder):
    (folder / "jobs.csv").write_text(UNLIKE_JOBS if moment == 0 else HARD_BUFFERS)
    process = subprocess.Popen(
        [*COMMAND, *arguments.split()],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not list(folder.glob("out/.draft-*")):
        time.sleep(0.01)
    time.sleep(moment)
    process.send_signal(number)
    _, complaint = process.communicate()
    assert (process.returncode, complaint) == (128 + number, "")
    assert names(folder) == ["jobs.csv"]


def test_a_misspelt_factory_leaves_no_folder(folder):
    pytest.importorskip("torch", exc_type=ImportError)
    (folder / "factories.py").write_text("def layers():\n    pass\n")
    done = run("run torch:factories:layer --fast 50% --out out", cwd=folder)
    refused(done, "no function", "layers")
    assert not (folder / "out").exists()
