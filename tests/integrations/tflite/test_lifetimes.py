"""When tensors are in the arena: scopes counted by hand, and what TFLM forgets."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.tflite_models import Model, Subgraph, b, i
from tests.support.tflm import outputs_of

from loadmaster.core.errors import AllocationError
from loadmaster.integrations.tflite.arena import _settled, arena_problem, plan_arena, plan_entries
from loadmaster.integrations.tflite.lifetimes import NEVER, ArenaTensor, Lifetimes, lifetimes
from loadmaster.integrations.tflite.online_planner import Request, head_of, online_offsets
from loadmaster.integrations.tflite.planned_file import plan_in, with_plan
from loadmaster.integrations.tflite.scratch import UNKNOWN, Scratch, ScratchBuffer
from loadmaster.workloads.frontends.tflite.model import parse_model


def spans(model: Model) -> dict[str, tuple[tuple[int, int], ...]]:
    return {tensor.name: tensor.spans for tensor in lifetimes(parse_model(model.bytes())).tensors}


def test_inputs_begin_at_scope_0_and_every_operator_is_one_more() -> None:
    model = Model()
    main = model.subgraph()
    x = main.input((1, 4), name="x")
    y = main.out("RELU", [x], (1, 4), name="y")
    z = main.out("ADD", [x, y], (1, 4), {0: b(0)}, name="z")
    main.outputs = [y, main.out("ABS", [z], (1, 4), name="end")]
    main.tensor((1, 4), name="unused")
    main.tensor((1, 4), variable=True, name="variable")
    main.tensor((0, 4), name="empty")
    main.tensor((1, 4), "float32", np.ones(4), name="constant")
    assert spans(model) == {
        "x": ((0, 2),),
        "y": ((1, 3),),
        "z": ((2, 3),),
        "end": ((3, 3),),
        "unused": ((NEVER, NEVER),),
    }


def branches(
    main: Subgraph, condition: int, source: int, bodies: tuple[int, int], name: str
) -> int:
    return main.out(
        "IF", [condition, source], (1, 16), {0: i(bodies[0]), 1: i(bodies[1])}, name=name
    )


def body(model: Model, kind: str) -> None:
    subgraph = model.subgraph()
    source = subgraph.input((1, 16), name=f"{kind} in")
    middle = subgraph.out(kind, [source], (1, 16), name=f"{kind} middle")
    subgraph.outputs = [subgraph.out("NEG", [middle], (1, 16), name=f"{kind} out")]


def test_a_subgraph_that_an_operator_runs_is_walked_in_its_place() -> None:
    model = Model()
    main = model.subgraph()
    c, x = main.input((1,), "bool", name="c"), main.input((1, 16), name="x")
    y = branches(main, c, x, (1, 2), "y")
    main.outputs = [main.out("ABS", [y], (1, 16), name="end")]
    body(model, "RELU")
    body(model, "TANH")
    found = spans(model)
    # Scope 1 is the branch, 2 to 4 its first subgraph, 5 to 7 its second, 8 what follows.
    assert (found["c"], found["x"], found["y"], found["end"]) == (
        ((0, 7),),
        ((0, 7),),
        ((1, 8),),
        ((8, 8),),
    )
    assert found["RELU in of subgraph 1"] == ((2, 3),)
    assert found["RELU out of subgraph 1"] == ((4, 4),)
    assert found["TANH middle of subgraph 2"] == ((6, 7),)
    visits = lifetimes(parse_model(model.bytes())).visits
    assert [(visit.subgraph, visit.operator, visit.span) for visit in visits][-2:] == [
        (0, 0, (1, 7)),
        (0, 1, (8, 8)),
    ]


def shared_bodies() -> Model:
    """Two branches that run the same subgraphs; between them lives a tensor that the first alone
    has to spare."""
    model = Model()
    main = model.subgraph()
    c, x = main.input((1,), "bool", name="c"), main.input((1, 16), name="x")
    kept = main.out("SQUARE", [x], (1, 16), name="kept")
    first = branches(main, c, x, (1, 2), "first")
    total = main.out("ADD", [first, kept], (1, 16), {0: b(0)}, name="total")
    main.outputs = [branches(main, c, total, (1, 2), "second")]
    body(model, "RELU")
    body(model, "TANH")
    return model


def test_a_subgraph_that_is_run_twice_keeps_clear_of_both() -> None:
    """TFLM knows the last run only; its own addresses may lie over tensors of the first."""
    pytest.importorskip("tflite_micro")
    data = shared_bodies().bytes()
    model = parse_model(data)
    found = lifetimes(model)
    by_name = {tensor.name: tensor for tensor in found.tensors}
    assert by_name["RELU in of subgraph 1"].spans == ((3, 4), (11, 12))
    plan = plan_arena(found, UNKNOWN)
    file = with_plan(model, plan_entries(found, plan.offsets))
    x = np.linspace(-1, 1, 16, dtype=np.float32)[None]
    for condition in (True, False):
        inner = (lambda v: -np.maximum(v, 0)) if condition else (lambda v: -np.tanh(v))
        expected = inner(inner(x) + x * x)
        ((result,),) = outputs_of(file, [[np.array([condition]), x]])
        assert np.allclose(result, expected, atol=1e-6)


def test_addresses_under_which_tflm_would_put_scratch_over_a_tensor_do_not_count() -> None:
    """Scratch in a subgraph that is run twice: TFLM places it for the last run, wherever it then
    lies in the first."""
    found = Lifetimes((ArenaTensor(0, "tensor", 64, ((1, 1),)),), (), 1)
    scratch = Scratch((ScratchBuffer("scratch", 32, ((1, 1), (5, 5))),), "log")
    problem = arena_problem(found, scratch)
    assert _settled(problem, found, scratch, [0]) is None
    assert _settled(problem, found, scratch, [32]) == (96, [32, 0])


def test_a_plan_that_tflm_would_spoil_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.integrations.tflite.arena._settled", lambda *_: None)
    with pytest.raises(AllocationError, match="forgets all runs of a subgraph but the last"):
        plan_arena(lifetimes(parse_model(shared_bodies().bytes())), UNKNOWN)


def test_the_planner_of_tflm_takes_the_largest_first_and_of_equal_ones_the_last() -> None:
    requests = [
        Request(32, 0, 1),
        Request(64, 1, 2),
        Request(32, 1, 3),
        Request(16, 0, 3, 32),
        Request(16, 5, 6),
    ]
    offsets = online_offsets(requests)
    # The planned one is at 32; 64 bytes find no gap below it; of the two of 32 bytes the second
    # takes the gap.
    assert offsets == [112, 48, 0, 32, 0]
    assert head_of(requests, offsets) == 144
    assert (online_offsets([]), head_of([], [])) == ([], 0)


def test_a_model_without_anything_to_plan_gets_a_plan_of_nothing() -> None:
    model = Model()
    main = model.subgraph()
    main.tensor((2,), "float32", [1, 2])
    parsed = parse_model(model.bytes())
    found = lifetimes(parsed)
    plan = plan_arena(found, UNKNOWN)
    assert (plan.head, plan.head_before, plan.growth, plan.status) == (0, 0, 0, "optimal")
    assert plan_in(with_plan(parsed, plan_entries(found, plan.offsets))) == (-1,)
