"""The MAESTRO-compatible model: MAESTRO's own answers, cycle for cycle and byte for byte."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import layer_lists
from tests.support.fuzzing import fuzz
from tests.support.layer_lists import HEADER
from tests.support.layers import M3E, loops, one_job
from tests.support.needs import PUBLIC_INSTANCES
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.core.errors import JobError
from loadmaster.cost.analyse import analyse
from loadmaster.cost.models.maestro import Maestro
from loadmaster.workloads.frontends.job_list import read_job_list
from loadmaster.workloads.graph import LoopNest

ANSWERS = M3E / "maestro.csv"
TABLE = f"{HEADER},style,pes,energy_nj"
in_both_styles = pytest.mark.parametrize(
    ("style", "name"), [("weight-stationary", "dla"), ("row-stationary", "eye")]
)


def setting(rows=32, style="weight-stationary", *more):
    return lm.target(
        "m3e-s1", ["cores.hb.count=1", f"cores.hb.rows={rows}", f"cores.hb.style={style}", *more]
    )


def layers(folder, *rows):
    file = folder / "layers.csv"
    file.write_text("\n".join([HEADER, *rows]))
    return read_job_list(file)


@in_both_styles
@pytest.mark.parametrize("rows", [2, 32])
def test_cycles_work_and_energy_of_a_list_are_those_of_a_walk_through_its_loops(
    style, name, rows, tmp_path
):
    found = layer_lists.layers(40, 5)
    listed, energies = tmp_path / "list.csv", tmp_path / "energies.csv"
    listed.write_text(layer_lists.text(found))
    lines = [(*layer, name, rows * 64, number + 0.5) for number, layer in enumerate(found)]
    energies.write_text(layer_lists.text(lines, TABLE))
    table = analyse(read_job_list(listed), setting(rows, style), f"maestro:{energies}")
    assert np.rint(table.latency[:, 0] * 1e9).tolist() == [
        layer_lists.walked_cycles(layer, name, rows) for layer in found
    ]
    assert table.flops.tolist() == [2 * layer_lists.macs(layer) for layer in found]
    assert table.energy[:, 0] == pytest.approx([(number + 0.5) * 1e-9 for number in range(40)])


@pytest.mark.skipif(not ANSWERS.is_file(), reason=PUBLIC_INSTANCES)
@in_both_styles
@pytest.mark.parametrize("elements", [2048, 4096, 8192])
def test_cycles_bandwidth_and_energy_are_those_of_maestro(style, name, elements, tmp_path):
    with ANSWERS.open() as file:
        answers = [
            row
            for row in csv.DictReader(file)
            if row["style"] == name and int(row["pes"]) == elements
        ]
    assert len(answers) == 262
    columns = HEADER.split(",")
    work = layers(tmp_path, *(",".join(row[column] for column in columns) for row in answers))
    table = analyse(work, setting(elements // 64, style), f"maestro:{ANSWERS}")
    cycles = np.array([int(row["cycles"]) for row in answers])
    half_need = np.array([int(row["l2_bytes"]) // 2 for row in answers])
    assert (np.rint(table.latency[:, 0] * 1e9).astype(int) == cycles).all()
    assert (np.rint(table.bandwidth[:, 0] * (cycles - 1) / 1e9).astype(int) == half_need).all()
    assert (table.flops == [2 * int(row["macs"]) for row in answers]).all()
    assert table.energy[:, 0] == pytest.approx([float(row["energy_nj"]) * 1e-9 for row in answers])
    assert table.clock == 1e9


def test_cycles_and_bandwidth_by_hand(tmp_path):
    # 40 outputs on 32 rows: two passes; 64 inputs fill the width; four taps and a step: 2 * 2 * 2 *
    # 1 * 5 cycles.
    table = analyse(layers(tmp_path, "40,64,3,3,2,2,1"), setting(), "maestro")
    assert table.latency[0, 0] == pytest.approx(41e-9)
    assert table.bandwidth[0, 0] == pytest.approx((32 * 64 * 4 + 64 * 4 + 32) / 40 * 1e9)
    assert table.energy is None


def test_jobs_without_loop_nests_take_one_cycle_and_no_bandwidth():
    work = lm.lower([lm.load("onnx:squeezenet", precision="int8")], setting())
    table = analyse(work, setting(), "maestro")
    bare = np.array([not job.nests for job in work.jobs])
    assert bare.any()
    assert (table.latency[bare] == 1e-9).all()
    assert (table.bandwidth[bare] == 0).all()
    assert (table.bandwidth[~bare] > 0).all()


def test_other_styles_are_refused_by_the_name_of_their_core(tmp_path):
    with pytest.raises(JobError, match=r"core hb: .* not output-stationary: use --cost dataflow"):
        analyse(layers(tmp_path, "1,1,1,1,1,1,0"), setting(32, "output-stationary"), "maestro")


extents = st.integers(1, 300)


@given(
    extents,
    extents,
    st.integers(7, 60),
    st.integers(7, 60),
    st.integers(1, 7),
    st.sampled_from(["weight-stationary", "row-stationary"]),
)
@fuzz(60)
def test_a_flexible_array_is_never_slower_than_a_fixed_one(k, c, y, x, r, style):
    nest = LoopNest(k=k, c=c, y=y, x=x, r=r, s=r)
    work = one_job(nest)
    fixed, flexible = (
        analyse(work, setting(32, style, *more), "maestro")
        for more in ((), ("cores.hb.flexible=true",))
    )
    assert flexible.latency[0, 0] <= fixed.latency[0, 0]


def test_a_flexible_array_fits_its_width_to_the_layer(tmp_path):
    # 2,048 outputs of one input channel: all elements go to outputs, one position a step of two
    # cycles.
    work = layers(tmp_path, "2048,1,4,4,1,1,1")
    table = analyse(work, setting(32, "weight-stationary", "cores.hb.flexible=true"), "maestro")
    assert table.latency[0, 0] == pytest.approx((1 + 16 * 2) * 1e-9)
    assert table.bandwidth[0, 0] > analyse(work, setting(), "maestro").bandwidth[0, 0]


def test_a_layer_outside_the_users_table_of_energies_is_refused(tmp_path):
    energies = tmp_path / "energies.csv"
    energies.write_text(f"{TABLE}\n8,8,1,1,1,1,0,dla,2048,2.5\n")
    outside = layers(tmp_path, "8,8,1,1,1,1,0", "8,9,1,1,1,1,0")
    said = r"energies.csv: no energy for job layers/1 .*1, 8, 9, 1.* on core hb: .*--cost maestro"
    with pytest.raises(JobError, match=said):
        analyse(outside, setting(), f"maestro:{energies}")
    with pytest.raises(JobError, match="no energy for job layers/0"):
        analyse(outside, setting(64), f"maestro:{energies}")


@pytest.mark.parametrize(
    ("row", "message"),
    cases(r"""
        shi,2048,2.5 | energies.csv:2:8: style is 'shi': write one of dla, eye
        dla,0,2.5 | energies.csv:2:9: pes is 0
        dla,2048,nan | energies.csv:2:10: energy_nj is 'nan'
        dla,2048,-1 | energies.csv:2:10: energy_nj is '-1'
        dla,2048,2.5\n8,8,1,1,1,1,0,dla,2048,2.5\n8,8,1,1,1,1,0,dla,2048,3.5 | \
            energies.csv:4:10: energy_nj is not what an earlier row says of this layer: keep one
    """),
)
def test_a_mistake_in_a_table_of_energies_is_named(row, message, tmp_path):
    energies = tmp_path / "energies.csv"
    energies.write_text(f"{TABLE}\n8,8,1,1,1,1,0,{row}\n")
    with pytest.raises(JobError, match=message):
        analyse(layers(tmp_path, "8,8,1,1,1,1,0"), setting(), f"maestro:{energies}")


def test_batches_and_groups_run_one_after_another():
    def cycles(nest):
        return float(Maestro().analyse(one_job(loops(nest)), setting()).latency[0, 0] * 1e9)

    once = cycles("k=8 c=8 y=4 x=4") - 1
    assert cycles("k=8 c=8 y=4 x=4 batch=3") == pytest.approx(1 + 3 * once)
    assert cycles("k=8 c=8 y=4 x=4 groups=2") == pytest.approx(1 + 2 * once)
    assert cycles("k=1 c=1 y=4 x=4 groups=2") == pytest.approx(1 + 16 * 2)
