"""Groups that share a bandwidth: the native evaluation against exact fractions, and what must hold
for every mapping."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz, seeds
from tests.support.job_tables import table_of
from tests.support.naive_events import simulated

import loadmaster as lm
from loadmaster import _native
from loadmaster.mapping.bounds.configurations import configuration_bound
from loadmaster.mapping.bounds.group_bounds import group_bound, tightened
from loadmaster.mapping.bounds.job_kinds import JobKinds
from loadmaster.mapping.group import Group, genome_of, queues_of
from loadmaster.mapping.strategies.paced import paced
from loadmaster.mapping.timeline import exact_makespan, timeline

LATENCIES = st.sampled_from([0.0, 1e-12, 0.5, 1.0, 1.0, 1.5, 3.0, 1e9])
POSITIVE = st.sampled_from([1e-9, 0.25, 0.5, 0.5, 1.0, 1.5, 40.0, 1e8])
ANY_DEMAND = st.one_of(st.just(0.0), POSITIVE)


@st.composite
def groups(draw, demands=ANY_DEMAND, latencies=LATENCIES, jobs=7, cores=4):
    shape = draw(st.integers(1, jobs)), draw(st.integers(1, cores))
    cells = shape[0] * shape[1]
    latency = np.array(draw(st.lists(latencies, min_size=cells, max_size=cells))).reshape(shape)
    demand = np.array(draw(st.lists(demands, min_size=cells, max_size=cells))).reshape(shape)
    return Group(latency, demand)


@st.composite
def mapped_groups(draw, **options):
    group = draw(groups(**options))
    queues = [[] for _ in range(group.cores)]
    for job in draw(st.permutations(range(group.jobs))):
        queues[draw(st.integers(0, group.cores - 1))].append(job)
    return group, queues


def exact_of(group, queues):
    """Seconds until the last job ends, by M3E's bandwidth allocator."""
    core = {job: core for core, queue in enumerate(queues) for job in queue}
    places = [(job, core[job]) for job in range(group.jobs)]
    _, end = simulated(
        [float(group.latency[place]) for place in places],
        [[float(group.demand[place])] for place in places],
        [core for _, core in places],
        [job for queue in queues for job in queue],
        whole=False,
    )
    return max(end.values())


@given(mapped_groups())
@fuzz(300)
def test_the_native_evaluation_is_the_exact_one(case):
    group, queues = case
    row = np.array([[job for queue in queues for job in [*queue, group.jobs]]], dtype=np.int32)
    exact = exact_of(group, queues)
    assert exact_makespan(group, row) == exact
    # The kernels keep absolute times: what rounding makes of them, times how much everything slows
    # down.
    slip = 1e-14 * group.latency.sum() * max(1.0, group.demand.sum())
    assert group.makespans(row)[0] == pytest.approx(float(exact), rel=1e-12, abs=slip)
    start, end = timeline(group, row)
    assert end.max() == pytest.approx(float(exact), rel=1e-12, abs=slip)
    for core, queue in enumerate(queues):
        assert all(end[a] <= start[b] for a, b in itertools.pairwise(queue))
        assert all(
            end[job] - start[job] >= group.latency[job, core] * (1 - 1e-9) - 1e-9 * end.max() - slip
            for job in queue
        )


def every_mapping(group):
    splits = itertools.product(
        itertools.permutations(range(group.jobs)),
        itertools.product(range(group.cores), repeat=group.jobs),
    )
    rows = [queues_of(np.array(cores), np.array(order), group.cores) for order, cores in splits]
    return np.unique(np.concatenate(rows), axis=0)


@given(
    groups(jobs=4, cores=3, demands=POSITIVE, latencies=st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0]))
)
@fuzz(60)
def test_no_mapping_beats_the_bound_over_configurations(group):
    queues = every_mapping(group)
    makespans = group.makespans(queues)
    best = float(makespans.min())
    for known in (int(makespans.argmax()), int(makespans.argmin())):
        found = configuration_bound(group, queues[known : known + 1], float(makespans[known]))
        if found is not None:
            assert found.makespan <= best * (1 + 1e-9)
            assert group.allowed[np.arange(group.jobs), found.core].all()


@given(groups(jobs=4, cores=3, demands=ANY_DEMAND))
@fuzz(120)
@pytest.mark.slow
def test_no_mapping_beats_the_bound(group):
    queues = every_mapping(group)
    spans = [exact_makespan(group, queue[None]) for queue in queues]
    best = min(spans)
    bound = group_bound(group)
    assert bound.makespan <= best
    better = tightened(group, bound, queues[[spans.index(best)]])
    assert bound.makespan <= better.makespan <= float(best)


@given(groups(), seeds)
@fuzz(60)
def test_genomes_decode_to_one_queue_per_core_sorted_by_priority(group, seed):
    generator = np.random.default_rng(seed)
    core = generator.integers(0, group.cores, (3, group.jobs), dtype=np.int32)
    priority = generator.choice(
        np.array([0, 1, 5, 2**31, 2**32 - 1], dtype=np.uint32), (3, group.jobs)
    )
    queues = group.decode(core, priority)
    for i in range(3):
        order = np.lexsort((np.arange(group.jobs), priority[i]))
        row = queues[i : i + 1]
        assert (row == queues_of(core[i], order, group.cores)).all()
        genes = genome_of(row, group.cores)
        assert (group.decode(*(gene[None, :] for gene in genes)) == row).all()
    assert (group.native.scores(core, priority) == group.makespans(queues)).all()


def test_crowded_priorities_sort_too():
    generator = np.random.default_rng(0)
    group = Group(np.ones((1000, 3)), np.ones((1000, 3)))
    core = generator.integers(0, 3, (1, 1000), dtype=np.int32)
    priority = generator.integers(0, 4000, (1, 1000), dtype=np.uint32)
    order = np.lexsort((np.arange(1000), priority[0]))
    assert (group.decode(core, priority) == queues_of(core[0], order, 3)).all()


@pytest.mark.parametrize("threads", [2, 3, 40])
def test_searches_find_the_same_on_any_number_of_threads(threads):
    generator = np.random.default_rng(threads)
    group = Group(generator.lognormal(0, 2, (30, 5)), generator.lognormal(-1, 1, (30, 5)))
    core = generator.integers(0, 5, (23, 30), dtype=np.int32)
    priority = generator.integers(0, 2**32, (23, 30), dtype=np.uint32)
    score = group.native.scores(core, priority)
    one, more = (
        group.native.evolve(
            core,
            priority,
            score,
            mutation=0.05,
            crossover_gen=0.9,
            crossover_rg=0.1,
            crossover_accel=0.1,
            elites=4,
            parents=5,
            first_generation=7,
            generations=12,
            seed=3,
            threads=count,
        )
        for count in (1, threads)
    )
    for name in ("core", "priority", "score", "history"):
        assert (getattr(one, name) == getattr(more, name)).all()
    assert (one.score == group.native.scores(one.core, one.priority)).all()
    assert one.history[-1] == one.score.min() < score.min()
    queues, score = group.decode(core[:7], priority[:7]), score[:7]
    one, more = (
        group.native.anneal(
            queues,
            queues,
            score,
            score,
            temperature=np.geomspace(0.1, 1e-4, 7),
            samples=200,
            target=0.0,
            seed=3,
            stream=5,
            threads=count,
        )
        for count in (1, threads)
    )
    for name in ("queues", "best", "score", "best_score"):
        assert (getattr(one, name) == getattr(more, name)).all()
    assert one.tried == more.tried == 1_400


def test_a_core_that_cannot_run_a_job_hands_it_on():
    latency = np.array([[1.0, np.inf, 2.0], [np.inf, np.inf, 1.0]])
    group = Group(latency, np.where(np.isfinite(latency), 1.0, 0.0))
    queues = group.decode(np.array([[1, 0]], dtype=np.int32), np.zeros((1, 2), dtype=np.uint32))
    assert queues.tolist() == [[2, 2, 0, 1, 2]]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0, 1, 2], "column"),
        ([0, 0, 2, 2], "twice"),
        ([0, 1, 3, 2], "no job"),
        ([2, 2, 0, 1], "end mark"),
        ([0, 2, 1, 2, 2], "column"),
        ([2, 2, 2, 2], "end"),
    ],
)
def test_the_kernels_refuse_malformed_queues(row, words):
    with pytest.raises(ValueError, match=words):
        Group(np.ones((2, 2)), np.ones((2, 2))).makespans(np.array([row], dtype=np.int32))


def test_branching_closes_the_gap_that_whole_jobs_open():
    # Three equal jobs on two cores: the linear program says 1.5, counting says 2.
    group = Group(np.ones((3, 2)), np.full((3, 2), 0.1))
    assert group_bound(group).makespan == pytest.approx(2.0)
    # One long job that hinders all others: only a bound that knows its core sees it.
    latency = np.array([[4.0, 4.0], [3.0, 3.0], [2.0, 2.0], [2.0, 2.0], [2.0, 2.0]])
    group = Group(latency, np.full((5, 2), 0.1))
    root = group_bound(group)
    queues = queues_of(np.array([0, 1, 1, 0, 1]), np.arange(5), 2)
    assert group.makespans(queues)[0] == 7.0
    assert tightened(group, root, queues).makespan == pytest.approx(7.0)
    assert root.makespan < 6.6


# Orders that keep the demand for bandwidth level.


def test_a_large_group_is_mapped_no_better_than_its_bound():
    random = np.random.default_rng(0)
    table = table_of(random.lognormal(-9, 1, (1000, 16)), random.lognormal(20, 1, (1000, 16)))
    found = lm.map_jobs(table, float(np.median(table.bandwidth)) * 4)
    assert 0 < found.lower_bound <= found.makespan


def test_demand_is_level_where_orders_decide():
    """Jobs that want all of the bandwidth or none: side by side in pairs of unlike jobs nothing
    waits and nothing is idle."""
    demand = np.repeat(np.tile([1.0, 0.0], 10)[:, None], 2, axis=1)
    group = Group(np.ones((20, 2)), demand)
    core = np.repeat([0, 1], 10)
    assert group.makespans(paced(group, core))[0] == 10
    assert group.makespans(queues_of(core, np.argsort(-demand[:, 0], kind="stable"), 2))[0] == 15


# What cores can run at one instant, and which jobs they can run at all.


def every_configuration(count, cores):
    """Numbers of jobs of each kind (rows) on each kind of core (columns) that can run at once."""
    cells = [range(min(int(jobs), int(some)) + 1) for jobs in count for some in cores]
    tables = (
        np.array(numbers).reshape(len(count), len(cores)) for numbers in itertools.product(*cells)
    )
    return [
        table
        for table in tables
        if (table.sum(axis=1) <= count).all() and (table.sum(axis=0) <= cores).all()
    ]


@given(seeds)
@fuzz(150)
def test_the_best_configurations_are_those_of_all(seed):
    random = np.random.default_rng(seed)
    count = random.integers(0, 4, random.integers(1, 4)).astype(np.int32)
    cores = random.integers(1, 4, random.integers(1, 3)).astype(np.int32)
    shape = len(count), len(cores)
    demand = random.choice([0.0, 0.1, 0.25, 0.3, 0.5, 0.7, 1.0, 1.5, 8.0], shape)
    worth = np.where(random.random(shape) < 0.3, demand, random.integers(0, 9, shape) / 4)
    configurations = every_configuration(count, cores)
    asked = np.array([(table * demand).sum() for table in configurations])
    gain = np.array([(table * worth).sum() for table in configurations])
    # Jobs that are worth nothing are left out: they only ask for more.
    worthy = np.array([not table[worth == 0].any() for table in configurations])
    within, over = gain[asked <= 1 + 1e-9].max(), asked >= 1 - 1e-9
    beyond, least = ((gain - asked)[some].max(initial=-np.inf) for some in (over, over & worthy))
    pricing = _native.ConfigurationPricing(demand, count, cores, grid=256)
    for nodes in (0, 1, 2, 3, 5, 8, 10_000):
        best = pricing.best(worth, nodes)
        assert best.within >= within - 1e-9
        assert best.beyond >= least - 1e-9
    assert best.within <= within * (1 + 1e-5) + 1e-9
    assert best.beyond == beyond or best.beyond <= beyond + 1e-5 * (1 + abs(beyond))
    for jobs in (best.within_jobs, best.beyond_jobs):
        assert (np.bincount(jobs[jobs >= 0], minlength=len(count)) <= count).all()
    found = best.within_jobs >= 0
    chosen = best.within_jobs[found], np.repeat(np.arange(len(cores)), cores)[found]
    assert worth[chosen].sum() == pytest.approx(within, rel=1e-5, abs=1e-9)
    assert demand[chosen].sum() <= 1 + 1e-9


def test_what_runs_at_once_in_a_large_group_takes_memory_for_jobs_times_cores():
    group = Group(np.tile([[1.0, 2.0], [3.0, 3.0]], (3_000, 1)), np.full((6_000, 2), 0.25))
    kinds = JobKinds(group, 10_000.0)
    queues = queues_of(np.tile([0, 1], 3_000), np.arange(6_000), 2)
    tracemalloc.start()
    sets = kinds.running(queues)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sorted(jobs.tolist() for jobs, _ in sets) == [[0, 1], [1]]
    assert peak < 6_000 * 6_000


def test_a_job_does_not_run_beside_itself():
    group = Group(np.ones((1, 2)), np.full((1, 2), 0.25))
    assert configuration_bound(
        group, queues_of(np.array([0]), np.arange(1), 2), 1.0
    ).makespan == pytest.approx(1.0, rel=1e-5)
    # One long, frugal job and hungry ones: with three of it at a time, the bus would never be idle.
    latency = np.repeat(np.array([4.0, 1.0, 1.0])[:, None], 3, axis=1)
    demand = np.repeat(np.array([0.1, 0.7, 0.7])[:, None], 3, axis=1)
    queues = queues_of(np.array([0, 1, 1]), np.arange(3), 3)
    bound = configuration_bound(Group(latency, demand), queues, 4.0)
    assert bound.makespan == pytest.approx(4.0, rel=1e-3)


def test_no_core_runs_a_job_that_takes_longer_there_than_all_jobs_of_a_known_mapping():
    """Four cores share the bus; on forty others, jobs want next to none of it but take too long.
    Shares of jobs would go there."""
    fast, slow = (1.0,) * 4, (41.0,) * 40
    group = Group(np.tile(fast + slow, (40, 1)), np.tile((1.0,) * 4 + (1e-3,) * 40, (40, 1)))
    queues = queues_of(np.arange(40) % 4, np.arange(40), 44)
    root = group_bound(group)
    assert group.makespans(queues)[0] == 40
    assert root.makespan < 22
    assert tightened(group, root, queues).makespan == pytest.approx(40)
    assert not group.within(40).allowed[:, 4:].any()
    assert group.within(41).allowed.all()
