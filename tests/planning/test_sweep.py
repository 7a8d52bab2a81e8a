"""Sweeps: every point is the plan for its machine, nothing is planned twice, and nothing that is
finished is lost."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.support.command_line import names, printed, refused, run
from tests.support.efforts import SEPARATE
from tests.support.needs import FIXTURES
from tests.support.networks import residual_chain
from tests.support.tables import cases

import loadmaster as lm
from loadmaster import _native
from loadmaster.core.errors import OutputError, PlanError, TargetError, Violation
from loadmaster.core.units import Quantity
from loadmaster.cost.cache import code_files
from loadmaster.planning.sweep.axes import Axis, parse_axes, plain
from loadmaster.planning.sweep.design_space import Sweep, SweptNetwork
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.planning.sweep.store import SweepStore
from loadmaster.planning.sweep.sweep import sweep
from loadmaster.planning.sweep.workers import local_processes
from loadmaster.report.page import render
from loadmaster.report.sweep import points, sweep_page

KIB, MIB, GB = 2**10, 2**20, 1e9
AXES = "bandwidth=1GB/s,4GB/s", "scratchpad=0,8KiB,64KiB"
OPTIONS = {"mini_batches": 2, "effort": "test"}


class Here(Executor):
    """Plans at once, where it is, and counts."""

    def __init__(self):
        self.count = 0

    def submit(self, function, /, *arguments, **keywords):
        future = Future()
        self.count += 1
        future.set_result(function(*arguments, **keywords))
        return future


@pytest.mark.parametrize(
    ("text", "sizes"),
    cases("""
        scratchpad=1MiB:32MiB | 1 2 4 8 16 32
        scratchpad=1MiB:24MiB | 1 2 4 8 16 24
        scratchpad=8MiB,1MiB,3MiB,8MiB | 1 3 8
        scratchpad=0,2MiB:4MiB | 0 2 4
        scratchpad=5MiB:5MiB | 5
    """),
)
def test_ranges_double_from_low_to_high_and_lists_are_sorted(text, sizes):
    assert parse_axes([text]) == (
        Axis("scratchpad", tuple(Quantity(int(size) * MIB, "B") for size in sizes.split())),
    )


@pytest.mark.parametrize(
    ("text", "values"),
    cases("""
        cores.ws.count=1:4 | 1 2 3 4
        cores.ws.rows=16:64 | 16 32 64
        cores.ws.rows=16:64:16 | 16 32 48 64
        cores.ws.clock=500MHz:2GHz | 5e8 1e9 2e9
        dram.energy=10pJ/B,20pJ/B | 1e-11 2e-11
        cores.ws.energy.mac_int8=0.3pJ,1nJ | 3e-13 1e-9
        dram.energy=10pJ/B:11pJ/B:1pJ/B | 1e-11 1.1e-11
        cores.ws.style=weight-stationary,row-stationary | weight-stationary row-stationary
        mini-batches=1:4 | 1 2 4
        networks=a,b,a+b | a b a+b
    """),
)
def test_any_field_is_an_axis(text, values):
    """Counts go by ones, all else doubles unless a step is given; text stays in its order."""
    found = [plain(value) for value in parse_axes(text)[0].values]
    expected = values.split()
    assert found == (
        expected if isinstance(found[0], str) else pytest.approx(list(map(float, expected)))
    )


@pytest.mark.parametrize(
    ("texts", "word"),
    [
        ("scratchpad=" + ",".join(map(str, range(20_000))), "points"),
        *cases("""
            scratchpad | such as scratchpad=
            scratchpad=1MiB,2GHz | different units
            scratchpad=1MiB:2GHz | one unit
            cores.ws.rows=1:64:0 | a step is above zero
            batch=0,1 | whole numbers of at least 1
            scratchpad=0:4MiB | above zero
            scratchpad=8MiB:4MiB | above zero
            scratchpad=1:1e400 | finite high end
            scratchpad=1MiB scratchpad=2MiB | already
        """),
    ],
)
def test_axes_that_make_no_sense_are_refused(texts, word):
    with pytest.raises(TargetError, match=word):
        parse_axes(texts.split())


def swept_here(*texts, target="edge-npu", blocks=1, **options):
    """A sweep along axes, in this process unless told otherwise."""
    options = {"executor": Here()} | options
    return sweep([residual_chain(blocks)], target, parse_axes(texts), **options)


def assert_same(point, plan):
    """A point has the figures of a plan."""
    figures, objective = plan.metrics, plan.objective
    for cost, *values in (
        (figures.makespan, point.makespan, point.lower_bound),
        (figures.energy, point.energy, point.energy_bound),
    ):
        assert values == [cost.value, cost.lower_bound]
    assert (point.throughput, point.gap) == (figures.throughput.value, objective.gap)
    assert (point.status, point.missed) == (plan.status, plan.missed)
    assert (point.traffic_bytes, point.area) == (
        figures.traffic["dram"].value,
        lm.area(plan.target),
    )
    assert point.violations == ()


def at(scratchpad, bandwidth=None):
    rate = [] if bandwidth is None else [f"dram.bandwidth={bandwidth}"]
    return lm.target("edge-npu", [f"scratchpad.capacity={scratchpad:.0f}", *rate])


@pytest.mark.slow
def test_every_point_is_the_plan_for_its_machine():
    found = swept_here(*AXES, blocks=3, **OPTIONS)
    assert [tuple(p.at.values()) for p in found.points] == [
        (b, s) for b in (GB, 4 * GB) for s in (0, 8 * KIB, 64 * KIB)
    ]
    for point in found.points:
        plan = lm.plan([residual_chain(3)], at(point.scratchpad, point.bandwidth), **OPTIONS)
        main = plan.target.main
        rates = main.read_bandwidth, main.write_bandwidth, point.at["bandwidth"]
        assert {*rates} == {point.bandwidth}
        assert_same(point, plan)
        assert point.frames == 2
        assert point.frames_per_second == pytest.approx(2 / point.makespan)
        assert 0 <= point.peak <= point.scratchpad == point.at["scratchpad"]


@pytest.mark.slow
def test_fields_of_cores_and_batches_and_networks_are_swept_too():
    """Each point against the plan that the options of the command would give."""
    graphs = [residual_chain(2, name="one"), residual_chain(1, name="other")]
    axes = parse_axes(["cores.ws.count=1,3", "mini_batches=1,2", "networks=one,one+other"])
    found = sweep(graphs, lm.target("edge-npu"), axes, executor=Here(), effort=SEPARATE)
    assert len(found.points) == 8
    for point in found.points:
        target = lm.target("edge-npu", [f"cores.ws.count={point.at['cores.ws.count']}"])
        chosen = graphs[:1] if point.at["networks"] == "one" else graphs
        plan = lm.plan(chosen, target, mini_batches=point.at["mini_batches"], effort=SEPARATE)
        assert_same(point, plan)
    assert found.free == ("mini_batches", "networks")
    assert {len(front) for front in found.fronts().values()} <= {1, 2}


def test_a_batch_is_read_anew():
    batches = []

    def load(batch):
        batches.append(batch)
        return [replace(residual_chain(1), batch=batch)]

    found = swept_here("batch=2,4", load=load, effort=SEPARATE)
    assert batches == [2, 4]
    assert [point.frames for point in found.points] == [2, 4]
    with pytest.raises(PlanError, match="give load="):
        swept_here("batch=2")


def test_mini_batches_may_be_written_as_any_whole_numbers():
    found = swept_here("mini-batches=1.0,2e0", effort=SEPARATE)
    assert [point.frames for point in found.points] == [1, 2]


@pytest.mark.parametrize(
    ("text", "error", "word"),
    [
        ("cores.wx.count=1:2", TargetError, "choose one of ws"),
        ("cores.ws.colour=1,2", TargetError, "no such field"),
        ("cores.ws.count=1MiB", TargetError, "count"),
        ("networks=chain,other", PlanError, "'other' is not among the networks"),
    ],
)
def test_fields_and_networks_that_there_are_not_are_refused(text, error, word):
    with pytest.raises(error, match=word):
        swept_here(text)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"workers": 3}, "no argument 'workers'"),
        ({"executor": 3}, "executor is 3"),
        ({"efort": "test"}, "effort"),
    ],
)
def test_arguments_that_there_are_not_are_refused_before_anything_is_planned(given, word):
    with pytest.raises(PlanError, match=word):
        swept_here("scratchpad=8KiB", **given)


def test_points_have_energy_and_the_gap_of_what_was_asked_for():
    options = OPTIONS | {"objective": "energy", "deadlines": {"chain": 1e-9}}
    found = swept_here("scratchpad=8KiB,64KiB", blocks=2, **options)
    for point in found.points:
        plan = lm.plan([residual_chain(2)], at(point.scratchpad), **options)
        assert_same(point, plan)
        assert point.missed == 2
    assert "2 plans with mini-batches that miss their deadlines" in render(sweep_page(found))


def test_deadlines_of_limits_are_those_of_plans():
    limits = lm.Limits(deadlines={"chain": 1e-9})
    found = swept_here("scratchpad=8KiB", limits=limits, deadlines={"chain": 1.0})
    (point,) = found.points
    assert (point.missed, limits.met_by(point), found.smallest()) == (1, False, None)


def test_a_target_without_scratchpad_cannot_have_its_size_swept():
    machine = lm.target("edge-npu")
    target = replace(machine, memories=machine.memories[:1], copy=None)
    with pytest.raises(TargetError, match="no fast memory"):
        swept_here("scratchpad=0,8KiB", target=target)


def test_a_machine_that_cannot_hold_the_operands_has_no_plan_and_the_others_do():
    found = swept_here("scratchpad=1KiB,1MiB", target="gpu-pcie", blocks=2, effort=SEPARATE)
    assert [point.planned for point in found.points] == [False, True]
    assert "hbm" in found.points[0].reason
    assert found.fronts() == {(): (found.points[1],)}
    page = render(sweep_page(found))
    assert "no plan" in page
    assert found.points[0].reason.split(":")[0] in page


@pytest.mark.slow
def test_what_was_planned_once_is_not_planned_again(tmp_path):
    store = SweepStore(tmp_path / "sweep.sqlite")

    def planned(*texts, **changed):
        """A sweep with what others have left in the file, and how many plans it made."""
        here = Here()
        options = OPTIONS | {"executor": here, "store": store} | changed
        return swept_here(*texts, **options), here.count

    (first, _), (second, count) = planned(*AXES), planned(*AXES)
    assert (count, second.reused, second.points) == (0, 6, first.points)
    assert planned(AXES[0], f"{AXES[1]},128KiB")[1] == 2
    for changed in ({"seed": 1}, {"mini_batches": 3}, {"blocks": 2}):
        assert planned(*AXES, **changed)[1] >= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "axes",
    [["scratchpad=0,8KiB", "mini-batches=1,2"], ["scratchpad.capacity=0,8KiB"]],
    ids=["another axis", "another name"],
)
def test_a_machine_that_a_sweep_of_other_axes_stored_has_the_values_of_this_one(axes, tmp_path):
    store = SweepStore(tmp_path / "sweep.sqlite")
    options = {"mini_batches": 1, "effort": "test", "store": store}
    swept_here("scratchpad=0,8KiB", **options)
    found = swept_here(*axes, **options)
    names = [axis.name for axis in found.axes]
    assert (found.reused, found.missing) == (2, 0)
    assert [list(point.at) for point in found.points] == [names] * len(found.points)
    assert len({tuple(point.at.values()) for point in found.points}) == len(found.points)
    assert found.as_json()["points"]


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_finished(tmp_path):
    """Ctrl-C arrives when two of six points are there."""
    whole = swept_here(*AXES, **OPTIONS)
    store = SweepStore(tmp_path / "sweep.sqlite")
    kept = []

    def stop_after_two(stage, share):
        kept.append(share)
        if len(kept) == 3:
            raise KeyboardInterrupt

    first = swept_here(*AXES, store=store, progress=stop_after_two, **OPTIONS)
    assert (len(first.points), first.missing) == (2, 4)
    rest = Here()
    second = swept_here(*AXES, executor=rest, store=store, **OPTIONS)
    assert (rest.count, second.reused, second.missing) == (4, 2, 0)
    assert second.points == whole.points


class Anomalous(Here):
    """Pretends that a larger scratchpad makes plans slower unless they start from a smaller
    one's."""

    def submit(self, function, /, *arguments, **keywords):
        (given,) = arguments
        made = given.options.get("smaller", given.target)
        return super().submit(lambda: point(given.target.room, 1.0 + made.room))


def test_points_of_a_store_start_from_those_of_smaller_machines_too(tmp_path):
    """Stored one by one they have not, nor those of a sweep that was stopped in time."""
    store = SweepStore(tmp_path / "sweep.sqlite")
    for size in ("8KiB", "16KiB", "32KiB"):
        swept_here(f"scratchpad={size}", executor=Anomalous(), store=store)
    for count in (2, 0):
        again = Anomalous()
        found = swept_here("scratchpad=8KiB,16KiB,32KiB", executor=again, store=store)
        assert [each.makespan for each in found.points] == [1.0 + 8 * KIB] * 3
        assert (again.count, found.reused, found.missing) == (count, 3, 0)


@pytest.mark.slow
def test_processes_and_threads_give_the_same_points():
    text = "scratchpad=8KiB,64KiB"
    with local_processes(2) as processes:
        there = swept_here(text, executor=processes, **OPTIONS)
    with ThreadPoolExecutor(2) as threads:
        # Networks and axes may be iterators.
        given = iter([residual_chain(1)]), "edge-npu", iter(parse_axes([text]))
        assert sweep(*given, executor=threads, **OPTIONS) == there


def point(size, makespan, energy=1.0, **more):
    at = {"scratchpad": size}, size, 1e9, float(size)
    if makespan is None:
        return DesignPoint(*at, "no plan")
    more |= {"lower_bound": 0.0, "throughput": 1.0, "traffic_bytes": 1}
    return DesignPoint(*at, "feasible", makespan=makespan, energy=energy, **more)


def swept(points, sizes, precisions=("fp32",), **more):
    axes = (Axis("scratchpad", tuple(Quantity(size, "B") for size in sizes)),)
    networks = tuple(SweptNetwork("n", precision, 1, 1, 1) for precision in precisions)
    return Sweep(networks, lm.target("edge-npu"), axes, points, **more)


def test_the_front_leaves_out_what_is_beaten_in_area_time_and_energy():
    figures = (1, 5.0), (2, 5.0), (3, 6.0, 0.5), (4, 2.0), (5, None), (6, 2.0, 1.5)
    points = tuple(point(*each) for each in figures)
    found = swept(points, range(1, 8))
    assert found.fronts() == {(): (points[0], points[2], points[3])}
    shown = found.as_json()["points"]
    assert [number for number, each in enumerate(shown) if each["pareto"]] == [0, 2, 3]
    assert found.missing == 1


def test_points_are_compared_at_the_same_values_of_what_costs_no_area():
    slow, fast = (
        replace(point(1, span), at={"scratchpad": 1, "bandwidth": rate})
        for span, rate in ((5.0, 1e9), (2.0, 2e9))
    )
    found = swept((slow, fast), (1,), free=("bandwidth",))
    assert found.fronts() == {(1e9,): (slow,), (2e9,): (fast,)}


def test_the_smallest_machine_within_limits():
    broken = point(2, 3.0, violations=(Violation("order", "wrong"),))
    points = (point(1, 5.0), broken, point(3, 4.0), point(4, 4.0), point(5, 3.0, missed=1))
    found = swept(points, (1, 2, 3, 4, 5), limits=lm.Limits(makespan=4.0))
    assert found.smallest() is points[2]
    shown = found.as_json()["points"]
    assert [number for number, each in enumerate(shown) if each["within_limits"]] == [2, 3]
    assert swept(points, (1,)).smallest() is None
    assert "the one of least area is at scratchpad 3 B" in render(sweep_page(found))
    assert swept(points, (1,), limits=lm.Limits(fps=0.3)).smallest() is None
    assert swept(points, (1,), limits=lm.Limits(fps=0.25, energy=1.0)).smallest() is points[2]


def test_a_sweep_without_points_has_a_page_and_two_sizes_that_read_alike_are_told_apart():
    sizes = (2**20, 2**20 + 1)
    assert "2 points not planned" in render(sweep_page(swept((), sizes)))
    page = render(sweep_page(swept(tuple(point(size, 5.0) for size in sizes), sizes)))
    assert "1048576 B" in page
    assert "1048577 B" in page


def test_a_process_that_is_ended_from_outside_is_an_error_that_says_what_to_do():
    with pytest.raises(PlanError, match="fewer --workers"), local_processes(1) as executor:
        executor.submit(os._exit, 3).result()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, (
        "Ctrl-C is handled as before"
    )


def test_processes_start_with_an_interrupt_blocked_and_end_by_it_later():
    with local_processes(1) as executor:
        assert executor.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result() == set()
        assert executor.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_DFL
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_a_file_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "sweep.sqlite").write_text(
        "not a database, but long enough to be looked at as one" * 100
    )
    with pytest.raises(OutputError, match="remove it"):
        SweepStore(tmp_path / "sweep.sqlite")


COMMAND = "plan onnx:squeezenet --target edge-npu --cut none --effort test"


@pytest.mark.slow
def test_a_model_that_cannot_be_read_without_a_batch_is_swept_over_batches(tmp_path):
    model = FIXTURES / "traced-bert-opset14.onnx.gz"
    swept = ("--sweep", "batch=1,2", "--dim", "steps=16", "--effort", "test", "--cut", "none")
    done = printed("plan", model, "--target edge-npu", *swept, "--out", tmp_path)
    assert [point["at"] for point in done["points"]] == [{"batch": 1}, {"batch": 2}]


@pytest.mark.slow
def test_the_command_writes_table_page_and_json_and_goes_on_after_ctrl_c(tmp_path):
    """Ctrl-C goes to the whole process group, as a terminal sends it, once the first point is in
    the file."""
    sweep = f"{COMMAND} --sweep scratchpad=1MiB:4MiB --sweep bandwidth=4GB/s,8GB/s --workers 1"
    # What runs in the background of a script ignores Ctrl-C, and so would its children.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        [sys.executable, "-m", "loadmaster", *sweep.split(), "--json", "--out", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=heeding,
    )
    while finished(tmp_path / "sweep.sqlite") == 0 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    stopped = json.loads(stdout)
    whole = printed(sweep, "--out", tmp_path)
    assert whole["reused"] == len(stopped["points"]) >= 1
    assert (len(whole["points"]), whole["missing"]) == (6, 0)
    assert [point["at"] for point in whole["points"]][:2] == [
        {"scratchpad": MIB, "bandwidth": 4e9},
        {"scratchpad": MIB, "bandwidth": 8e9},
    ]
    files = ["sweep.html", "sweep.json", "sweep.sqlite"]
    assert names(tmp_path) == files
    assert json.loads((tmp_path / "sweep.json").read_text())["points"] == whole["points"]
    table = run(sweep, "--out", tmp_path, columns=120).stdout
    for words in ("squeezenet on edge-npu", "8.00 GB/s", "4.00 MiB", "estimates", "sweep.html"):
        assert words in table


def finished(place):
    """Points in a file that may not be there yet."""
    if not place.is_file():
        return 0
    try:
        with closing(sqlite3.connect(place)) as connection:
            return int(connection.execute("SELECT count(*) FROM plans").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.parametrize(
    ("options", "word"),
    cases("""
        --workers 2 | --sweep
        --fps 30 | --sweep
        --sweep scratchpad=1MiB --cluster dask://x:1 --workers 2 | give one of them
        --batch 2 --sweep batch=1:4 | --batch 2 and an axis batch
        --sweep scratchpad=1MiB --cluster tcp://x:1 | dask://host:port
        --sweep 'scratchpad=1 parsec' | parsec
    """),
)
def test_mistakes_are_one_line_and_leave_nothing(options, word, tmp_path):
    refused(run(COMMAND, options, "--out", tmp_path / "out"), word)
    assert not (tmp_path / "out").exists()


def test_what_is_kept_is_known_by_all_code_of_the_package():
    """So that what another version planned or analysed is not taken for this one's."""
    names = {file.name for file in code_files()}
    known = {"planner.py", "units.py", "maestro.py", "packing.py", Path(_native.__file__).name}
    assert known <= names


@pytest.mark.parametrize(
    ("precisions", "unit"), [(("int8", "fp16"), "GOP/s"), (("fp32",), "GFLOP/s"), ((), "GOP/s")]
)
def test_rates_of_integer_networks_are_operations(precisions, unit):
    """In the table and in the page, whose axis is named too."""
    found = swept((replace(point(2**20, 2e-3), throughput=5e9),), (2**20,), precisions)
    assert [row[">throughput"] for row in points(found).rows] == [f"5.00 {unit}"]
    assert f"5.00 {unit}" in render(sweep_page(found))
    assert found.as_json()["precisions"] == list(precisions)
