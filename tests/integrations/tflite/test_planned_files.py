"""Files that hold a plan already: what they fix stays, overlaps included, and only the rest is
planned. And probes that fail."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from tests.support.tflite_models import one_operator, started
from tests.support.tflm import same_outputs

import loadmaster as lm
from loadmaster.core.files import replace_files
from loadmaster.integrations.tflite import scratch as probing
from loadmaster.integrations.tflite.arena import TensorArena
from loadmaster.integrations.tflite.export import (
    buffer_plan,
    export_model,
    model_files,
    tflite_problem,
)
from loadmaster.integrations.tflite.interpreter import measure
from loadmaster.integrations.tflite.lifetimes import lifetimes
from loadmaster.integrations.tflite.planned_file import plan_bytes, planned_offsets, with_plan
from loadmaster.integrations.tflite.scratch import Scratch
from loadmaster.workloads.frontends.tflite.model import parse_model

pytestmark = pytest.mark.slow


def compiled_for_a_processor():
    """As Vela writes a network: input and output lie in the scratch tensor of one operator."""
    model, main = started()
    commands = main.tensor("64", "uint8", 0)
    weights = main.tensor("256", "uint8", 0)
    scratch = main.tensor("4096", "uint8", name="scratch")
    source = main.input("1x32x32x1", "int8", name="input")
    result = main.tensor("1x16", "int8", name="output")
    main.op("CUSTOM:ethos-u", [commands, weights, scratch, scratch, source], [result])
    main.outputs = [result]
    model.note("OfflineMemoryAllocation", plan_bytes([-1, -1, 0, 1024, 0]))
    return model


def saved(folder, data):
    path = folder / "net.tflite"
    path.write_bytes(data)
    return path


def test_a_plan_whose_tensors_overlap_on_purpose_is_kept(tmp_path):
    exported = export_model(compiled_for_a_processor().save(tmp_path), scratch="none")
    plan = exported.plan
    assert (plan.head_before, plan.head, plan.lower_bound, plan.fixed) == (4096, 4096, 4096, 3)
    assert plan.growth == 0
    assert planned_offsets(parse_model(exported.data)) == (-1, -1, 0, 1024, 0)


def test_the_packing_problem_of_such_a_file_has_its_overlaps(tmp_path):
    answer = lm.allocate(tflite_problem(compiled_for_a_processor().save(tmp_path)))
    assert (answer.status, answer.peak) == ("optimal", 4096)


def chain(offsets):
    model, main = started()
    value = main.input("1x64")
    for kind in ("RELU", "ABS", "NEG", "SQUARE"):
        value = main.out(kind, [value])
    main.outputs = [value]
    model.note("OfflineMemoryAllocation", plan_bytes(offsets))
    return model.bytes()


def with_planned_variable(result=-1):
    """The state of an SVDF, 512 bytes, at the bottom of the arena."""
    model, main = started()
    source = main.input("1x64")
    weights = [main.tensor(shape, data=0.1) for shape in ("8x64", "8x16", "8")]
    state = main.tensor("1x128", variable=True)
    value = main.out("TANH", [source])
    filtered = main.out("SVDF", [value, *weights, state], (1, 8), {0: 1, 1: 0})
    main.last("TANH", [filtered])
    offsets = [512, -1, -1, -1, 0, result, 1024, 1056]
    model.note("OfflineMemoryAllocation", plan_bytes(offsets))
    return model.bytes()


def test_a_variable_with_an_address_keeps_its_bytes_between_inferences(tmp_path):
    data = with_planned_variable()
    exported = export_model(saved(tmp_path, data))
    planned = planned_offsets(parse_model(exported.data))
    assert (planned[4], planned[5] >= 512) == (0, True)
    assert (exported.plan.fixed, exported.plan.head) == (4, exported.after.head)
    assert same_outputs(data, exported.data)
    # TFLM counts it up to its last use only.
    problem = tflite_problem(saved(tmp_path, data))
    _, lower, upper, *_ = problem.parts
    state = problem.ids.index("t4")
    assert (lower[state], upper[state]) == (lower.min(), upper.max())


def test_a_plan_in_c_is_not_for_files_that_hold_a_plan(tmp_path):
    """TFLM's shim refuses their addresses."""
    exported = export_model(saved(tmp_path, chain([-1] * 4 + [0])), scratch="none")
    with pytest.raises(lm.AllocationError, match="--c-struct is for files without a plan"):
        buffer_plan(exported)


def test_tensors_without_an_address_are_planned_around_those_with_one(tmp_path):
    """The first two lie high, one within the other's bytes; 256 bytes below are free."""
    pytest.importorskip("tflite_micro")
    data = chain([-1, 512, 512, -1, -1])
    exported = export_model(saved(tmp_path, data))
    assert planned_offsets(parse_model(exported.data))[1:3] == (512, 512)
    assert exported.plan.fixed == 2
    assert exported.plan.head == exported.plan.lower_bound == exported.after.head == 768
    assert exported.before.head == exported.plan.head_before == 768
    assert same_outputs(data, exported.data)


def test_a_file_that_was_exported_is_exported_as_it_is(tmp_path):
    pytest.importorskip("tflite_micro")
    data = chain([-1] * 5)
    once = export_model(saved(tmp_path, data), in_place="reference")
    again = export_model(saved(tmp_path, once.data))
    assert once.plan.head == again.plan.head == again.plan.head_before == 256
    assert planned_offsets(parse_model(once.data)) == planned_offsets(parse_model(again.data))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (plan_bytes([0, 0]), "that is not of its 5 tensors, and that TFLM refuses"),
        (plan_bytes([0, 0, 0, 0, -7]), "with the address -7"),
        (struct.pack("<3i", 1, 0, 5), "that is not of its 5 tensors"),
        (b"", "that is not of its 5 tensors"),
    ],
)
def test_a_plan_that_tflm_refuses_is_refused(tmp_path, content, reason):
    model = compiled_for_a_processor()
    model.metadata.clear()
    model.note("OfflineMemoryAllocation", content)
    with pytest.raises(lm.ModelError, match=reason):
        export_model(model.save(tmp_path), scratch="none")


def filters():
    """Eight operators with states of 16-bit elements. Their kernels end the interpreter's process
    where the arena is a little too small."""
    model, main = started()
    rng = np.random.default_rng(0)
    value = main.input("1x96", "int8", scale=(0.1,))
    for width, features in ((96, 64), *[(64, 64)] * 7):
        weights, times = (
            main.tensor(shape, dtype, rng.integers(-9, 9, shape), scale=(0.1,))
            for shape, dtype in (((features, width), "int8"), ((features, 8), "int16"))
        )
        bias = main.tensor((features,), "int32", 0, scale=(0.01,))
        state = main.tensor((1, features * 8), "int16", variable=True, scale=(0.1,))
        operands = [value, weights, times, bias, state]
        more = {"dtype": "int8", "scale": (0.1,)}
        value = main.out("SVDF", operands, (1, features), {0: 1, 1: 1}, **more)
    main.outputs = [value]
    return model.bytes()


def test_a_model_whose_kernels_end_the_interpreter_in_small_arenas_is_measured(tmp_path):
    pytest.importorskip("tflite_micro")
    exported = export_model(saved(tmp_path, filters()))
    assert exported.after.head == exported.plan.head
    assert exported.after.least >= exported.after.head + exported.after.tail


def test_where_a_probe_fails_the_whole_model_bounds_its_scratch(tmp_path, monkeypatch):
    pytest.importorskip("tflite_micro")
    data = filters()
    model = parse_model(data)
    exact = probing.probe(model, lifetimes(model))
    real = probing.measure_each
    monkeypatch.setattr(
        probing, "measure_each", lambda *given: ["it ended with signal 11", *real(*given)[1:]]
    )
    bounded = probing.probe(model, lifetimes(model))
    assert (exact.bounds, bounded.bounds) == (False, True)
    assert [each.bytes for each in bounded.buffers] == [each.bytes for each in exact.buffers]
    exported = export_model(saved(tmp_path, data))
    assert exported.plan.head == measure(exported.data, 2**12).head <= exported.plan.head_before


def test_buffers_of_one_kernel_may_lie_apart(tmp_path):
    """The kernel asks for 32, 16 and 16 bytes, and a gap of 32 is free below its result: what is
    measured is less than what one buffer of 64 bytes needs, and the least there can be."""
    pytest.importorskip("tflite_micro")
    model, main = started()
    value = main.input("1x4x4x8", "int8", scale=(0.1,))
    main.outputs = [main.mean(value, dtype="int8", scale=(0.1,))]
    plan = export_model(saved(tmp_path, with_plan(parse_model(model.bytes()), [0, -1, 160]))).plan
    assert (plan.head, plan.lower_bound, plan.status) == (208, 208, "optimal")


def test_bounds_of_scratch_may_be_more_than_is_measured_and_sizes_may_not(tmp_path):
    """Of files in bands, too, whose arenas are measured in the same way."""
    pytest.importorskip("tflite_micro")
    exported = export_model(saved(tmp_path, chain([-1] * 5)), scratch="none")
    larger = replace(exported, plan=replace(exported.plan, head=exported.plan.head + 16))
    bounded = replace(
        larger, arena=TensorArena(exported.arena.found, Scratch((), "probed", bounds=True))
    )
    before = measure(chain([-1] * 5), 2**12)
    assert bounded.measured(before).plan.head == exported.plan.head
    with pytest.raises(lm.AllocationError, match="as planned: please report it"):
        larger.measured(before)


def test_a_file_without_a_byte_to_place_is_written_as_it_is(tmp_path):
    model = one_operator("RELU", "1x0x4x2", "", "1x0x4x2", None)
    exported = export_model(model.save(tmp_path))
    assert (exported.plan.head_before, exported.plan.head) == (0, 0)


def test_the_model_and_its_plan_in_c_are_not_one_file(tmp_path):
    exported = export_model(one_operator("RELU", "1x4", "", "1x4", None).save(tmp_path))
    out = tmp_path / "out.tflite"
    other = tmp_path / "folder" / ".." / out.name
    (tmp_path / "folder").mkdir()
    with pytest.raises(lm.OutputError, match="one file for the model and for the plan in C: give"):
        replace_files(model_files(exported, out, other))
    assert not out.exists()
