"""`loadmaster export`: what it writes and prints, and how it refuses."""

import re
import shutil
import subprocess

import pytest
from tests.support.command_line import printed, ran, refused, run, unwrapped
from tests.support.needs import FIXTURES
from tests.support.planner_dumps import tflm_log

from loadmaster.integrations.tflite import why
from loadmaster.integrations.tflite.export import _comment, export_model
from loadmaster.integrations.tflite.planned_file import planned_offsets
from loadmaster.workloads.frontends.tflite.model import parse_model

MODEL = FIXTURES / "wake-words.tflite"


@pytest.mark.slow
def test_a_model_is_written_with_its_plan_and_the_figures_are_printed(tmp_path):
    pytest.importorskip("tflite_micro")
    out = tmp_path / "planned.tflite"
    shown = printed("export tflite", MODEL, "--out", out)
    assert (shown["status"], shown["head_before"], shown["head"], shown["lower_bound"]) == (
        "optimal",
        73728,
        55296,
        55296,
    )
    assert shown["measured"]["head"] == 55296
    assert shown["measured"]["least"] == shown["measured"]["head"] + shown["measured"]["tail"]
    assert shown["measured_before"]["least"] - shown["measured"]["least"] == 73728 - 55296
    data = out.read_bytes()
    assert data.endswith(MODEL.read_bytes())
    assert len(data) - MODEL.stat().st_size < 1500
    assert set(planned_offsets(parse_model(MODEL.read_bytes()))) == {-1}
    entries = planned_offsets(parse_model(data))
    assert all(offset == -1 or offset % 16 == 0 for offset in entries)
    again = run("export tflite", out, "--out", tmp_path / "again.tflite", "--scratch none")
    assert "14 where the file has them" in unwrapped(again)
    assert "73728" not in again.stdout
    assert planned_offsets(parse_model((tmp_path / "again.tflite").read_bytes())) == entries


@pytest.mark.slow
def test_without_scratch_the_most_that_the_arena_may_grow_is_said(tmp_path):
    out = tmp_path / "planned.tflite"
    done = ran("export tflite", MODEL, "--out", out, "--scratch none --alignment 64")
    assert "the arena may take up to" in unwrapped(done)
    assert "Measured" not in done.stdout
    entries = planned_offsets(parse_model(out.read_bytes()))
    assert {offset % 64 for offset in entries if offset >= 0} == {0}


def test_a_comment_in_c_ends_with_its_line():
    assert _comment("a?\u6a21\u578b??/") == "a_____/"
    assert _comment("b\\\n") == "b__"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_the_log_of_a_target_says_what_scratch_its_kernels_take_and_the_plan_in_c_compiles(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(why, "_remedies", lambda *_: ())
    log, source, out = (tmp_path / name for name in ("log.txt", "plan.cc", "planned.tflite"))
    scratch = [
        f"{number % 10} (id={number}): size={size}, offset=0, first_used=3 last_used=3"
        for number, size in ((14, 0), (15, 2048))
    ]
    log.write_text(tflm_log(MODEL, scratch))
    command = ("export tflite", MODEL, "--out", out, "--scratch", log, "--c-struct", source)
    shown = printed(command)
    assert shown["scratch_buffers"] == [
        {"name": "scratch 14", "bytes": 0},
        {"name": "scratch 15", "bytes": 2048},
    ]
    assert (shown["head"], shown["measured"]) == (55296 + 2048, None)
    assert shown["files"] == [str(out), str(source)]
    assert len(re.findall(r"^\s+\{(\d+)\},", source.read_text(), re.MULTILINE)) == 16
    assert "kWakeWordsPlan = {\n    16," in source.read_text()
    header = tmp_path / "tensorflow/lite/micro/memory_planner/memory_plan_struct.h"
    header.parent.mkdir(parents=True)
    header.write_text(
        "#include <cstdint>\nstruct BufferDescriptor { int32_t offset; };\n"
        "struct BufferPlan { int32_t buffer_count; BufferDescriptor buffer_plan_entries[]; };\n"
    )
    user = tmp_path / "user.cc"
    user.write_text(
        '#include "tensorflow/lite/micro/memory_planner/memory_plan_struct.h"\n'
        "extern const struct BufferPlan kWakeWordsPlan;\n"
        "int main() { return kWakeWordsPlan.buffer_count != 16; }\n"
    )
    compiler = ["g++", "-std=c++17", "-I", tmp_path, source, user, "-o", tmp_path / "user"]
    built = subprocess.run(compiler, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert subprocess.run([tmp_path / "user"], check=False).returncode == 0


def test_logs_of_something_else_are_refused(tmp_path):
    log = tmp_path / "log.txt"
    plan = ("export tflite", MODEL, "--out", tmp_path / "planned.tflite", "--scratch", log)
    refused(run(plan), "log.txt", "No such file")
    log.write_text("nothing\n")
    refused(run(plan), "holds no plan: build TFLM with TF_LITE_SHOW_MEMORY_USE")
    good = tflm_log(MODEL)
    log.write_text(good.replace("size=27648", "size=27664", 1))
    refused(run(plan), "buffer 0 has 27664 bytes", "'image'", "of another model")
    log.write_text("\n".join(good.splitlines()[:5]))
    refused(run(plan), "has 4 buffers, but the model has 14 tensors")
    log.write_text(good.replace("(id=2)", "(id=7)"))
    refused(run(plan), "the log is not whole")
    assert not (tmp_path / "planned.tflite").exists()


@pytest.mark.slow
def test_what_cannot_be_done_is_refused_and_nothing_is_written(tmp_path):
    out, source, absent = (tmp_path / name for name in ("p.tflite", "p.cc", "absent.tflite"))
    export = ("export tflite", MODEL, "--out", out, "--scratch none")
    refused(run(export, "--alignment 8"), "a power of two of at least 16")
    refused(run(export, "--in-place RELUX"), "did you mean relu")
    refused(run(export, "--c-struct", source), "--c-struct lists every scratch buffer")
    refused(run("export tflite", absent, "--out", out), "absent.tflite", "cannot be read")
    refused(run("export tflight", MODEL, "--out", out), "tflight")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_arena_that_is_too_small_is_explained_and_drawn(tmp_path):
    pytest.importorskip("tflite_micro")
    out = tmp_path / "small.tflite"
    shown = printed("export tflite", MODEL, "--arena 20KiB --out", out, code=1)
    assert "no bands that were tried make the arena 20.0 KiB or less" in shown["reason"]
    assert shown["peaks"][0]["operator"] == "operator 2 (CONV_2D)"
    heads = [each["head"] for each in shown["remedies"]]
    assert heads[:3] == [55296, 31104, 46080]
    assert 36864 <= heads[3] < 37_000
    assert shown["files"] == [str(tmp_path / "small.html")]
    assert "No model is written" in (tmp_path / "small.html").read_text()
    assert not out.exists()


@pytest.mark.slow
def test_the_curve_is_listed_and_both_arenas_are_drawn(tmp_path):
    pytest.importorskip("tflite_micro")
    out = tmp_path / "small.tflite"
    done = ran("export tflite", MODEL, "--extra-macs 5% --curve --out", out)
    assert "36864 bytes (36.0 KiB)       4.5%                 10.0%      9" in done.stdout
    page = (tmp_path / "small.html").read_text()
    assert "Memory over the operators" in page
    assert page.count("<div class=chart") == 2
    assert out.exists()


@pytest.mark.slow
def test_what_cannot_run_in_bands_is_planned_as_ever_and_says_why(tmp_path):
    planned, again = tmp_path / "planned.tflite", tmp_path / "again.tflite"
    done = ran("export tflite", MODEL, "--out", planned, "--scratch none")
    more = ("--extra-macs 5% --unchecked --out", again)
    text = unwrapped(ran("export tflite", planned, more))
    assert "In bands not possible: has addresses for its tensors already" in text
    assert "Already optimal: nothing gained." in text
    assert again.exists()
    more = ("--arena 8KiB --unchecked --out", tmp_path / "third.tflite")
    done = ran("export tflite", planned, more, code=1)
    assert "with a plan alone the arena takes" in unwrapped(done)
    assert not (tmp_path / "third.tflite").exists()


@pytest.mark.slow
def test_packing_an_arena_names_its_peak_and_what_would_help():
    text = unwrapped(run("allocate", MODEL, "--capacity 48KiB"))
    assert "Peak at operator 2 (CONV_2D), 55296 bytes: t9 36864, t6 18432" in text
    assert re.search(
        r"bands: 368\d\d bytes, 33.3% less for 4.5% more work \(--extra-macs 5%\)", text
    )
    assert "No gain from kernels in place" in text


@pytest.mark.slow
def test_the_tensors_of_the_arena_can_be_packed_as_buffers():
    assert printed("allocate", MODEL, "--alignment 16")["peak"] == 55296
    refusal = printed("allocate", MODEL, "--alignment 16 --capacity 48KiB", code=1)
    assert refusal["reason"]["excess"] == 55296 - 48 * 1024


def test_a_plan_in_the_file_does_not_change_what_it_is():
    data = export_model(MODEL, scratch="none").data
    before, after = parse_model(MODEL.read_bytes()), parse_model(data)
    assert [t.name for t in after.subgraphs[0].tensors] == [
        t.name for t in before.subgraphs[0].tensors
    ]
    shift = len(data) - MODEL.stat().st_size
    assert shift % 64 == 0
    for one, other in zip(before.subgraphs[0].tensors, after.subgraphs[0].tensors, strict=True):
        assert one.content == (0, 0) == other.content or other.content == (
            one.content[0] + shift,
            one.content[1],
        )
