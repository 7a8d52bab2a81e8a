"""`loadmaster map`: one JSON object, tables, files, and mistakes in one line."""

import json
import signal
from importlib import import_module

import pytest
from tests.support.command_line import names, printed, ran, refused, run
from tests.support.needs import FIXTURES
from tests.support.tables import cases
from tests.support.user_files import COSTS

from loadmaster.cli.output import LateProgress
from loadmaster.mapping import search_groups

map_dependent_jobs = import_module("loadmaster.mapping.map_dependent_jobs")

pytestmark = pytest.mark.slow

JOBS = "K,C,Y,X,R,S,type\n" + "".join(
    f"{64 * (1 + i % 3)},{32 * (1 + i % 4)},{14 + i % 5},14,3,3,{1 + i % 2}\n" for i in range(12)
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where commands run, with files of jobs and of costs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "costs.csv").write_text(COSTS)
    return tmp_path


def test_map_prints_exactly_one_json_object_with_what_is_promised(folder):
    answer = printed("map jobs.csv --target m3e-s2 --bandwidth '1 GB/s' --seed 7 --samples 2000")
    assert (answer["strategy"], answer["seed"], len(answer["jobs"])) == ("auto", 7, 12)
    assert answer["lower_bound"] <= answer["makespan"]
    assert answer["cycles"] == pytest.approx(answer["makespan"] * 1e9, abs=1.5)
    for core in {job["core"] for job in answer["jobs"]}:
        mine = sorted(job["position"] for job in answer["jobs"] if job["core"] == core)
        assert mine == list(range(len(mine)))


def test_a_table_of_costs_needs_no_target(folder):
    answer = printed("map costs.csv --bandwidth '8 GB/s'")
    assert (answer["status"], answer["makespan"]) == ("optimal", pytest.approx(0.002))
    assert {job["job"]: job["core"] for job in answer["jobs"]} == {"a": "x", "b": "y", "c": "y"}


def test_people_get_tables_and_files_start_the_next_search(folder):
    first = ran("map jobs.csv --target m3e-s2 --samples 500 --group-size 5 --out out")
    for words in (
        "Makespan",
        "Lower bound",
        "12 on 4 cores, in 3 groups",
        "hb0",
        "Status and bound are for mapping alone",
        "wrote out/mapping.json",
    ):
        assert words in first.stdout
    settings = (
        "--strategy magma --set magma.mutation=0.1 --samples 500 --warm-start out/mapping.json"
    )
    assert "magma, seed 0" in run("map jobs.csv --target m3e-s2", settings).stdout


def test_one_table_of_measured_costs_serves_several_inputs(folder):
    for name, channels in (("a", 64), ("b", 32)):
        (folder / f"{name}.csv").write_text(f"K,C,Y,X,R,S,type\n{channels},64,56,56,1,1,1\n")
    (folder / "sub").mkdir()
    (folder / "sub/a.csv").write_text((folder / "b.csv").read_text())
    rows = ["a/0,hb0,1e-3,1e9", "b/0,hb0,2e-3,1e9"]
    command = "map {} --target m3e-s2 --cost {}"
    for name, some in (("both", rows), ("one", rows[:1]), ("numbers", ["0,hb0,1e-3,1e9"])):
        lines = ["job,core,latency_s,bandwidth_bytes_per_s", *some]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    answer = printed(command.format("a.csv b.csv", "both.csv"))
    assert answer["makespan"] == pytest.approx(3e-3)
    for inputs, table, message in (
        ("a.csv b.csv", "one.csv", "job 'b/0' has no row"),
        ("a.csv b.csv", "numbers.csv", "there is no job '0'"),
        ("a.csv sub/a.csv", "one.csv", "two inputs have a job 'a/0'"),
    ):
        refused(run(command.format(inputs, table)), message)
    late = run("map a.csv sub/a.csv --target m3e-s2 --deadline a=1us")
    assert "a-2" in late.stdout


def test_a_front_of_two_objectives(folder):
    options = "--target m3e-s2 --bandwidth '1 GB/s' --objective makespan,energy --samples 300"
    front = printed("map jobs.csv", options)["front"]
    assert [point["makespan"] for point in front] == sorted(point["makespan"] for point in front)
    assert "Throughput" in run("map jobs.csv", options).stdout


def test_dependencies_are_kept_when_asked_for(folder):
    options = "onnx:squeezenet --target m3e-s2 --precision int8 --samples 20 --json"
    free, bound = (printed("map", options, more) for more in ("", "--dependencies"))
    assert free["makespan"] < bound["makespan"]
    assert bound["lower_bound"] <= bound["makespan"]
    ends = {job["job"]: job["end"] for job in bound["jobs"]}
    first = min(ends, key=ends.get)
    assert all(
        job["start"] >= ends[first] * (1 - 1e-9) for job in bound["jobs"] if job["job"] != first
    )


def test_networks_that_come_again_report_latencies_and_misses(folder):
    options = (
        "onnx:squeezenet --target m3e-s2 --precision int8 --mini-batches 3 --samples 20"
        " --dependencies"
    )
    timing = "--period squeezenet=2ms --deadline squeezenet=10us --priority squeezenet=2"
    networks = printed("map", options, timing, code=3)["mini_batches"]
    assert [(each["number"], each["release"], each["missed"]) for each in networks] == [
        (0, 0.0, True),
        (1, 0.002, True),
        (2, 0.004, True),
    ]
    assert {each["deadline"] for each in networks} == {1e-5}
    assert all(each["latency"] == pytest.approx(each["end"] - each["release"]) for each in networks)
    assert "3 of 3 deadlines missed" in ran("map", options, timing, code=3).stdout


@pytest.fixture(params=["", "--dependencies", "--cut", "--objective makespan,energy"])
def searched(request, folder):
    """A search that takes long."""
    return "map jobs.csv --target m3e-s2 --bandwidth '1 GB/s' --samples 9999999", request.param


def test_an_interrupt_after_a_search_keeps_its_answer(folder, searched, monkeypatch):
    sent = []

    def interrupt(*arguments, **options):
        if not sent:
            sent.append(signal.raise_signal(signal.SIGINT))
        return original(*arguments, **options)

    original = search_groups.assemble
    for module in (search_groups, map_dependent_jobs):
        monkeypatch.setattr(module, "assemble", interrupt)
    ran(searched[0].replace("9999999", "50"), searched[1], "--no-report --out out")
    assert all(name.startswith("mapping") for name in names(folder / "out"))


def test_an_interrupt_ends_a_search(folder, searched, monkeypatch):
    told = []

    def interrupt(_, stage, share):
        told.append(stage)
        if stage.startswith("mapping") and len(told) > 3 and "sent" not in told:
            told.append("sent")
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LateProgress, "__call__", interrupt)
    answer = printed(searched)
    for each in answer.get("front", [answer]):
        assert each["interrupted"] or each["status"] == "optimal"
        assert each["samples"] < 9999999


@pytest.mark.parametrize("above", ["\t\n", ",,,\n", '"",\n', "\n"])
def test_lines_without_text_above_the_header_are_left_out(above, tmp_path):
    (tmp_path / "list.csv").write_text(f"{above}K,C,Y,X,R,S,type\n8,8,8,8,3,3,1\n,,,,,,\n")
    done = printed("map list.csv --target m3e-s2 --samples 5", cwd=tmp_path)
    assert len(done["jobs"]) == 1


def test_networks_of_one_name_are_kept_apart_and_only_deadlines_are_counted(folder):
    options = "onnx:squeezenet onnx:squeezenet --target m3e-s2 --precision int8 --samples 20"
    timing = "--period squeezenet=1ms --deadline squeezenet-2=1us"
    assert "1 of 1 deadline missed" in ran("map", options, timing, code=3).stdout
    served = printed("map", options, timing, code=3)["mini_batches"]
    assert {each["network"] for each in served} == {"squeezenet", "squeezenet-2"}
    assert "missed" not in run("map", options, "--period squeezenet=1ms").stdout


def test_all_jobs_of_a_network_are_due_where_none_waits(folder):
    options = "onnx:squeezenet onnx:resnet50 --target m3e-s2 --precision int8 --samples 100"
    timing = "--deadline squeezenet=600us"
    served = printed("map", options, timing)["mini_batches"]
    assert [each["missed"] for each in served] == [False, False]
    ran("map", options, timing)


@pytest.mark.parametrize(
    "row",
    cases("""
        missing.csv --target m3e-s2 | missing.csv | cannot be read
        jobs.csv | --target
        jobs.csv --bandwidth '1 GB/s' | --target
        jobs.csv --target m3e-s2 --bandwidth 0 | '0': a bandwidth must be more than zero
        jobs.csv --target m3e-s2 --strategy sorcery | sorcery | annealing
        jobs.csv --target m3e-s2 --allocator first | allocator 'first'
        jobs.csv --target m3e-s2 --objective joy | objective 'joy'
        jobs.csv --target m3e-s2 --objective makespan,energy,edp | two for a Pareto front
        jobs.csv --target m3e-s2 --cost guess | guess
        jobs.csv --target m3e-s2 --warm-start jobs.csv | not JSON from line 1, column 1
        jobs.csv --target m3e-s2 --set magma.mutation=0.1 | \
            strategy magma | auto was chosen | --strategy magma
        jobs.csv --target m3e-s2 --dependencies --objective makespan,energy | one objective
        jobs.csv --target m3e-s2 --strategy magma --set magma.mutation=lots | magma.mutation=NUMBER
        jobs.csv --target m3e-s2 --period other=1ms | \
            period of 'other': there is no such network | jobs
        jobs.csv --target m3e-s2 --deadline jobs=0 | \
            deadline of 'jobs': 0.0 s must be more than zero
        jobs.csv --target m3e-s2 --deadline other | \
            --deadline 'other': write NAME=S, such as resnet50=5ms, once
        jobs.csv --target m3e-s2 --priority other=1 | priority of 'other': there is no such network
        jobs.csv --target m3e-s2 --priority jobs=-1 | NAME=X with a number of at least 0
        jobs.csv --target m3e-s2 --batch 4 | --batch | networks
        jobs.csv --target m3e-s2 --training | --training | networks
        jobs.csv --target m3e-s2 --period jobs=1ms --group-size 3 | --period | --group-size
        jobs.csv --target m3e-s2 --dependencies --group-size 3 | --dependencies
    """),
)
def test_a_mistake_is_one_line_and_exit_code_2(row, folder):
    arguments, *words = row
    refused(run("map", arguments), *words)


def test_operators_are_divided_if_that_is_asked_for(folder):
    ncf = FIXTURES / "ncf.onnx.gz"
    options = (
        "map",
        ncf,
        "--target m3e-s2 --bandwidth '4000 GB/s' --batch 256 --precision int8 --samples 300",
    )
    whole = printed(options)
    cut = printed(options, "--cut --out cut")
    assert cut["lower_bound"] <= cut["makespan"] < whole["lower_bound"]
    assert len(cut["jobs"]) > len(whole["jobs"])
    saved = json.loads((folder / "cut" / "mapping.json").read_text())
    assert (saved["version"], saved["makespan"]) == (cut["version"], cut["makespan"])
    for more in (
        "--dependencies",
        "--group-size 4",
        "--objective makespan,energy",
        "--cost maestro",
    ):
        refused(run(options, "--cut", more), "--cut goes with")
    refused(run("map", ncf, "--bandwidth '1 GB/s' --cut"), "--target")


@pytest.mark.parametrize(("precision", "unit"), [("int8", "OP/s"), ("fp16", "FLOP/s")])
@pytest.mark.parametrize("objective", ["makespan", "makespan,energy"])
def test_rates_of_integer_networks_are_operations(precision, unit, objective):
    shown = run(
        "map onnx:squeezenet --target m3e-s2 --samples 20",
        f"--precision {precision} --objective {objective}",
    ).stdout
    assert [word for word in shown.replace(",", " ").split() if word.endswith("OP/s")][:1] in (
        [f"T{unit}"],
        [f"G{unit}"],
    ), shown
