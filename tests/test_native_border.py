"""What native code is handed is checked where it is handed over: no array of a wrong length or type
reaches a kernel."""

import numpy as np
import pytest
from tests.support.cut_networks import convolutions
from tests.support.lowered import joint_problem
from tests.support.networks import npu, residual_chain
from tests.support.sequences import random_sequence

import loadmaster as lm
from loadmaster import _native
from loadmaster.placement.autotm.sequence_arrays import sequence_arrays
from loadmaster.planning.cutting.banding import AxisView
from loadmaster.planning.joint.problem import JointOptions
from loadmaster.workloads.lowering.pieces import DivisibleNetwork


def arguments_of(name, make, monkeypatch):
    """What ``make`` hands to a native class."""
    given = {}
    native = getattr(_native, name)

    def record(**arguments):
        given.update(arguments)
        return native(**arguments)

    monkeypatch.setattr(_native, name, record)
    make()
    monkeypatch.undo()
    return given


def search():
    machine = npu(2)
    return joint_problem(lm.lower([residual_chain(1)], machine), machine)


def placement_problem():
    sequence = random_sequence(3)
    return sequence_arrays(sequence, np.full(len(sequence.kernels), 40)).problem


def group():
    return {name: np.ones((3, 2)) for name in ("latency", "demand", "energy")}


def buffers():
    """Two plain buffers, one in two sections."""
    columns = {"size": [4, 3], "alignment": [1, 2], "pin": [-1, 0], "first": [0, 2, 3]}
    columns |= {"begin": [0, 4, 1], "end": [2, 6, 5], "low": [0, 1, 0], "high": [4, 3, 3]}
    return {name: np.array(column, dtype=np.int64) for name, column in columns.items()}


def band_problem():
    return AxisView(DivisibleNetwork.of(convolutions(), npu(2))).problem


MADE = {"JointProblem": search, "PlacementProblem": placement_problem}
MADE["BandProblem"] = band_problem


@pytest.fixture(params=[*MADE, "MappingGroup", "PackingProblem"])
def case(request, monkeypatch):
    if request.param == "MappingGroup":
        return _native.MappingGroup, group()
    if request.param == "PackingProblem":
        return _native.PackingProblem, buffers()
    made = arguments_of(request.param, MADE[request.param], monkeypatch)
    return getattr(_native, request.param), made


def test_every_array_must_have_its_length_and_its_type(case):
    native, arguments = case
    native(**arguments)
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    assert len(arrays) >= 3
    for name, value in arrays.items():
        with pytest.raises(ValueError, match=r"\w"):
            native(**arguments | {name: np.concatenate([value, value[-1:]])})
        for wrong in (value.astype(str), value[..., None]):
            with pytest.raises(TypeError):
                native(**arguments | {name: wrong})
        with pytest.raises(TypeError):
            native(
                **{key: other for key, other in arguments.items() if key != name}, wrong_name=value
            )


def test_numbers_out_of_range_are_refused(case):
    native, arguments = case
    for name, value in arguments.items():
        if native is _native.PackingProblem and name == "begin":
            continue  # instants may be negative
        if isinstance(value, np.ndarray) and value.dtype in (np.float64, np.int64) and value.size:
            low = value.copy()
            low.reshape(-1)[-1] = -2
            with pytest.raises(ValueError, match=r"\w"):
                native(**arguments | {name: low})
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            with pytest.raises(ValueError, match=r"\w"):
                native(**arguments | {name: -1})


@pytest.mark.parametrize("weights", [(0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0)])
def test_an_objective_that_says_nothing_is_refused(weights):
    with pytest.raises(ValueError, match="objective"):
        _native.MappingGroup(**group(), time_weight=weights[0], energy_weight=weights[1])


def test_an_objective_of_energy_needs_energies():
    with pytest.raises(ValueError, match="energies"):
        _native.MappingGroup(np.ones((3, 2)), np.ones((3, 2)), energy_weight=1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"filled_fraction": (1.0, 1.1)},
        {"prefetch_fraction": -0.1},
        {"prefetch_fraction": float("nan")},
        {"release_delay_positions": -1},
        {"streamed_share": -0.1},
        {"streamed_share": float("nan")},
        {"link_prices": (1.0, -1.0)},
        {"link_load_limit": 0.0},
        {"core_wait_ratio": float("nan")},
        {"energy_weight": float("inf")},
        {"fetch_lead": -0.1},
        {"fetch_lead": float("nan")},
        {"core_prices": (1.0,)},
        {"core_prices": (1.0, 0.0)},
        {"core_prices": (1.0, float("nan"))},
        {"streamed_tensors": (-1,)},
        {"streamed_tensors": (1 << 40,)},
    ],
)
def test_options_out_of_range_are_refused(options):
    problem, (name,) = search(), options
    with pytest.raises(ValueError, match=name):
        problem.evaluate(np.arange(len(problem.workload.jobs)), JointOptions(**options))


@pytest.mark.parametrize("wrong", ["short", "twice", "beyond"])
def test_an_order_that_is_not_one_is_refused(wrong):
    problem = search()
    order = np.arange(len(problem.workload.jobs))
    order = {"short": order[:-1], "twice": np.zeros_like(order), "beyond": order + 1}[wrong]
    with pytest.raises(ValueError, match="order"):
        problem.evaluate(order, JointOptions())


def test_results_are_read_only():
    problem = search()
    run = problem.evaluate(np.arange(len(problem.workload.jobs)), JointOptions()).run
    with pytest.raises(AttributeError):
        run.makespan = 0
