"""`loadmaster allocate` and `verify --buffers`: one JSON object, exit codes, whole files."""

import pytest
from tests.support.command_line import names, printed, ran, refused, run, unwrapped
from tests.support.needs import FIXTURES
from tests.support.tables import cases
from tests.support.user_files import BUFFERS

PLANNERS = FIXTURES / "planners"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "buffers.csv"
    path.write_text(BUFFERS)
    return path


def test_allocate_prints_exactly_one_json_object_with_what_is_promised(file):
    answer = printed("allocate", file, "--seed 7 --threads 2")
    expected = {"status": "optimal", "peak": 1100, "lower_bound": 1100, "capacity": None}
    expected |= {"strategy": "auto", "seed": 7, "buffers": 3}
    assert answer | expected == answer
    assert answer.keys() >= {"seconds", "cpu_seconds"}
    assert answer["certificate"]["buffers"] == ["b", "c"]


@pytest.mark.slow
def test_what_is_written_verifies_and_keeps_its_alignment(file):
    out = file.with_name("out.csv")
    result = ran("allocate", file, "--capacity 2KiB --alignment 256 --out", out)
    assert "wrote" in result.stdout
    ran("verify --buffers", out, "--capacity 2KiB")
    assert (
        printed("verify --buffers", out, "--capacity 1000", code=1)["violations"][0]["rule"]
        == "capacity"
    )
    out.write_text(out.read_text().replace(",256,", ",999,"))
    assert "alignment" in run("verify --buffers", out).stderr
    assert names(file.parent) == ["buffers.csv", "out.csv"]


def test_what_does_not_fit_is_exit_code_1_with_a_reason(file):
    out = file.with_name("out.csv")
    reason = printed("allocate", file, "--capacity 1000 --out", out, code=1)["reason"]
    expected = {"kind": "load", "required": 1100, "available": 1000, "excess": 100, "instant": 5}
    assert reason | expected == reason
    assert not out.exists()
    assert "100 in excess" in unwrapped(run("allocate", file, "--capacity 1000"))


@pytest.mark.slow
def test_several_memories_are_packed_written_and_verified(file):
    out = file.with_name("out.csv")
    memories = "--memory sram=1000,alignment=8,reserved=0-8 --memory dram"
    answer = printed("allocate", file, memories, "--out", out)
    expected = {"status": "optimal", "cost": 300, "lower_bound": 300, "buffers": 3}
    assert answer | expected == answer
    assert answer["memories"]["sram"]["peak"] <= answer["memories"]["sram"]["capacity"] == 1000
    ran("verify --buffers", out, memories)
    assert "capacity" in run("verify --buffers", out, "--memory sram=700 --memory dram").stderr
    assert "dram" in run("allocate", file, memories).stdout
    refused(run("verify --buffers", out), "out.csv", "--memory")
    assert printed("allocate", file, "--memory sram=500", code=1)["status"] == "infeasible"


def test_what_does_not_fit_is_drawn_beyond_the_capacity(file, tmp_path):
    out = tmp_path / "page"
    answer = printed("allocate", file, "--capacity 900 --out", out, code=1)
    assert (answer["status"], names(out)) == ("infeasible", ["report.html"])
    assert "Nothing fits: load: 1100 bytes required" in (out / "report.html").read_text()


def test_people_get_a_table(file):
    text = run("allocate", file).stdout
    for words in ("optimal", "1100", "2 buffers of 1,100 bytes together at instant 5"):
        assert words in text


@pytest.mark.parametrize(
    "row",
    cases("""
        allocate missing.csv | missing.csv | cannot be read
        allocate onnx:squeezenet | is a network | loadmaster plan onnx:squeezenet
        allocate bad.csv | bad.csv:3:4 | size
        allocate buffers.csv --capacity huge | huge | 8 MiB
        allocate buffers.csv --alignment 0 | alignment | at least 1
        allocate buffers.csv --memory sram=1MiB,colour=red | --memory | alignment=BYTES
        allocate buffers.csv --memory sram=lots | lots | 8 MiB
        allocate buffers.csv --memory sram --capacity 5 | --capacity | --memory NAME=BYTES
        verify --buffers buffers.csv --memory sram | 'offset' is missing
        allocate buffers.csv --strategy magic | magic | best-fit
        allocate buffers.csv --out bad.csv/out.csv | --out
        verify | PLAN.json | --buffers
        verify plan.json --buffers buffers.csv | PLAN.json | --buffers
        verify --buffers buffers.csv | buffers.csv:1 | 'offset' is missing
    """),
)
def test_a_mistake_is_one_line_and_exit_code_2(row, file):
    arguments, *words = row
    file.with_name("bad.csv").write_text("id,lower,upper,size\na,0,1,2\nb,0,1,x\n")
    refused(run(arguments, cwd=file.parent), *words)


def test_a_dump_of_another_planner_is_checked_and_compared(tmp_path):
    dump, out = PLANNERS / "branches.iree.txt", tmp_path / "packed.csv"
    shown = printed("allocate --from iree", dump, "--out", out)
    assert (shown["planner"], shown["file"]) == ("iree", str(dump))
    (arena,) = shown["arenas"]
    expected = {"name": "branches$async", "theirs": 38_976, "peak": 35_072, "lower_bound": 35_072}
    expected |= {"status": "optimal", "violations": [], "theirs_stated": 38_976}
    assert arena | expected == arena
    ran("verify --buffers", out, "--capacity 35072")
    table = run("allocate --from iree", dump).stdout
    for word in ("branches$async", "38,976", "35,072", "10.0% could be saved"):
        assert word in table


def test_arenas_of_one_name_are_chosen_by_number(tmp_path):
    dump, out = tmp_path / "two.vela.txt", tmp_path / "out.csv"
    dump.write_text((PLANNERS / "wake-words.vela.txt").read_text() * 2)
    (arena,) = printed("allocate --from vela", dump, "--arena Sram-2 --out", out)["arenas"]
    assert (arena["name"], arena["theirs"], out.is_file()) == ("Sram-2", 74_464, True)


LOG = """(id=0): size=64, offset=0, first_used=0 last_used=1
(id=1): size=64, offset=32, first_used=1, last_used=2
"""


def test_a_plan_of_theirs_that_does_not_hold_is_exit_code_1(tmp_path):
    dump = tmp_path / "log.txt"
    dump.write_text(LOG)
    done = ran("allocate --from tflm-log", dump, code=1)
    assert "overlap: buffers 'buffer 0' and 'buffer 1' share bytes at instant 2" in done.stdout
    assert "their plan does not hold" in done.stdout
    dump.write_text(LOG * 2)
    second = run("allocate --from tflm-log", dump, "--arena 'plan 2'")
    assert second.stdout.count("share bytes") == 1


@pytest.mark.parametrize(
    "row",
    cases("""
        --from tflm-log log.txt --out o.csv | --arena | plan 1
        --from tflm-log log.txt --arena 'plan 3' | plan 3 | did you mean plan
        --from tflm-log log.txt --memory sram | --memory | --out
        log.txt --arena 'plan 1' | --from
        --from onnxruntime planners/branches.json --out o.csv | branches.json | leave --out out
        --from tflm log.txt | did you mean tflm-log?
    """),
)
def test_a_mistake_about_a_dump_is_one_line_and_exit_code_2(row, tmp_path):
    options, *words = row
    (tmp_path / "log.txt").write_text(LOG * 2)
    (tmp_path / "planners").symlink_to(PLANNERS)
    refused(run("allocate", options, cwd=tmp_path), *words)
    assert names(tmp_path) == ["log.txt", "planners"]
