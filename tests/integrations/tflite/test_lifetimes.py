"""When tensors are in the arena: scopes counted by hand, and heads as TFLM has them."""

import random
from dataclasses import replace

import pytest
from tests.support.tflite_models import started
from tests.support.tflm import heads, planned, same_outputs

from loadmaster.integrations.tflite.arena import TensorArena, head_of, online_offsets
from loadmaster.integrations.tflite.lifetimes import NEVER, ArenaBuffer, lifetimes
from loadmaster.integrations.tflite.planned_file import planned_offsets
from loadmaster.integrations.tflite.scratch import UNKNOWN, probe
from loadmaster.workloads.frontends.tflite.model import parse_model


def spans(model):
    return {tensor.name: tensor.span for tensor in lifetimes(parse_model(model.bytes())).tensors}


def test_inputs_begin_at_scope_0_and_every_operator_is_one_more():
    model, main = started()
    x = main.input("1x4", name="x")
    y = main.out("RELU", [x], name="y")
    z = main.out("ADD", [x, y], "1x4", {0: 0}, name="z")
    main.outputs = [y, main.out("ABS", [z], name="end")]
    main.tensor("1x4", name="unused")
    main.tensor("1x4", variable=True, name="variable")
    main.tensor("0x4", name="empty")
    main.tensor("1x4", data=1, name="constant")
    assert spans(model) == {
        "x": (0, 2),
        "y": (1, 3),
        "z": (2, 3),
        "end": (3, 3),
        "unused": (NEVER, NEVER),
    }


def random_order(seed):
    """A model whose operators read and write tensors in any order, and whose outputs may be written
    by none."""
    rng = random.Random(seed)
    model, main = started()
    main.input("1x4")
    values = [0, *(main.tensor((1, 4 << rng.randrange(4))) for _ in range(7))]
    for _ in range(9):
        read, result = sorted(rng.sample(values, 2), key=lambda value: main.shapes[value])
        times = main.shapes[result][1] // main.shapes[read][1]
        main.op("CONCATENATION", [read] * times, [result], {0: 1})
    main.outputs = rng.sample(values, 2)
    return model.bytes()


def branches(main, condition, source, bodies, name):
    return main.out("IF", [condition, source], "1x16", {0: bodies[0], 1: bodies[1]}, name=name)


def body(model, kind):
    subgraph = model.subgraph()
    source = subgraph.input("1x16", name=f"{kind} in")
    middle = subgraph.out(kind, [source], name=f"{kind} middle")
    subgraph.last("NEG", [middle], name=f"{kind} out")


def shared_bodies():
    """Two branches that run the same subgraphs; between them lives a tensor that the first alone
    has to spare."""
    model, main = started()
    c, x = main.input("1", "bool", name="c"), main.input("1x16", name="x")
    kept = main.out("SQUARE", [x], name="kept")
    first = branches(main, c, x, (1, 2), "first")
    total = main.out("ADD", [first, kept], "1x16", {0: 0}, name="total")
    main.outputs = [branches(main, c, total, (1, 2), "second")]
    body(model, "RELU")
    body(model, "TANH")
    return model


def chain_of_branches(seed):
    """A random model in which branches run the same two subgraphs several times; means ask for
    scratch."""
    rng = random.Random(seed)
    model, main = started()
    c, values = main.input("1", "bool"), [main.input("1x16")]
    for _ in range(rng.randint(2, 6)):
        kind, value = rng.random(), rng.choice(values)
        values.append(
            branches(main, c, value, (1, 2), f"branch {len(values)}")
            if kind < 0.6
            else main.out("ADD", [value, rng.choice(values)], "1x16", {0: 0})
        )
    main.outputs = [branches(main, c, values[-1], (1, 2), "last")]
    for kind in ("RELU", "TANH"):
        inner = model.subgraph()
        made = [inner.input("1x16")]
        for _ in range(rng.randint(1, 4)):
            made.append(inner.out(kind, [rng.choice(made)]))
        pair = inner.out("CONCATENATION", [made[-1], made[0]], "1x32", {0: 1})
        shape = inner.ints(1, 2, 16)
        rows = inner.out("RESHAPE", [pair, shape], "1x2x16", {})
        axis = inner.ints(1)
        inner.last("MEAN", [rows, axis], "1x16", {0: 0})
    return model.bytes()


@pytest.mark.slow
def test_heads_of_models_that_run_subgraphs_several_times_are_foretold():
    """Scratch of the subgraphs' operators included."""
    pytest.importorskip("tflite_micro")
    files = [shared_bodies().bytes(), *map(chain_of_branches, range(12))]
    models = map(parse_model, files)
    scratch = [probe(model, lifetimes(model)) for model in models]
    plans = [planned(data, each) for data, each in zip(files, scratch, strict=True)]
    before = heads(files)
    assert before == [plan.head_before for plan, _ in plans]
    assert heads([file for _, file in plans]) == [plan.head for plan, _ in plans]
    assert before[0] == 592
    assert all(same_outputs(data, file) for data, (_, file) in zip(files, plans, strict=True))


def test_tensors_that_are_read_before_they_are_written_or_never_are_are_where_tflm_has_them():
    pytest.importorskip("tflite_micro")
    files = list(map(random_order, range(40)))
    arenas = [TensorArena(lifetimes(parse_model(data)), UNKNOWN) for data in files]
    assert heads(files) == [head_of(each.owners, online_offsets(each.owners)) for each in arenas]


def test_the_planner_of_tflm_takes_the_largest_first_and_of_equal_ones_the_last():
    lives = ((32, (0, 1)), (64, (1, 2)), (32, (1, 3)), (16, (0, 3)), (16, (5, 6)))
    buffers = [ArenaBuffer("", *each) for each in lives]
    buffers[3] = replace(buffers[3], offset=32)
    offsets = online_offsets(buffers)
    # The planned one is at 32; 64 bytes find no gap below it; of the two of 32 bytes the second
    # takes the gap.
    assert offsets == [112, 48, 0, 32, 0]
    assert head_of(buffers, offsets) == 144
    assert (online_offsets([]), head_of([], [])) == ([], 0)


def test_a_model_without_anything_to_plan_gets_a_plan_of_nothing():
    model, main = started()
    main.tensor("2", "float32", [1, 2])
    plan, file = planned(model.bytes(), UNKNOWN)
    assert (plan.head, plan.head_before, plan.growth, plan.status) == (0, 0, 0, "optimal")
    assert planned_offsets(parse_model(file)) == (-1,)
