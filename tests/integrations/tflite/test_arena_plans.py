"""Plans of TFLM's arena, against its interpreter: the head that was foretold, equal outputs, and
never more bytes than without a plan."""

import numpy as np
import pytest
from tests.support.tflite_models import one_operator, started
from tests.support.tflite_random import random_model
from tests.support.tflm import ROOM, heads, inputs_for, outputs_of, planned, same_outputs

from loadmaster.integrations.tflite import interpreter
from loadmaster.integrations.tflite.arena import _growth
from loadmaster.integrations.tflite.export import export_model
from loadmaster.integrations.tflite.in_place import LIBRARIES, in_place_pairs
from loadmaster.integrations.tflite.lifetimes import lifetimes
from loadmaster.integrations.tflite.planned_file import with_plan
from loadmaster.integrations.tflite.scratch import UNKNOWN, scratch_of, trials
from loadmaster.workloads.frontends.tflite.model import parse_model

pytest.importorskip("tflite_micro")


def probed(files):
    """The scratch of several models, measured by one process."""
    models = [parse_model(data) for data in files]
    tried = [trials(model, lifetimes(model)) for model in models]
    answers = interpreter.measure_each(
        b"",
        [trial.front + data for data, each in zip(files, tried, strict=True) for trial in each],
        ROOM,
    )
    found, at = [], 0
    for each in tried:
        pairs = zip(each, answers[at : at + len(each)], strict=True)
        found.append(scratch_of(each, [answer.head - trial.head for trial, answer in pairs]))
        at += len(each)
    return found


def hold(seeds, kernels=frozenset()):
    """Check plans of random models against the interpreter; how many became smaller, and how many
    operators ask for scratch."""
    files = [random_model(seed).bytes() for seed in seeds]
    scratch = probed(files)
    plans = [planned(data, each, kernels) for data, each in zip(files, scratch, strict=True)]
    measured = heads(files), heads([file for _, file in plans])
    for seed, data, (plan, file), before, after in zip(seeds, files, plans, *measured, strict=True):
        assert before == plan.head_before, f"seed {seed}"
        assert after == plan.head <= before, f"seed {seed}"
        assert plan.head >= plan.lower_bound
        assert plan.status == "optimal" or kernels, f"seed {seed}"
        assert same_outputs(data, file), f"seed {seed}"
    return sum(plan.head < plan.head_before for plan, _ in plans), sum(
        len(each.buffers) for each in scratch
    )


@pytest.mark.slow
def test_plans_of_many_random_models_hold():
    assert hold(range(12))[0] > 0
    smaller, scratch = hold(range(12, 112))
    assert smaller > 15
    assert scratch > 50


@pytest.mark.slow
def test_plans_in_place_of_many_random_models_hold():
    assert hold(range(200, 240), LIBRARIES["reference"])[0] > 20


def fragmented_model():
    """A model whose fifth operator asks for 32 bytes of scratch, and addresses that are as low as
    they can be but leave it a gap of 16."""
    model, main = started()
    rng = np.random.default_rng(0)

    def dense(source, size):
        width, out = main.shapes[source][1], size // 4
        return main.out(
            "FULLY_CONNECTED",
            [source, main.tensor((out, width), "float32", rng.normal(size=(out, width))), -1],
            (1, out),
            {},
        )

    first = main.input("1x4")
    wide = dense(first, 640)
    narrow = dense(wide, 384)
    long = dense(first, 608)
    features = main.tensor("8x96", "float32", rng.normal(size=(8, 96)))
    times = main.tensor("8x2", "float32", rng.normal(size=(8, 2)))
    state = main.tensor("1x16", variable=True)
    bias = main.tensor("8", data=0)
    filtered = main.out("SVDF", [narrow, features, times, bias, state], "1x8", {0: 1, 1: 0})
    late = dense(long, 400)
    last = dense(late, 32)
    main.last("ADD", [filtered, last], "1x8", {0: 0})
    tensors = first, wide, narrow, long, filtered, late, last, *main.outputs
    places = dict(zip(tensors, (384, 400, 0, 432, 400, 0, 432, 464), strict=True))
    return model.bytes(), [places.get(tensor, -1) for tensor in range(len(main.tensors))]


def test_scratch_makes_a_plan_grow_that_does_not_know_it_and_not_one_that_does():
    data, offsets = fragmented_model()
    naive = with_plan(parse_model(data), offsets)
    (scratch,) = probed([data])
    assert [buffer.bytes for buffer in scratch.buffers] == [32]
    plan, file = planned(data, scratch)
    blind, _ = planned(data, UNKNOWN)
    assert blind.head == 1040
    assert heads([data, naive, file]) == [1056, 1072, 1056]
    assert plan.head == plan.head_before == plan.lower_bound == 1056
    assert same_outputs(data, naive)
    assert same_outputs(data, file)
    # The state of the filter lasts from one inference to the next, and stays beside the plan.
    first, second = outputs_of(file, [inputs_for(data, 1)] * 2)
    assert not np.array_equal(first[0], second[0])


@pytest.mark.slow
def test_a_plan_without_scratch_grows_by_no_more_than_was_said():
    files = [random_model(seed).bytes() for seed in range(300, 320)] + [fragmented_model()[0]]
    plans = [planned(data, UNKNOWN) for data in files]
    measured = heads(files), heads([file for _, file in plans])
    for (plan, _), old, new in zip(plans, *measured, strict=True):
        assert new - old <= plan.growth
        assert new >= plan.head


def test_the_growth_that_is_said_is_that_of_the_worst_operator():
    data, offsets = fragmented_model()
    found = lifetimes(parse_model(data))
    # Where the filter runs, tensors take 1,024 bytes and end at 1,040; where the last sum does, 96
    # bytes end at 496.
    assert _growth(found, [offsets[tensor.number] for tensor in found.tensors]) == 496 - 96


POSITIVE = ("LOG", "RSQRT", "SQRT")
BINARY = ("ADD", "DIV", "MAXIMUM", "MINIMUM", "MUL", "SQUARED_DIFFERENCE", "SUB")


def in_place_models():
    """Every operator that is said to work in place, with a model in which its result can have no
    other place than the operand's."""
    shape = (1, 5, 7, 3)
    for kind in sorted(LIBRARIES["reference"]):
        model, main = started()
        dtype = "int8" if kind == "HARD_SWISH" else "bool" if kind == "LOGICAL_NOT" else "float32"
        more = {"scale": (0.05,)} if dtype == "int8" else {}
        source = main.input(shape, dtype, **more)
        if kind in POSITIVE:
            source = main.out("SQUARE", [source], shape)
        operands, target, options = [source], shape, None
        if kind in BINARY:
            operands.append(main.tensor(shape, "float32", np.linspace(0.5, 2, 105)))
            options = {0: 0} if kind in ("ADD", "MUL", "SUB") else None
        if kind == "PRELU":
            operands.append(main.tensor("1x1x3", "float32", [0.1, 0.2, -0.3]))
        if kind == "RESHAPE":
            operands.append(main.ints(7, 15))
            target = 7, 15
        if kind == "EXPAND_DIMS":
            operands.append(main.ints(0))
            target = 1, *shape
        if kind == "SQUEEZE":
            target = shape[1:]
        main.last(kind, operands, target, options, dtype=dtype, **more)
        yield kind, model.bytes()


def test_no_kernel_in_place_changes_the_width_of_elements():
    """Sizes that are equal once they are rounded up are not equal."""
    model, main = started()
    narrow = main.out("RELU", [main.input("1x4", "int8")], dtype="int8")
    wide = main.tensor("1x4")
    main.op("DEQUANTIZE", [narrow], [wide])
    main.last("TANH", [wide])
    parsed = parse_model(model.bytes())
    kernels = frozenset(("RELU", "DEQUANTIZE", "TANH"))
    assert list(in_place_pairs(parsed, lifetimes(parsed), kernels)) == [(0, 1), (2, 3)]


def test_every_operator_that_is_said_to_work_in_place_does():
    for kind, data in in_place_models():
        plan, file = planned(data, UNKNOWN, frozenset((kind, "SQUARE")))
        assert plan.in_place >= 1, kind
        assert plan.head < plan.head_before, kind
        assert same_outputs(data, file), kind


def test_nothing_is_broadcast_to_the_shared_place():
    """The smaller operand of a broadcast sum is left where it is."""
    model = one_operator("ADD", "1x1x1x4 1x3x3x4", "", "1x3x3x4", {0: 0})
    parsed = parse_model(model.bytes())
    assert list(in_place_pairs(parsed, lifetimes(parsed), frozenset(("ADD",)))) == [(1, 2)]


def test_an_output_that_the_last_operator_reads_is_not_overwritten():
    """TFLM counts the end of the network to the scope of its last operator."""
    model, main = started()
    first = main.out("RELU", [main.input("1x8")])
    main.outputs = [first, main.out("NEG", [first])]
    data = model.bytes()
    _, file = planned(data, UNKNOWN, frozenset(("NEG", "RELU")))
    assert same_outputs(data, file)


@pytest.mark.slow
def test_an_exported_file_runs_in_the_arena_that_was_said(tmp_path):
    model = random_model(24)
    data, exported = model.bytes(), export_model(model.save(tmp_path))
    assert exported.after.head == exported.plan.head
    assert exported.after.least >= exported.after.head + exported.after.tail
    runs = [inputs_for(data, 5)]
    assert (
        outputs_of(exported.data, runs, exported.after.least)[0][0].tobytes()
        == outputs_of(data, runs)[0][0].tobytes()
    )
    with pytest.raises(RuntimeError, match="allocate"):
        outputs_of(exported.data, runs, exported.after.least - 16)


def test_probing_many_operators_of_a_small_file_reads_every_buffer_once():
    """Hundreds of operators without weights in few bytes: a reader that counts what it reads must
    not take this for an attack."""
    model, main = started()
    value = main.input("1x2")
    for _ in range(300):
        value = main.out("RELU", [value], buffer=model.buffer(b""))
    main.outputs = [value]
    data = parse_model(model.bytes())
    assert len(trials(data, lifetimes(data))) == 300
