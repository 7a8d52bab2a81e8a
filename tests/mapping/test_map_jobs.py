"""Mapping jobs as a function: every strategy, groups, objectives, fronts, warm starts, and
mistakes."""

import itertools
import os
import signal
from dataclasses import replace
from threading import Timer

import numpy as np
import pytest
from tests.support.job_tables import table_of
from tests.support.needs import FIXTURES
from tests.support.nightly import by_night
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.effort import Effort
from loadmaster.core.errors import MappingError
from loadmaster.cost.job_pool import read_pool
from loadmaster.mapping import search_groups
from loadmaster.mapping.answer import read_warm_start, warm_start_of
from loadmaster.mapping.bounds.group_bounds import group_bound
from loadmaster.mapping.group import group_of, queues_of
from loadmaster.mapping.map_dependent_jobs import map_dependent_jobs
from loadmaster.mapping.map_jobs import map_jobs, pareto_front
from loadmaster.mapping.strategies.registry import STRATEGIES
from loadmaster.mapping.timeline import exact_makespan

NEEDS = {
    "ga": "pymoo",
    "de": "pymoo",
    "pso": "pymoo",
    "cma-es": "cma",
    "a2c": "stable_baselines3",
    "ppo": "stable_baselines3",
}


ONES = np.ones((30, 4))


def jobs(count=30, cores=4):
    generator = np.random.default_rng(0)
    shape = count, cores
    return table_of(
        generator.lognormal(-7, 1, shape),
        generator.lognormal(20, 1, shape),
        flops=generator.integers(1, 10**9, count),
        energy=generator.lognormal(-3, 1, shape),
        clock=1e9,
    )


def exact_of(mapping, table):
    """The makespan of a mapping on four cores, in fractions."""
    order = np.lexsort((mapping.position, mapping.core))
    return float(exact_makespan(group_of(table, 1e9), queues_of(mapping.core, order, 4)))


def test_operations_of_many_jobs_are_counted_beyond_64_bits():
    table = jobs(12)
    many = replace(table, flops=np.full_like(table.flops, WHOLE_LIMIT - 1))
    assert map_jobs(many, 1e9, strategy="herald").flops == 12 * (WHOLE_LIMIT - 1)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in NEEDS else name
        for name in STRATEGIES.names
    ],
)
def test_every_strategy_maps_every_job_and_says_the_truth_about_it(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    table = jobs(12)
    samples = 5 if name in ("a2c", "ppo") else 500
    mapping = map_jobs(table, 1e9, strategy=name, samples=samples, seed=3)
    assert exact_of(mapping, table) == pytest.approx(mapping.makespan, rel=1e-12)
    assert mapping.end.max() == pytest.approx(mapping.makespan, rel=1e-9)
    assert mapping.lower_bound <= mapping.makespan
    assert mapping.samples <= samples
    assert mapping.throughput == pytest.approx(table.flops.sum() / mapping.makespan)
    values = [value for _, value in mapping.history[0]]
    assert values == sorted(values, reverse=True)
    again = map_jobs(table, 1e9, strategy=name, samples=samples, seed=3, threads=2)
    assert (again.core == mapping.core).all()
    assert (again.position == mapping.position).all()


@pytest.mark.parametrize("bandwidth", [1e9, *by_night(1e8, 1e10)])
@pytest.mark.parametrize("allocator", ["demand", "even"])
@pytest.mark.slow
def test_auto_is_no_worse_than_the_others_and_close_to_the_bound(bandwidth, allocator):
    table = jobs(40)
    auto = map_jobs(table, bandwidth, allocator=allocator, samples=20_000)
    for name in ("magma", "herald", "ai-mt", "random", "annealing", "es"):
        other = map_jobs(table, bandwidth, allocator=allocator, strategy=name, samples=5_000)
        assert auto.makespan <= other.makespan * (1 + 1e-9)
        assert auto.lower_bound <= other.makespan
    # Random jobs leave the bound slack where they ask for about as much as there is.
    assert auto.gap < (0.1 if allocator == "demand" else 0.05)


def test_under_an_even_split_cores_do_not_touch_each_other():
    table = jobs()
    even = map_jobs(table, 1e9, allocator="even", samples=20_000)
    alone = table.latency * np.maximum(1, table.bandwidth * 4 / 1e9)
    loads = np.bincount(even.core, alone[np.arange(30), even.core])
    assert even.makespan == pytest.approx(loads.max())
    assert even.makespan >= (table.latency * table.bandwidth).min(axis=1).sum() / 1e9


def test_groups_run_one_after_another():
    table = jobs(50)
    whole = map_jobs(table, 1e9, group_size=20, samples=3_000)
    assert "groups, one after another" in whole.limit
    assert whole.group.tolist() == [0] * 20 + [1] * 20 + [2] * 10
    assert len(whole.history) == 3
    for number in (1, 2):
        assert whole.start[whole.group == number].min() >= whole.end[
            whole.group == number - 1
        ].max() * (1 - 1e-12)
    assert whole.end.max() == pytest.approx(whole.makespan)
    assert map_jobs(table, 1e9, samples=3_000).lower_bound <= whole.lower_bound <= whole.makespan


def test_objectives_pull_where_they_should():
    table = jobs()
    energy, edp, makespan = (
        map_jobs(table, 1e9, objective=name, samples=20_000)
        for name in ("energy", "edp", "makespan")
    )
    assert energy.status == "optimal"
    assert energy.limit == "least energy of every job"
    assert energy.energy == pytest.approx(table.energy.min(axis=1).sum())
    assert makespan.makespan < edp.makespan < energy.makespan
    assert energy.energy < edp.energy < makespan.energy
    assert edp.value == pytest.approx(edp.makespan * edp.energy)
    assert (
        edp.lower_bound
        <= edp.value
        <= min(energy.makespan * energy.energy, makespan.makespan * makespan.energy)
    )


@pytest.mark.slow
def test_no_mapping_of_a_front_is_better_than_another_in_both():
    front = pareto_front(jobs(), 1e9, ("makespan", "energy"), samples=5_000)
    points = [(mapping.makespan, mapping.energy) for mapping in front]
    assert len(points) >= 4
    assert points == sorted(points)
    assert [energy for _, energy in points] == sorted(
        (energy for _, energy in points), reverse=True
    )
    assert all(mapping.status == "feasible" or mapping.gap <= 1e-9 for mapping in front)
    with pytest.raises(MappingError, match="same mappings"):
        pareto_front(jobs(), 1e9, ("makespan", "throughput"))


def test_on_a_front_optimal_means_that_the_makespan_is_proven():
    analysis = read_pool([str(FIXTURES / "jobs.csv")], lm.target("m3e-s2")).analysis
    front = pareto_front(analysis, 64e9, ("energy", "edp"), samples=2_000)
    assert any(mapping.gap > 1e-3 for mapping in front)
    assert all(mapping.status == "feasible" or mapping.gap <= 1e-9 for mapping in front)


def test_more_jobs_than_anyone_means_are_refused():
    with pytest.raises(MappingError, match="fewer mini-batches"):
        read_pool([str(FIXTURES / "jobs.csv")], lm.target("m3e-s2"), mini_batches=100_000_000)


def test_no_strategy_is_worse_than_its_warm_start(tmp_path):
    table = jobs(60)
    first = map_jobs(table, 1e9, samples=10_000)
    first.save(tmp_path / "mapping.json")
    start = read_warm_start(tmp_path / "mapping.json")
    assert start.core == warm_start_of(first.rows()).core
    for name in ("magma", "auto", "annealing", "herald", "random"):
        warm = map_jobs(table, 1e9, strategy=name, samples=1, warm_start=start)
        assert warm.makespan <= first.makespan * (1 + 1e-12)


def test_the_bound_of_one_job_is_met_and_proven():
    table = jobs(1)
    mapping = map_jobs(table, 1e8)
    alone = (table.latency * np.maximum(1, table.bandwidth / 1e8)).min()
    assert (mapping.status, mapping.makespan) == ("optimal", pytest.approx(alone))
    assert mapping.cycles == pytest.approx(alone * 1e9, abs=1.5)


def test_magma_improves_from_generation_to_generation_and_heeds_its_rates():
    table = jobs(60)
    mapping = map_jobs(table, 1e9, strategy="magma", samples=4_000)
    assert mapping.history[0][-1][1] < 0.9 * mapping.history[0][0][1]
    still = {"mutation": 0.0, "crossover-gen": 0.0, "crossover-rg": 0.0, "crossover-accel": 0.0}
    frozen = map_jobs(table, 1e9, strategy="magma", samples=4_000, settings=still)
    assert frozen.makespan == pytest.approx(frozen.history[0][0][1], rel=1e-12)
    for settings, words in (
        ({"luck": 1.0}, "no setting of magma 'luck'"),
        ({"mutation": 2.0}, "between 0 and 1"),
        ({"population": 1}, "from 2"),
    ):
        with pytest.raises(MappingError, match=words):
            map_jobs(table, 1e9, strategy="magma", settings=settings)


def test_time_limits_and_interrupts_keep_the_best_so_far():
    table = jobs(300, 8)
    limited = map_jobs(table, 1e9, time_limit=0.1, group_size=100)
    assert limited.interrupted

    def interrupt(stage, share):
        if share > 0.1:
            raise KeyboardInterrupt

    stopped = map_jobs(table, 1e9, group_size=100, progress=interrupt)
    assert stopped.interrupted
    for mapping in (limited, stopped):
        assert sorted(np.bincount(mapping.group).tolist()) == [100, 100, 100]


@pytest.mark.parametrize("find", [map_jobs, pareto_front])
def test_an_interrupt_between_two_searches_keeps_the_best_so_far(find, monkeypatch):
    pressed = iter([False, True])

    def bound(group):
        if next(pressed, False):
            signal.raise_signal(signal.SIGINT)
        return group_bound(group)

    start = warm_start_of(map_jobs(jobs(60), 1e9, group_size=20).rows())
    kept = map_jobs(jobs(60), 1e9, group_size=20, warm_start=start, samples=1).makespan
    monkeypatch.setattr(search_groups, "group_bound", bound)
    found = find(jobs(60), 1e9, group_size=20, warm_start=start)
    assert [mapping.group.max() for mapping in np.ravel(found)][-1] == 2
    assert any(mapping.interrupted for mapping in np.ravel(found))
    assert min(mapping.makespan for mapping in np.ravel(found)) <= kept


@pytest.mark.parametrize("name", ["auto", "magma", "annealing", "random", "es", "tbpsa", "waiting"])
def test_an_interrupt_from_the_keyboard_keeps_the_best_so_far(name):
    """It comes while native code searches, which would go on for ever."""
    pressed = Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))

    def progress(stage, share):
        if pressed.ident is None:
            pressed.start()

    table, options = jobs(60), {"samples": 10**12, "progress": progress}
    if name == "waiting":
        found = map_dependent_jobs(table, 1e9, [()] * 60, **options)
    else:
        found = map_jobs(table, 1e9, strategy=name, **options)
    assert found.interrupted
    assert found.lower_bound <= found.makespan
    assert len(found.core) == 60


@pytest.mark.parametrize(
    ("text", "words"),
    cases(r"""
        { | not JSON from line 1, column 2
        {"objectives": [], "front": []} | front of mappings
        {"jobs": [{"job": "a", "core": "x", "group": 0, "start": 0.0, "end": 1.0}]} | \
            give what `loadmaster map --json` printed, .*; jobs.0: position: field required
        {"jobs": [{"job": "a", "core": 3, "group": 0, "position": 0, "start": 0.0, "end": 1.0}]} | \
            jobs.0: core: input should be a valid string
        {"jobs": [{"job": "a", "core": "x", "group": 0, "position": -1, "start": 0.0, "end": 1}]} \
            | position: input should be greater than or equal to 0
    """),
)
def test_a_malformed_warm_start_is_refused_by_field(text, words, tmp_path):
    (tmp_path / "start.json").write_text(text)
    with pytest.raises(MappingError, match=words):
        read_warm_start(tmp_path / "start.json")


def test_settings_of_a_strategy_that_has_none_are_refused():
    with pytest.raises(MappingError, match="'auto' has no settings"):
        map_jobs(jobs(5), 1e9, settings={"mutation": 0.1})


def test_jobs_that_wait_are_mapped_for_energy_and_for_both():
    table = jobs(30)
    after = [()] * 10 + [(job,) for job in range(20)]
    quick, frugal, both = (
        map_dependent_jobs(table, 1e9, after, objective=name, samples=600)
        for name in ("makespan", "energy", "edp")
    )
    assert frugal.status == "optimal"
    assert frugal.energy == pytest.approx(table.energy.min(axis=1).sum())
    assert frugal.energy <= both.energy
    assert quick.makespan <= frugal.makespan
    assert (
        both.value
        == both.makespan * both.energy
        <= min(each.makespan * each.energy for each in (quick, frugal))
    )
    for mapping in (quick, frugal, both):
        assert mapping.lower_bound <= mapping.value
        assert (mapping.start[10:] >= mapping.end[:20]).all()


def test_local_search_finds_what_list_scheduling_misses():
    # The first job ends first on the core that the chain needs.
    table = table_of(np.array([[1.0, 1.1], [1.0, 9.0], [1.0, 9.0], [1.0, 9.0]]) * 1e-3, 1.0)
    found = map_dependent_jobs(table, 1e9, [(), (), (1,), (2,)], samples=300)
    assert found.makespan == pytest.approx(3e-3)
    assert found.status == "optimal"


def test_dependent_jobs_wait_for_each_other_and_for_their_time():
    table = jobs(20)
    after = [() if i < 5 else (i - 5, i - 3) for i in range(20)]
    release = np.linspace(0, 0.01, 20)
    mapping = map_dependent_jobs(table, 1e9, after, release=release, samples=300)
    assert (mapping.start >= release - 1e-12).all()
    order = np.lexsort((mapping.position, mapping.core)).tolist()
    followers = [(a, b) for a, b in itertools.pairwise(order) if mapping.core[a] == mapping.core[b]]
    waits = [(before, job) for job, befores in enumerate(after) for before in befores]
    for before, job in followers + waits:
        assert mapping.end[before] <= mapping.start[job] + 1e-12
    assert mapping.lower_bound <= mapping.makespan
    chain = map_dependent_jobs(table, 1e12, [(i - 1,) if i else () for i in range(20)])
    assert chain.makespan == pytest.approx(table.latency.min(axis=1).sum(), rel=1e-6)
    assert chain.gap < 1e-6


def test_the_event_engine_agrees_with_exact_fractions_where_nothing_waits():
    table = jobs(20)
    mapping = map_dependent_jobs(table, 1e9, [()] * 20, samples=50)
    assert mapping.makespan == pytest.approx(exact_of(mapping, table), abs=100e-12)


def test_a_deadline_that_binds_nobody_costs_nothing():
    generator = np.random.default_rng(1)
    latency = generator.uniform(1e-6, 1e-3, (150, 4))
    table = table_of(latency, generator.uniform(0, 1e9, (150, 4)))
    free = map_jobs(table, 1e9, effort=Effort.TEST)
    timed = map_dependent_jobs(table, 1e9, [()] * 150, due=[100.0] * 150, effort=Effort.TEST)
    # Times of jobs that wait are whole picoseconds.
    assert timed.makespan <= free.makespan * (1 + 1e-6)


def test_due_dates_come_before_the_makespan():
    table = replace(jobs(10, 1), bandwidth=np.zeros((10, 1)))
    due = np.full(10, np.inf)
    due[7] = float(table.latency[7, 0]) + 1e-9
    mapping = map_dependent_jobs(table, 1e9, [()] * 10, due=due, samples=200)
    assert mapping.end[7] <= due[7]


@pytest.mark.parametrize("objective", ["makespan", "energy"])
def test_a_core_waits_for_an_urgent_job_and_what_is_late_is_not_optimal(objective):
    costs = table_of([[0.01], [0.001]], energy=np.ones((2, 1)))
    release = [0.0, 0.001]
    for due in (0.002, 0.0015):
        found = map_dependent_jobs(
            costs, 1e9, [(), ()], release=release, due=[np.inf, due], objective=objective
        )
        assert found.start[1] == 0.001
        is_punctual = found.end[1] <= due
        assert is_punctual == (due == 0.002)
        assert is_punctual or found.status == "feasible"


@pytest.mark.parametrize(
    ("microseconds", "release", "due", "weight", "cores", "late"),
    [
        # Both cores must wait for the urgent jobs.
        ([10, 10, 4, 4], [0, 0, 1, 1], [100, 100, 5, 5], [1, 1, 1, 1], 2, 0),
        # The third job is never due, but must run before the fourth.
        ([1, 5, 13, 5], [1, 0, 3, 0], [np.inf, 5, np.inf, 20], [2, 5, 1, 1], 1, 10),
    ],
    ids=["two-cores-wait", "never-due"],
)
def test_lateness_is_the_least_there_is(microseconds, release, due, weight, cores, late):
    costs = table_of(np.repeat(np.array(microseconds)[:, None] * 1e-6, cores, axis=1))
    after = [(), (0,), (0,), ()] if cores == 1 else [()] * 4
    found = map_dependent_jobs(
        costs,
        1e9,
        after,
        release=np.array(release) * 1e-6,
        due=np.array(due) * 1e-6,
        weight=weight,
        samples=2000,
    )
    lateness = np.maximum(0.0, found.end * 1e6 - due) @ np.array(weight)
    assert lateness == pytest.approx(late, abs=1e-3)


def test_jobs_that_come_after_hours_are_refused():
    with pytest.raises(MappingError, match="release: a job would come after more than an hour"):
        map_dependent_jobs(jobs(2), 1e9, [(), ()], release=[0.0, 1e4])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (table_of(-ONES), "job 'j0' on core 'c0': its latency is -1.0"),
        (table_of(np.nan * ONES), "its latency is nan"),
        (table_of(np.inf * ONES), "job 'j0': no core can run it"),
        (table_of(ONES, np.inf), "its bandwidth is inf"),
        (replace(table_of(ONES), bandwidth=ONES[:, :3]), "shape"),
        (table_of(ONES, energy=-ONES), "its energy is -1.0"),
        (table_of(ONES[:, :0]), "no cores"),
        (table_of(ONES[:0]), "no jobs"),
    ],
)
def test_a_bad_table_is_refused_by_name(table, words):
    with pytest.raises(MappingError, match=words):
        map_jobs(table, 1e9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bandwidth": 0.0}, "bandwidth 0.0"),
        ({"bandwidth": float("nan")}, "bandwidth nan"),
        ({"bandwidth": 1e-320}, "far too small"),
        ({"objective": "beauty"}, "objective 'beauty'"),
        ({"strategy": "magic"}, "strategy 'magic'"),
        ({"allocator": "greedy"}, "allocator 'greedy'"),
        ({"group_size": 0}, "group size 0"),
        ({"samples": 0}, "samples 0"),
        ({"time_limit": float("nan")}, "time limit"),
        ({"seed": -1}, "seed"),
        ({"threads": 0}, "threads 0"),
        ({"effort": "great", "samples": 5}, "effort 'great'"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(MappingError, match=words):
        map_jobs(jobs(), **({"bandwidth": 1e9} | options))


@pytest.mark.filterwarnings("error")
def test_jobs_that_take_no_time_are_mapped_without_a_warning():
    table = table_of([[0, 1], [0, 0], [1, 0]], [[0, 1], [0, 0], [0, 1]])
    found = map_jobs(table, 1e9, samples=50)
    assert (found.makespan, found.status) == (0.0, "optimal")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("latency", "allocator"), [(0.0, "demand"), (1e299, "demand"), (1e299, "even")]
)
def test_figures_beyond_all_measure_are_refused(latency, allocator):
    table = table_of(np.full((2, 2), latency), 1e300)
    with pytest.raises(MappingError, match="far too"):
        map_jobs(table, 1.0, allocator=allocator)


def test_a_job_of_no_time_that_asks_for_too_much_of_the_bandwidth_is_refused():
    table = table_of([[1e-300], [0.0]], [[1.0], [1e200]])
    with pytest.raises(MappingError, match="18 minutes"):
        map_dependent_jobs(table, 1.0, [(), ()], samples=5)


def test_energy_needs_energies():
    with pytest.raises(MappingError, match="needs energies"):
        map_jobs(replace(jobs(), energy=None), 1e9, objective="edp")


def test_a_job_stays_off_cores_that_cannot_run_it_where_the_only_core_with_room_is_ruled_out():
    table = table_of([[np.inf, 2, 3], [np.inf, 2, np.inf]], [[0, 0, 1], [0, 2, 0]])
    mapping = map_jobs(table, 2.0)
    assert np.isfinite(table.latency[[0, 1], mapping.core]).all()
    assert mapping.makespan == 4.0


@pytest.mark.slow
def test_reinforcement_learning_learns_where_the_best_objective_is_nothing():
    pytest.importorskip(NEEDS["a2c"])
    energy = np.array([[2.0, 0.0]])
    table = table_of(energy + 1, energy=energy)
    assert map_jobs(table, 1.0, objective="energy", strategy="a2c", effort="quick").value == 0
