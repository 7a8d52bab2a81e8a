"""The dataflow model as the mapping problem sees it: within what physics allows, and never worse for more hardware."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.layers import machine, nests, one_job, operand_bytes
from tests.support.networks import RATES, residual_chain

import loadmaster as lm
from loadmaster.cost.analyse import analyse
from loadmaster.cost.analytical.cycles import array_cycles
from loadmaster.cost.analytical.delivery import delivered_bytes
from loadmaster.cost.analytical.energy import area, array_energy, dram_energy, peak_power, sram_energy
from loadmaster.cost.analytical.job_costs import job_costs
from loadmaster.cost.analytical.nests import nest_table
from loadmaster.cost.analytical.shapes import shapes_of
from loadmaster.targets.hardware import Style, Target
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Job, NetworkInfo, Operand, TensorInstance, Workload
from loadmaster.workloads.lowering.instantiate import lower

ARRAYS = [Style.WEIGHT_STATIONARY, Style.OUTPUT_STATIONARY, Style.ROW_STATIONARY]
networks_on_chip = st.fixed_dictionaries(
    {
        "flexible": st.booleans(),
        "local_buffer": st.sampled_from([0, 16, 512]),
        "noc_bandwidth": st.sampled_from([None, 1e8, 5e10]),
        "noc_latency": st.sampled_from([0.0, 1e-7]),
    }
)


def latency_and_bytes(work: Workload, target: Target) -> tuple[float, float]:
    table = analyse(work, target)
    return float(table.latency[0, 0]), float(table.latency[0, 0] * table.bandwidth[0, 0])


@given(nests, st.sampled_from(ARRAYS), networks_on_chip, st.integers(0, 5000), st.sampled_from([8, 16, 32]))
@settings(max_examples=150, deadline=None)
def test_never_below_compulsory_traffic_or_the_arrays_rate(nest: LoopNest, style: Style, more: dict, extra: int, bits: int) -> None:
    sizes = operand_bytes(nest)
    latency, moved = latency_and_bytes(one_job(nest, *sizes, extra, bits), machine(style, **more))
    assert latency >= nest.macs / (8 * 16 * RATES[bits]) * 1e-9 * (1 - 1e-9) + more["noc_latency"]
    assert moved >= (sum(sizes) + extra) * (1 - 1e-12)
    if more["noc_bandwidth"] is not None:
        needed = (nest.groups * nest.k * nest.c * nest.r * nest.s + nest.groups * nest.batch * nest.k * nest.y * nest.x) * bits / 8
        assert latency >= needed / more["noc_bandwidth"] * (1 - 1e-9)


@given(nests, st.sampled_from(ARRAYS), networks_on_chip, st.sampled_from([1, 2, 5]), st.sampled_from([1, 3]), st.sampled_from([1, 4]))
@settings(max_examples=100, deadline=None)
def test_larger_buffers_and_a_faster_network_never_cost_more(
    nest: LoopNest, style: Style, more: dict, buffer: int, local: int, bandwidth: int
) -> None:
    work = one_job(nest, *operand_bytes(nest))
    faster = None if more["noc_bandwidth"] is None else more["noc_bandwidth"] * bandwidth
    bigger = more | {"local_buffer": more["local_buffer"] * local, "noc_bandwidth": faster}
    little, much = (
        latency_and_bytes(work, machine(style, buffer=size, **fields)) for size, fields in ((4096, more), (4096 * buffer, bigger))
    )
    assert much[0] <= little[0]
    assert much[1] <= little[1] * (1 + 1e-12)


@given(nests, st.sampled_from(ARRAYS), st.sampled_from([0, 8, 64, 512, 4096]), st.sampled_from([8, 16, 32]))
@settings(max_examples=100, deadline=None)
def test_the_network_delivers_every_operand_and_less_the_more_elements_keep(nest: LoopNest, style: Style, local: int, bits: int) -> None:
    table = nest_table(one_job(nest, *operand_bytes(nest), 0, bits).jobs).as_column()
    rows, columns = shapes_of(machine(style, flexible=True).cores[0])
    delivered = delivered_bytes(table, style, rows, columns, local)
    assert (delivered >= (table.inputs + table.weights + table.outputs) * bits / 8).all()
    assert (delivered_bytes(table, style, rows, columns, 2 * local) <= delivered).all()


@given(nests, st.sampled_from(ARRAYS), st.sampled_from([None, 1e9]))
@settings(max_examples=60, deadline=None)
def test_a_flexible_array_is_never_slower_and_takes_the_best_shape(nest: LoopNest, style: Style, bandwidth: float | None) -> None:
    work = one_job(nest, *operand_bytes(nest))
    flexible = latency_and_bytes(work, machine(style, flexible=True, noc_bandwidth=bandwidth))[0]
    shapes = [(8 * 16 // columns, columns) for columns in (1, 2, 4, 8, 16, 32, 64, 128)]
    fixed = [latency_and_bytes(work, machine(style, rows, columns, noc_bandwidth=bandwidth))[0] for rows, columns in shapes]
    assert flexible == min(fixed)


@pytest.mark.parametrize(
    ("style", "delivered"),
    [
        # 512 bytes hold all 9 taps of 2 blocks of inputs: sums leave once. Inputs cross for both blocks of outputs and every tap.
        (Style.WEIGHT_STATIONARY, 9 * 17 * 9 + 2 * 35 * 17 * 9 + 35 * 9),
        # 35 positions take 5 turns on 8 rows, which 128 sums of an element cover at once.
        (Style.OUTPUT_STATIONARY, 9 * 17 * 9 + 35 * 17 * 9 + 35 * 9),
        # 2 filters stand in 8 rows: 9 of them take 5 rounds; 5 output rows fit into 16 columns; 17 inputs are interleaved.
        (Style.ROW_STATIONARY, 9 * 17 * 9 + 5 * 17 * 7 * 9 + 35 * 9),
    ],
)
def test_deliveries_by_hand(style: Style, delivered: int) -> None:
    nest = LoopNest(k=9, c=17, y=5, x=7, r=3, s=3)
    costs = job_costs(one_job(nest, *operand_bytes(nest)), machine(style))
    assert costs.kinds[0].delivered.tolist() == [delivered]


def test_a_slow_network_sets_the_pace_and_its_latency_comes_once() -> None:
    nest = LoopNest(k=9, c=17, y=5, x=7, r=3, s=3)
    work = one_job(nest, *operand_bytes(nest))
    delivered = 9 * 17 * 9 + 35 * 17 * 9 + 35 * 9
    slow = machine(Style.OUTPUT_STATIONARY, noc_bandwidth=1e6, noc_latency=3e-6)
    assert latency_and_bytes(work, slow)[0] == pytest.approx(delivered * 1e-6 + 3e-6)


def test_strides_are_seen_in_the_input_that_is_delivered() -> None:
    apart = LoopNest(k=1, c=1, y=4, x=4, r=1, s=1, stride=(3, 3))
    table = nest_table(one_job(apart, 100, 1, 16).jobs)
    assert table.inputs.tolist() == [16]
    overlapping = LoopNest(k=1, c=1, y=4, x=4, r=3, s=3, stride=(2, 2))
    assert nest_table(one_job(overlapping, 81, 9, 16).jobs).inputs.tolist() == [81]


def bare_job(elements: int, size: int) -> Workload:
    tensors = (TensorInstance("i", "n", "i", 0, size, "input"), TensorInstance("o", "n", "o", 0, size, "activation", True, 0))
    job = Job("j", "n", 0, "Op", ("op",), (), elements, 16, (Operand("i", size),), (Operand("o", size),), ())
    return Workload((NetworkInfo("n", "", "fp16", 1, 1, 0, (), ()),), (job,), tensors)


def test_work_without_arithmetic_passes_the_lanes_and_nothing_takes_less_than_a_cycle() -> None:
    target = machine(Style.WEIGHT_STATIONARY)
    # 16 lanes of two bytes.
    assert latency_and_bytes(bare_job(0, 3200), target) == (pytest.approx(200e-9), pytest.approx(6400))
    assert latency_and_bytes(bare_job(1600, 3200), target)[0] == pytest.approx(100e-9)
    assert latency_and_bytes(bare_job(1, 2), target) == (pytest.approx(1e-9), pytest.approx(4))
    assert latency_and_bytes(bare_job(0, 3200), machine(Style.WEIGHT_STATIONARY, noc_latency=1e-6))[0] == pytest.approx(1.2e-6)


@pytest.mark.parametrize("name", ["edge-npu", "m3e-s6", "optane-server", "gpu-pcie"])
def test_networks_can_be_analysed_on_every_kind_of_machine(name: str) -> None:
    target = lm.target(name)
    work = lower([lm.load("onnx:squeezenet")], target)
    table = analyse(work, target)
    assert table.latency.shape == (len(work.jobs), len(target.cores))
    assert np.isfinite(table.latency).all()
    assert (table.latency > 0).all()
    assert np.isfinite(table.bandwidth).all()
    assert table.energy is not None
    assert (table.energy > 0).all()
    assert table.clock == (None if name in ("optane-server", "gpu-pcie") else 1e9)


def test_equal_cores_are_equal_columns_and_company_changes_nothing() -> None:
    target = machine(Style.ROW_STATIONARY, flexible=True)
    twins = replace(target, cores=(target.cores[0], replace(target.cores[0], name="other"), replace(target.cores[0], name="big", rows=16)))
    alone, together = lower([residual_chain(1)], twins), lower([residual_chain(1), residual_chain(3, "b", 24)], twins)
    a, b = analyse(alone, twins), analyse(together, twins)
    for name in ("latency", "bandwidth", "energy"):
        one, two = getattr(a, name), getattr(b, name)
        assert np.array_equal(one[:, 0], one[:, 1])
        assert not np.array_equal(one[:, 0], one[:, 2])
        assert np.array_equal(one, two[: len(one)])


def test_a_plan_on_a_machine_with_networks_on_chip_and_flexible_arrays_holds(tmp_path: Path) -> None:
    changes = ["cores.ws.flexible=true", "cores.ws.noc_bandwidth=16 GB/s", "cores.lb.noc_latency=1 us"]
    plans = [lm.plan([lm.load("onnx:squeezenet", precision="int8")], lm.target("edge-npu", more)) for more in ([], changes)]
    assert lm.verify(plans[1]) == ()
    assert lm.Plan.load(plans[1].save(tmp_path / "plan.json")) == plans[1]
    assert plans[1].metrics.makespan.value > plans[0].metrics.makespan.value


@given(nests, st.sampled_from(ARRAYS))
@settings(max_examples=40, deadline=None)
def test_cycles_are_whole_and_at_least_one_for_every_shape(nest: LoopNest, style: Style) -> None:
    table = nest_table(one_job(nest, *operand_bytes(nest)).jobs).as_column()
    rows, columns = shapes_of(machine(style, 6, 20, flexible=True).cores[0])
    assert (rows * columns == 120).all()
    cycles = array_cycles(table, style, rows, columns)
    assert (cycles == np.rint(cycles)).all()
    assert (cycles * 120 >= table.macs / table.repeats).all()


def test_published_energies_are_met_and_grow_with_the_memory() -> None:
    # Horowitz: 10, 20 and 100 pJ for 8 bytes.
    assert [sram_energy(size) * 8e12 for size in (2**13, 2**15, 2**20)] == pytest.approx([10, 20, 100])
    assert sram_energy(2**11) * 8e12 == pytest.approx(5)
    assert sram_energy(2**22) * 8e12 == pytest.approx(200)
    assert sram_energy(0) == 0
    sizes = [1, 100, 512, 5000, 2**14, 10**5, 10**6, 10**8]
    assert sorted(map(sram_energy, sizes)) == list(map(sram_energy, sizes))
    assert dram_energy() * 8e12 == pytest.approx(1300)


def test_energy_of_a_layer_is_the_sum_of_what_it_does() -> None:
    nest = LoopNest(k=8, c=8, y=8, x=8)
    sizes = operand_bytes(nest)
    target = machine(Style.OUTPUT_STATIONARY)
    core = target.cores[0]
    table = analyse(one_job(nest, *sizes), target)
    assert table.energy is not None
    # 64 positions take 8 turns: weights cross once; inputs once; all fits into the buffer.
    network = sram_energy(108 * 1024) / 3
    by_hand = nest.macs * array_energy(core, 8) + sum(sizes) * (2 * sram_energy(core.buffer) + network + dram_energy())
    assert table.energy[0, 0] == pytest.approx(by_hand)


def test_power_and_area_grow_with_the_array_and_the_width_of_its_numbers() -> None:
    small, large = (machine(Style.WEIGHT_STATIONARY, rows).cores[0] for rows in (8, 16))
    assert peak_power(large) == pytest.approx(2 * peak_power(small))
    assert peak_power(small, 32) > peak_power(small, 16) / 2
    assert area(large) > area(small)
    only_int8 = replace(small, macs_per_cycle={8: 1.0}, buffer=0, local_buffer=0)
    assert area(only_int8) == pytest.approx(8 * 16 * (282 + 137) / 1e6)
