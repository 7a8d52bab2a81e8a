"""The dataflow model as the mapping problem sees it: within what physics allows, and never worse
for more hardware."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.layers import loops, machine, nests, one_job, operand_bytes, styles, tilings_of
from tests.support.lowered import cuts_by
from tests.support.networks import RATES, npu
from tests.support.onnx_builder import int8_graph

import loadmaster as lm
from loadmaster.cost.analytical.energy import (
    area,
    array_energy,
    dram_energy,
    peak_power,
    sram_energy,
)
from loadmaster.cost.analytical.job_costs import job_costs, job_table
from loadmaster.cost.analytical.nests import efficiencies, nest_table
from loadmaster.targets.hardware import Style
from loadmaster.workloads.job import Operand
from loadmaster.workloads.lowering.instantiate import lower

networks_on_chip = st.fixed_dictionaries(
    {
        "flexible": st.booleans(),
        "local_buffer": st.sampled_from([0, 16, 512]),
        "noc_bandwidth": st.sampled_from([None, 1e8, 5e10]),
        "noc_latency": st.sampled_from([0.0, 1e-7]),
        "accumulator": st.sampled_from([1, 2, 4, 8]),
        "weight_loading": st.sampled_from([None, 1e9]),
    }
)


def read_share(nest):
    """Share of the input's positions, from the first to the last that any output needs, that are
    read."""
    share = 1.0
    for out, taps, stride in ((nest.y, nest.r, nest.stride[0]), (nest.x, nest.s, nest.stride[1])):
        share *= len({i * stride + tap for i in range(out) for tap in range(taps)}) / (
            (out - 1) * stride + taps
        )
    return share


def cost_of(work, target):
    """What a tiling is chosen for: the slower of core and link, and an eighth of all times, so that
    bytes count too."""
    core, (latency, moved) = target.cores[0], latency_and_bytes(work, target)
    link = moved / target.main.read_bandwidth
    network = core.noc_bandwidth or 16 * (core.rows * core.columns) ** 0.5 * core.clock
    return (
        max(latency, link)
        + (latency + 4 * link + float(job_costs(work, target).kinds[0].delivered[0]) / network) / 8
    )


def latency_and_bytes(work, target):
    table = lm.analyse(work, target)
    return float(table.latency[0, 0]), float(table.latency[0, 0] * table.bandwidth[0, 0])


@given(
    nests,
    styles,
    networks_on_chip,
    st.integers(0, 5000),
    st.sampled_from([8, 16, 32]),
)
@fuzz(150)
def test_never_below_compulsory_traffic_or_the_arrays_rate(nest, style, more, extra, bits):
    sizes = operand_bytes(nest)
    latency, moved = latency_and_bytes(
        one_job(nest, extra=extra, bits=bits), machine(style, **more)
    )
    assert latency >= nest.macs / (8 * 16 * RATES[bits]) * 1e-9 * (1 - 1e-9) + more["noc_latency"]
    assert moved >= (sum(sizes[1:]) + extra + sizes[0] * read_share(nest)) * (1 - 1e-12)
    if more["noc_bandwidth"] is not None:
        needed = sum(sizes[1:]) * bits / 8
        assert latency >= needed / more["noc_bandwidth"] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("local", "buffer", "fits"), [(4, 176, False), (4, 208, True), (32, 176, True)]
)
def test_filters_wait_for_positions_that_an_output_stationary_array_has_no_room_for(
    local, buffer, fits
):
    """Eight turns of 8 positions need the same 32 KiB of filters, and the next 16 channels' need as
    much room beside 128 KiB of input."""
    nest = loops("k=1024 c=2048 y=64")
    tilings = tilings_of(
        nest, machine(Style.OUTPUT_STATIONARY, buffer=buffer * 1024, local_buffer=local)
    )
    busy = nest.k // 16 * (nest.y // 8) * nest.c + 8 + 16 - 2
    assert (
        tilings.input_times[0] == tilings.weight_times[0] == 1 and tilings.cycles[0] == busy
    ) == fits


@given(
    nests,
    styles,
    networks_on_chip,
    *(st.sampled_from(each) for each in ([1, 2, 5], [1, 3], [1, 4], [1, 7])),
)
def test_larger_buffers_narrower_sums_a_faster_network_and_a_faster_link_never_cost_more(
    nest, style, more, buffer, local, bandwidth, link
):
    work = one_job(nest)
    faster = None if more["noc_bandwidth"] is None else more["noc_bandwidth"] * bandwidth
    bigger = more | {
        "local_buffer": more["local_buffer"] * local,
        "noc_bandwidth": faster,
        "accumulator": 1,
    }
    slow, fast = machine(style, buffer=4096, **more), machine(style, buffer=4096 * buffer, **bigger)
    fast = fast.with_memory(0, read_bandwidth=link * 1e9, write_bandwidth=link * 1e9)
    assert cost_of(work, fast) <= cost_of(work, slow) * (1 + 1e-9)


@given(
    nests,
    styles,
    networks_on_chip,
    st.sampled_from([1500, 4096, 10**5]),
    st.sampled_from([8, 16, 32]),
)
@fuzz(150)
def test_all_figures_of_a_nest_are_those_of_one_tiling_that_fits(nest, style, more, buffer, bits):
    target = machine(style, buffer=buffer, **more)
    tilings = tilings_of(nest, target, bits)
    table = nest_table(one_job(nest, bits=bits).jobs)
    if tilings.buffer[0] <= buffer:
        assert tilings.cycles[0] >= (
            nest.macs / 128 / RATES[bits] + (1 if more["flexible"] else 8 + 16 - 2)
        ) * (1 - 1e-12)
    assert (tilings.delivered >= (table.inputs + table.weights + table.outputs) * bits / 8).all()
    assert (tilings.weight_times >= 1).all()
    assert (tilings.input_times >= read_share(nest) * (1 - 1e-12)).all()


def test_tiles_smaller_than_the_array_pay_in_cycles():
    """With room for a block of few filters only, an array of 8 x 16 elements is not busy, and the
    job says so."""
    nest = loops("k=8 c=16 y=1 x=1 r=1 s=1")
    quick, little = (machine(buffer=size, local_buffer=0) for size in (4096, 100))
    assert tilings_of(nest, with_any_bandwidth(quick)).cycles.tolist() == [1 + 22]
    assert tilings_of(nest, little).buffer[0] <= 100
    assert tilings_of(nest, little).cycles[0] >= 2 + 22


def test_what_strides_step_over_is_read_in_bursts_only():
    """Every second row and column: a position of 256 channels is four bursts, one of 16 channels a
    quarter of a burst."""
    target = machine(Style.WEIGHT_STATIONARY, 32, 64, 2**20)
    many = loops("k=32 c=256 y=8 x=8", stride=(2, 2))
    few = replace(many, c=16)
    assert tilings_of(many, target).input_times.tolist() == [64 / 225]
    # What lies between two positions that are read is less than a burst: all of the row is read.
    assert tilings_of(few, target).input_times.tolist() == [2 * 64 / 225]
    no_bursts = target.with_memory(0, burst=1)
    assert tilings_of(few, no_bursts).input_times.tolist() == [64 / 225]
    # Windows that meet are read from the first to the last.
    assert tilings_of(replace(few, r=3, s=3), target).input_times.tolist() == [1]


def test_what_is_added_to_results_takes_no_room_of_their_tiles():
    """As a block of a language model adds to a projection: filters cross for two tiles of
    positions, with and without what is added."""
    nest, target = loops("k=64 c=4096 y=512"), machine(Style.WEIGHT_STATIONARY, 32, 64, 2**17)
    (_, alone), (_, added) = (
        latency_and_bytes(one_job(nest, extra=extra), target) for extra in (0, 512 * 64)
    )
    assert alone == pytest.approx(512 * 4096 + 2 * 64 * 4096 + 512 * 64)
    assert added == pytest.approx(alone + 512 * 64)


def test_the_first_tile_is_waited_for_and_the_last_one_leaves():
    """64 rows of 16 inputs for 8 results each: the tile in the buffer arrives before the array
    works, and its results leave after that."""
    nest, target = loops("k=8 c=16 y=64"), machine()
    tilings = tilings_of(nest, target)
    first, last, weights = tilings.lead[0] * target.main.read_bandwidth, 8.0, 128
    rows = (first - last - weights) / 16
    assert rows == pytest.approx(round(rows))
    assert 1 <= round(rows) < 64
    assert tilings.cycles.tolist() == [64 + 22]
    assert tilings.input_tile[0] >= round(rows) * 16
    latency, moved = latency_and_bytes(one_job(nest), target)
    assert latency == pytest.approx((64 + 22) * 1e-9 + tilings.lead[0])
    assert moved == pytest.approx(64 * 16 + weights + 64 * 8)


def test_a_slow_network_sets_the_pace_and_its_latency_comes_once():
    nest = loops("k=9 c=17 y=5 x=7 r=3 s=3")
    work = one_job(nest)
    delivered = 9 * 17 * 9 + 35 * 17 * 9 + 35 * 9
    slow = machine(Style.OUTPUT_STATIONARY, noc_bandwidth=1e6, noc_latency=3e-6)
    assert latency_and_bytes(work, slow)[0] == pytest.approx(
        delivered * 1e-6 + 3e-6 + tilings_of(nest, slow).lead[0]
    )


@pytest.mark.parametrize(
    ("style", "cycles"),
    [
        (Style.WEIGHT_STATIONARY, 1530 / 3),
        (Style.ROW_STATIONARY, 1530 / 3),
        (Style.OUTPUT_STATIONARY, 0),
    ],
)
def test_an_array_waits_for_weights_that_are_loaded_before_it_works(style, cycles):
    """10 x 17 x 9 weights at 3 bytes a cycle; on an output-stationary array they stream with the
    work."""
    nest = loops("k=10 c=17 y=5 x=7 r=3 s=3")
    meanwhile, before = (
        tilings_of(nest, machine(style, weight_loading=loading)) for loading in (None, 3e9)
    )
    assert before.cycles - meanwhile.cycles == pytest.approx(cycles)


def test_strides_are_seen_in_the_input_that_is_delivered():
    apart = loops("k=1 c=1 y=4 x=4 r=1 s=1", stride=(3, 3))
    overlapping = loops("k=1 c=1 y=4 x=4 r=3 s=3", stride=(2, 2))
    for nest, inputs in ((apart, 16), (overlapping, 81)):
        assert nest_table(one_job(nest).jobs).inputs.tolist() == [inputs]


def bare_job(elements, size):
    """One that has no loops, of two bytes an element."""
    work = one_job(loops("k=1 c=1"), (size, 0, size))
    operands = {"reads": (Operand("i", size),), "writes": (Operand("o", size),)}
    job = replace(work.jobs[0], nests=(), elements=elements, bits=16, **operands)
    return replace(work, jobs=(job,))


def test_work_without_arithmetic_passes_the_lanes_and_nothing_takes_less_than_a_cycle():
    def found(*work, **more):
        return latency_and_bytes(bare_job(*work), machine(**more))

    # 16 lanes of two bytes.
    assert found(0, 3200) == pytest.approx((200e-9, 6400))
    assert found(1600, 3200)[0] == pytest.approx(100e-9)
    assert found(1, 2) == pytest.approx((1e-9, 4))
    assert found(0, 3200, noc_latency=1e-6)[0] == pytest.approx(1.2e-6)
    # Neither a network that is faster than the lanes nor a share of their rate is passed over.
    more = {"noc_bandwidth": 1e12, "efficiency": {"Conv": 0.5}}
    assert found(0, 3200, **more)[0] == pytest.approx(400e-9)


def test_published_energies_are_met_and_grow_with_the_memory():
    # Horowitz: 10, 20 and 100 pJ for 8 bytes; half or twice as much for a quarter or four times
    # the size.
    sizes = 0, 2**11, 2**13, 2**15, 2**20, 2**22
    assert [sram_energy(size) * 8e12 for size in sizes] == pytest.approx([0, 5, 10, 20, 100, 200])
    sizes = [1, 100, 512, 5000, 2**14, 10**5, 10**6, 10**8]
    assert sorted(map(sram_energy, sizes)) == list(map(sram_energy, sizes))
    assert dram_energy() * 8e12 == pytest.approx(1300)


LAYER = loops("k=8 c=8 y=8 x=8")
SIZES = operand_bytes(LAYER)


def test_energy_of_a_layer_is_the_sum_of_what_it_does():
    target = machine(Style.OUTPUT_STATIONARY)
    core = target.cores[0]
    table = lm.analyse(one_job(LAYER), target)
    # All fits into the buffer and crosses the port once; weights cross the network with every tile
    # of positions.
    network = sram_energy(108 * 1024) / 3
    tilings = tilings_of(LAYER, target)
    by_hand = LAYER.macs * array_energy(core, 8) + sum(SIZES) * (
        sram_energy(core.buffer) + dram_energy()
    )
    by_hand += tilings.delivered[0] * (sram_energy(core.buffer) + network)
    assert table.energy[0, 0] == pytest.approx(by_hand)


def test_a_target_may_state_every_energy():
    stated = {
        "mac_int8": 1e-12,
        "scalar_int8": 2e-12,
        "local": 3e-12,
        "network": 5e-12,
        "buffer": 7e-12,
    }
    target = machine(Style.OUTPUT_STATIONARY, energy=stated)
    target = target.with_memory(0, energy=11e-12)
    work = one_job(LAYER)
    job = replace(work.jobs[0], elements=100)
    table = lm.analyse(replace(work, jobs=(job,)), target)
    delivered = tilings_of(LAYER, target).delivered[0]
    by_hand = (
        LAYER.macs * (1 + (2 + 2 * 4) * 3) + 100 * 2 + delivered * (5 + 7) + sum(SIZES) * (7 + 11)
    )
    assert table.energy[0, 0] == pytest.approx(by_hand * 1e-12)


def test_power_and_area_grow_with_the_array_and_the_width_of_its_numbers():
    small, large = (machine(Style.WEIGHT_STATIONARY, rows).cores[0] for rows in (8, 16))
    assert peak_power(large) == pytest.approx(2 * peak_power(small))
    assert peak_power(small, 32) > peak_power(small, 16) / 2
    assert area(large) > area(small)
    only_int8 = replace(small, macs_per_cycle={8: 1.0}, buffer=0, local_buffer=0)
    assert area(only_int8) == pytest.approx(8 * 16 * (282 + 137) / 1e6)


# Exact where that can be said by hand, and never worse for more hardware.


FILL = 8 + 16 - 2
"""Cycles in which the array of 8 x 16 elements fills and drains."""


def with_any_bandwidth(target):
    """The target with a link that nothing waits for: a job takes the cycles of its array."""
    return target.with_memory(0, read_bandwidth=1e18, write_bandwidth=1e18)


def costs(workload, target):
    table = job_table(workload, target)
    return float(table.compute[0, 0]) * 1e9, table.moved[:, 0].tolist(), table.tile[:, 0].tolist()


@given(nests, styles)
@fuzz(60)
def test_a_larger_array_is_never_busy_for_longer(nest, style):
    """It takes longer to fill and drain only, in every repeat."""
    workload = one_job(nest)
    small, large = (
        costs(workload, with_any_bandwidth(machine(style, rows, 2 * rows, 2**20)))[0]
        for rows in (8, 16)
    )
    assert large <= small + 24 * nest.repeats + 1e-3


@pytest.mark.parametrize(
    ("style", "nest", "cycles"),
    [
        # Depthwise: groups share the array on its diagonal, eight at a time.
        (Style.WEIGHT_STATIONARY, loops("k=1 c=1 y=5 x=7 r=3 s=3 groups=16"), 5 * 7 * 9 * 2),
        (Style.ROOFLINE, loops("k=4 c=32 y=10 x=10"), 100),
    ],
)
def test_cycles_by_hand(style, nest, cycles):
    """Of what test_loops.py does not walk through."""
    fill = 0 if style is Style.ROOFLINE else FILL
    assert costs(one_job(nest), with_any_bandwidth(machine(style)))[0] == pytest.approx(
        cycles + fill
    )


def test_wider_numbers_take_longer():
    nest = loops("k=8 c=16 y=5 x=7")
    target = with_any_bandwidth(machine())
    cycles = [costs(one_job(nest, bits=bits), target)[0] - FILL for bits in (4, 8, 16, 32, 64)]
    assert [c / cycles[0] for c in cycles] == pytest.approx([1, 1, 2, 4, 4])


def test_a_product_too_large_for_the_buffer_fetches_something_again_as_often_as_blocking_allows():
    nest = loops("k=512 c=512 y=512")
    sizes = operand_bytes(nest)
    moved = costs(one_job(nest), machine(buffer=32 * 1024))[1]
    # Hong and Kung (1981): at least 2 mnk / sqrt(buffer elements) for the two factors.
    assert moved[0] + moved[1] >= 2 * 512**3 / (32 * 1024) ** 0.5
    assert moved[0] + moved[1] <= 6 * 2 * 512**3 / (32 * 1024) ** 0.5
    assert moved[2] == sizes[2]


def test_recurrent_weights_that_do_not_stay_are_fetched_in_every_step():
    nest = loops("k=64 c=64 repeats=10")
    work = one_job(nest, (640, 4096, 640))
    for buffer, moved in ((1024, 40960), (16384, 4096)):
        assert costs(work, machine(buffer=buffer))[1][1] == moved


def test_a_buffer_too_small_for_any_tile_is_an_error_that_names_core_and_job():
    nest = loops("k=8 c=8 y=8 x=8 r=7 s=7")
    with pytest.raises(lm.TargetError, match=r"core core.*job j"):
        job_table(one_job(nest), machine(buffer=64))


def test_pieces_of_sums_have_the_efficiency_of_their_operator():
    """Pieces of one input channel were taken for depthwise convolutions."""
    graph = int8_graph("y = Conv(x, w)", {"x": (1, 8, 5, 6)}, ["y"], {"w": (1, 8, 3, 3)})
    cuts = cuts_by(graph, lambda form: form.chains({}, 8), sums=True)
    jobs = lower([graph], npu(1), cuts=[cuts]).jobs
    assert {job.nests[0].c for job in jobs} == {1}
    core = replace(npu(1).cores[0], efficiency={"Conv": 0.5, "DepthwiseConv": 0.25})
    assert efficiencies(jobs, core).tolist() == [0.5] * len(jobs)
