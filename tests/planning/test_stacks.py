"""Stacks of bands: the choice against exhaustive search, on the model and on what plans really
move."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.support.cut_networks import convolutions
from tests.support.networks import npu

from loadmaster.core.arrays import Ints
from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.energy_model import EnergyModel
from loadmaster.cost.job_table import JobTable
from loadmaster.planning.cutting.band_lives import Kept
from loadmaster.planning.cutting.band_work import BandWork
from loadmaster.planning.cutting.banding import Network, Stack, band_ends
from loadmaster.planning.cutting.seen_network import BANDS, CHANNELS, SeenNetwork
from loadmaster.planning.cutting.stacking import stacked
from loadmaster.planning.cutting.stacks import DEPTH_FIRST, StackCosts, StackModel, Way, best_stacks
from loadmaster.planning.cutting.stripes import STRIPES, has_wide_bands, stripes_of
from loadmaster.planning.goal import goal_of
from loadmaster.planning.joint.policy import policy_values
from loadmaster.planning.joint.problem import Evaluation, JointOptions, JointProblem
from loadmaster.targets.hardware import Style, Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.grid import divisible
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cut
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import choose_split


def machine(scratchpad: int) -> Target:
    target = npu(2, scratchpad)
    return replace(target, main=replace(target.main, read_bandwidth=1e8, write_bandwidth=1e8))


def network_of(graph: Graph, target: Target) -> tuple[Network, list[Cut]]:
    single = without_updates(graph)
    fused = fuse(single)
    assert target.fast is not None
    plain: list[Cut] = [choose_split(group, target.fast.capacity) for group in fused]
    return Network(single, fused, [divisible(single, group) for group in fused]), plain


def model_of(
    network: Network,
    target: Target,
    plain: list[Cut],
    price: float = 0.0,
    way: Way = DEPTH_FIRST,
) -> StackModel:
    assert target.fast is not None
    return StackModel(
        SeenNetwork.both(network, target),
        target.fast.capacity,
        target,
        plain,
        price,
        way,
    )


def random_network(generator: np.random.Generator, most: int) -> Graph:
    strides = tuple(generator.choice([1, 1, 2], generator.integers(2, most + 1)).tolist())
    rows, channels = int(generator.choice([12, 20, 33])), int(generator.choice([4, 8, 16]))
    return convolutions(
        rows=rows, channels=channels, strides=strides, skip=bool(generator.integers(2))
    )


def least_by_trying_all(model: StackModel) -> float:
    """Fewest bytes of the model: every way to end stacks, every number of bands, everything that
    may be kept between them."""
    count = len(model.network.fused)
    costs: dict[tuple[int, int, Kept, Kept], float] = {}

    def cost(first: int, last: int, before: Kept, after: Kept) -> float:
        if (first, last, before, after) not in costs:
            stacks = [stack for stack in model.ending_with(last) if stack.first == first]
            every = [
                stack.cost_in(*way, before, after, model.capacity)
                for stack in stacks
                for way in stack.ways
            ]
            costs[first, last, before, after] = min(every, default=np.inf)
        return costs[first, last, before, after]

    @functools.cache
    def rest(first: int, before: Kept) -> float:
        if first == count:
            return 0.0
        return min(
            (
                cost(first, last, before, after) + rest(last, after)
                for last in range(first + 1, count + 1)
                for after in model.kept_after(first, last, before, model.capacity)
                if cost(first, last, before, after) < np.inf
            ),
            default=np.inf,
        )

    return rest(0, frozenset())


@pytest.mark.parametrize("seed", range(6))
def test_no_stacks_have_fewer_bytes_than_those_that_are_chosen(seed: int) -> None:
    """By the model, over all stacks, band counts and results kept between stacks, on random
    networks of up to twelve operators."""
    generator = np.random.default_rng(seed)
    for most in (4, 6, 11):
        target = machine(int(generator.choice([1_500, 4_000, 12_000])))
        network, plain = network_of(random_network(generator, most), target)
        price, skewed = float(generator.choice([0.0, 1e8])), bool(generator.integers(2))
        stripes = (2, 4) if most == 4 else ()
        model = model_of(network, target, plain, price, way=Way(skewed, stripes=stripes))
        choice = best_stacks(model, [model.capacity])[0]
        assert choice.cost == pytest.approx(least_by_trying_all(model), rel=1e-6)


def moved(
    graph: Graph, target: Target, network: Network, stacks: tuple[Stack, ...], plain: list[Cut]
) -> int:
    """Bytes over the main link when stacks are run in their order and what stays is chosen along
    it."""
    workload = lower([graph], target, cuts=[stacked(network, stacks, plain)])
    table = job_table(workload, target)
    goal = goal_of(workload, "throughput", None, {}, {})
    problem = JointProblem(workload, table, target, goal, EnergyModel(table, energy_rates(target)))
    order = np.arange(len(workload.jobs))
    found = [
        problem.evaluate(order, JointOptions(occupancy_exponent=exponent))
        for exponent in policy_values(problem)["occupancy_exponent"]
    ]
    return min(_bytes_of(workload, table, problem, evaluation) for evaluation in found)


def _bytes_of(
    workload: Workload, table: JobTable, problem: JointProblem, evaluation: Evaluation
) -> int:
    run, placement = evaluation.run, problem.decisions(evaluation)[1]
    crossing: Ints = table.moved[np.arange(len(table.moved)), run.core[table.operand_job]]
    here = np.where(
        table.operand_write, placement.write_main[table.operand_tensor], run.row_stay < 0
    )
    return int(crossing[here].sum()) + sum(
        workload.tensors[copy.tensor].bytes for copy in placement.copies
    )


def every_choice(network: Network) -> Iterator[tuple[Stack, ...]]:
    """All stacks, each in two, four or as many bands as rows; one operator may be in one band."""
    count = len(network.fused)
    for ends in itertools.product([False, True], repeat=count - 1):
        bounds = [0, *(number + 1 for number, end in enumerate(ends) if end), count]
        spans = list(itertools.pairwise(bounds))
        options = [
            [
                bands
                for bands in dict.fromkeys((1, 2, 4, network.extent(last - 1)))
                if bands > 1 or last - first == 1
            ]
            for first, last in spans
        ]
        for bands in itertools.product(*options):
            yield tuple(
                Stack(first, last, number)
                for (first, last), number in zip(spans, bands, strict=True)
            )


@pytest.mark.parametrize("seed", range(3))
def test_chosen_stacks_move_hardly_more_than_the_best_of_all_stacks(seed: int) -> None:
    generator = np.random.default_rng(100 + seed)
    target = machine(int(generator.choice([2_000, 6_000])))
    graph = random_network(generator, 3)
    network, plain = network_of(graph, target)
    least = min(moved(graph, target, network, stacks, plain) for stacks in every_choice(network))
    assert target.fast is not None
    models = [model_of(network, target, plain, way=Way(skewed)) for skewed in (False, True)]
    rooms = [int(target.fast.capacity / part) for part in (1, 1.25, 2)]
    chosen = [choice.stacks for model in models for choice in best_stacks(model, rooms)]
    assert min(moved(graph, target, network, stacks, plain) for stacks in chosen) <= 1.05 * least


def best_of_single_changes(
    graph: Graph, target: Target, network: Network, plain: list[Cut]
) -> tuple[Stack, ...]:
    """Stacks that save most together, of all operators, where each is told apart by the bytes that
    it really saves by itself."""
    count = len(network.fused)
    whole = tuple(Stack(number, number + 1, 1) for number in range(count))
    least: list[tuple[int, tuple[Stack, ...]]] = [(moved(graph, target, network, whole, plain), ())]
    base = least[0][0]
    for last in range(1, count + 1):
        found = [(least[last - 1][0], (*least[last - 1][1], whole[last - 1]))]
        extent = network.extent(last - 1)
        for first, bands in itertools.product(range(last), (2, 4, extent)):
            if 1 < bands <= extent:
                stack = Stack(first, last, bands)
                saved = base - moved(
                    graph, target, network, (*whole[:first], stack, *whole[last:]), plain
                )
                found.append((least[first][0] - saved, (*least[first][1], stack)))
        least.append(min(found, key=lambda one: one[0]))
    return least[-1][1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [501, 502])
def test_chosen_stacks_of_up_to_twelve_operators_move_hardly_more_than_all_others(
    seed: int,
) -> None:
    """Every stack is really lowered and run; what several stacks save is taken for the sum."""
    generator = np.random.default_rng(seed)
    strides = tuple(generator.choice([1, 1, 2], int(generator.integers(7, 11))).tolist())
    graph = convolutions(rows=33, channels=4, strides=strides, skip=bool(generator.integers(2)))
    target = machine(2_000)
    network, plain = network_of(graph, target)
    assert 7 <= len(network.fused) <= 12
    least = moved(
        graph, target, network, best_of_single_changes(graph, target, network, plain), plain
    )
    assert least < moved(
        graph, target, network, tuple(Stack(n, n + 1, 1) for n in range(len(network.fused))), plain
    )
    models = [model_of(network, target, plain, way=Way(skewed)) for skewed in (False, True)]
    chosen = [
        choice.stacks for model in models for choice in best_stacks(model, [2_000, 1_600, 1_000])
    ]
    assert min(moved(graph, target, network, stacks, plain) for stacks in chosen) <= 1.05 * least


def test_operators_at_the_beginning_of_a_stack_get_ahead_in_small_steps() -> None:
    """The first band of six convolutions needs six more rows of the first: they are made one after
    another, not at once."""
    network, _ = network_of(convolutions(rows=64, strides=(1,) * 6, skip=False), machine(4_000))
    ends = band_ends(network, Stack(0, 6, 64))
    for own in ends.values():
        assert max(np.diff(own, prepend=0)) <= 2
        assert own[-1] == 64


def test_what_side_by_side_operators_hold_at_once_is_what_their_order_holds() -> None:
    """The model's room for a stack is no less than the bytes that lie between its operators when
    pieces run in the order of jobs."""
    ways = (Way(), Way(skewed=True))
    for columns, way, bands in itertools.product((False, True), ways, (3, 8, 32)):
        target = machine(1_000_000)
        graph = convolutions(rows=32, channels=8, strides=(1,) * 4, skip=False)
        network, plain = network_of(graph, target)
        model = model_of(network, target, plain, way=way)
        last = len(network.fused)
        stack = next(
            own for own in model.ending_with(last) if own.first == 0 and own.columns == columns
        )
        held = most_between(
            lower(
                [graph],
                target,
                cuts=[
                    stacked(
                        network,
                        [Stack(0, last, bands, columns, way.skewed)],
                        plain,
                    )
                ],
            )
        )
        assert held <= inside(stack, bands) <= 1.5 * held


def cost_of(model: StackModel, last: int, bands: int) -> float:
    """What a stack of all operators up to one costs in bands of rows, with room for everything."""
    stack = next(own for own in model.ending_with(last) if own.first == 0)
    return stack.cost_in(bands, 1, frozenset(), frozenset(), model.capacity)


@pytest.mark.parametrize("columns", [False, True])
def test_what_stripes_hold_at_once_is_what_their_order_holds(columns: bool) -> None:
    """The model's room for a stack in stripes, its halos kept, is about what lies between its
    operators in the order of jobs."""
    target, stripes, bands = machine(1_000_000), 4, 32
    graph = convolutions(rows=64, channels=8, strides=(1,) * 4, skip=False)
    network, plain = network_of(graph, target)
    last = len(network.fused)
    model = model_of(network, target, plain, way=Way(stripes=(stripes,)))
    stack = next(
        own
        for own in model.ending_with(last)
        if (own.first, own.columns, own.stripes) == (0, columns, stripes)
    )
    held = most_between(
        lower(
            [graph],
            target,
            cuts=[stacked(network, [Stack(0, last, bands, columns, stripes=stripes)], plain)],
        )
    )
    halos = sum(
        max(own.halos) * network.bytes_of(network.fused[number].writes[0].tensor) / sum(own.widths)
        for number, own in stripes_of(network.along(not columns), 0, last, stripes).items()
    )
    assert halos > 0
    assert 0.9 * held <= inside(stack, bands) + halos <= 1.5 * held


def test_tiles_of_rows_and_columns_move_less_where_bands_are_too_wide() -> None:
    """Bands of one row of all three operators exceed the scratchpad; tiles do not, and only their
    halos leave it."""
    target = machine(4_000)
    graph = convolutions(rows=64, channels=8, strides=(1, 1, 1), skip=False)
    network, plain = network_of(graph, target)
    assert has_wide_bands([network, network.along(True)], 4_000)
    bands, tiles = (
        best_stacks(model_of(network, target, plain, way=Way(stripes=stripes)), [4_000])[0].stacks
        for stripes in ((), STRIPES)
    )
    assert max(stack.stripes for stack in tiles) > 1
    assert moved(graph, target, network, tiles, plain) < 0.7 * moved(
        graph, target, network, bands, plain
    )


def test_only_what_the_next_stripe_needs_is_a_halo() -> None:
    """Of three convolutions of three taps each keeps two columns, however wide stripes are; the
    last, and the last stripe, none."""
    network, _ = network_of(convolutions(rows=64, strides=(1,) * 3, skip=False), machine(4_000))
    stripes = stripes_of(network.along(True), 0, 3, 4)
    assert [stripes[number].halos for number in range(3)] == [
        [2, 2, 2, 0],
        [2, 2, 2, 0],
        [0, 0, 0, 0],
    ]
    assert [sum(own.widths) for own in stripes.values()] == [64] * 3
    assert stripes[0].pieces[0] == (16, 18)


def inside(stack: StackCosts, bands: int) -> float:
    """The least capacity into which a stack fits in so many bands, weights streamed and nothing
    kept."""
    low, high = 0, 1_000_000
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if stack.cost_in(bands, 1, frozenset(), frozenset(), middle) < np.inf
            else (middle + 1, high)
        )
    return low


def most_between(workload: Workload) -> int:
    """Most bytes of results that are made and still needed, over the order of jobs."""
    change = np.zeros(len(workload.jobs) + 1, dtype=np.int64)
    last = {
        operand.tensor: number for number, job in enumerate(workload.jobs) for operand in job.reads
    }
    for tensor in workload.tensors:
        if tensor.producer >= 0 and not tensor.is_output:
            change[tensor.producer] += tensor.bytes
            change[last[tensor.name] + 1] -= tensor.bytes
    return int(np.cumsum(change).max())


def test_few_rows_leave_a_row_stationary_array_idle_and_few_columns_do_not() -> None:
    target = machine(100_000)
    rowwise = replace(
        target,
        cores=tuple(
            replace(core, style=Style.ROW_STATIONARY, rows=8, columns=8) for core in target.cores
        ),
    )
    network, _ = network_of(convolutions(rows=32, channels=8, strides=(1, 1), skip=False), rowwise)
    rows, columns = (BandWork(network.along(columns), rowwise, BANDS) for columns in (False, True))
    assert rows.beside(0, 32) > 2 * rows.beside(0, 1)
    assert columns.beside(0, 32) < 1.5 * columns.beside(0, 1)


def test_few_pieces_leave_cores_idle_where_nothing_runs_beside_them() -> None:
    target = npu(4, 100_000)
    network, _ = network_of(convolutions(rows=32, channels=8, strides=(1, 1), skip=False), target)
    work = BandWork(network, target, BANDS, CHANNELS)
    assert work.alone(0, 1) > 3 * work.beside(0, 1)
    assert work.alone(0, 2) > 1.3 * work.beside(0, 2)
    assert work.alone(0, 32) < 1.2 * work.beside(0, 32)


def test_an_operator_whose_weights_exceed_the_memory_is_cut_over_channels_and_bands() -> None:
    """Its input would come in for every part of the channels, or its weights for every band: parts
    and bands together move less."""
    target = machine(16_000)
    target = replace(target, cores=tuple(replace(core, buffer=2_000) for core in target.cores))
    graph = convolutions(rows=16, channels=64, strides=(1,), skip=False)
    network, plain = network_of(graph, target)
    stacks = best_stacks(model_of(network, target, plain), [16_000])[0].stacks
    assert stacks[0].channels > 1
    assert stacks[0].bands > 1
    rows = [(replace(stacks[0], channels=1, bands=bands),) for bands in (2, 4, 8, 16)]
    assert moved(graph, target, network, stacks, plain) < 0.7 * min(
        moved(graph, target, network, own, plain) for own in rows
    )
    cuts = stacked(network, stacks, plain)
    assert sorted(cuts.steps) == [(0, tile) for tile in range(cuts.cuts[0].tiles)]


def test_bands_are_tried_in_ascending_order_from_one() -> None:
    assert BANDS[0] == 1
    assert list(BANDS) == sorted(set(BANDS))
