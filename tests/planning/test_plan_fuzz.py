"""Plans of random networks on random machines, with random options, against both verifiers;
``LOADMASTER_FUZZ=100`` tries more."""

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.support import random_networks as layers
from tests.support.cut_networks import convolutions
from tests.support.efforts import SEPARATE, TEST, verified
from tests.support.fuzzing import FUZZ
from tests.support.networks import GraphBuilder, npu, staged_machine
from tests.support.onnx_builder import graph_of
from tests.support.tiny_plans import tiny_network

import loadmaster as lm
from loadmaster.planning.plan import plan_from_text, plan_to_text
from loadmaster.targets.hardware import CopyEngine, Core, Memory, Style, Target
from loadmaster.workloads.graph import OpClass, TensorKind

_LAYERS = (
    layers.convolution,
    layers.transposed,
    layers.pooling,
    layers.resized,
    layers.residual,
    layers.scaled,
    layers.expanded,
    layers.normalised,
    layers.folded,
    layers.attention,
    layers.gathered,
)
RATES = ({8: 1.0, 16: 0.5, 32: 0.25}, {8: 2.0, 16: 1.0, 32: 0.3}, {8: 1.0, 16: 1.0, 32: 1.0})
OPTIONS = {
    "mini_batches": [1, 1, 2, 3],
    "seed": range(5),
    "effort": [SEPARATE, TEST, TEST],
    "cut": ["auto", "auto", "none"],
    "objective": ["throughput", "throughput", "latency", "energy", "edp"],
}
MAIN = {
    "capacity": [2**24, 2**24, 2**24, 20_000, 100_000],
    "alignment": [64, 64, 1, 16],
    "energy": [None, 2e-11],
    "burst": [64, 1],
}
FAST = {
    "capacity": [64, 300, 1000, 4000, 20_000, 65_536, 2**20],
    "alignment": [64, 1],
    "energy": [None, 1e-12],
}
CORE = {"macs_per_cycle": RATES, "job_overhead": [0.0, 0.0, 1e-7]}
ROOFLINE = CORE | {
    "rows": [1],
    "columns": [1],
    "clock": [1e9, 1e11],
    "lanes": [1, 16],
    "buffer": [0, 0, 8192],
}
ARRAY = CORE | {
    "rows": [4, 8, 32],
    "columns": [4, 16, 64],
    "clock": [1e8, 1e9],
    "lanes": [4, 16],
    "buffer": [1024, 4096, 16_384, 131_072],
    "flexible": [False, False, False, False, True],
    "noc_bandwidth": [None, None, 1e9, 3.3e10],
    "noc_latency": [0.0, 0.0, 1e-8],
    "weight_loading": [None, None, 1e9],
    "accumulator": [4, 2],
    "efficiency": [{}, {"Conv": 0.7}],
    "energy": [{}, {"mac_int8": 1e-12, "buffer": 3e-13}],
}


def drawn(rng, choices):
    """One of the choices for each name."""
    return {name: rng.choice(values) for name, values in choices.items()}


def problem(seed):
    """Networks, a machine, and options of the planner."""
    rng = random.Random(seed)
    graphs = [_network(rng, name) for name in "abc"[: rng.choice([1, 1, 1, 2, 2, 3])]]
    target = (
        staged_machine(rng.choice([1500, 20_000, 10**6])) if rng.random() < 0.1 else _machine(rng)
    )
    options = drawn(rng, OPTIONS)
    for name, times in (("deadlines", [1e-7, 1e-5, 1e-3]), ("periods", [1e-7, 1e-6, 1e-5])):
        options[name] = {graph.name: rng.choice(times) for graph in graphs if rng.random() < 0.2}
    return graphs, target, options


def _network(rng, name):
    kind = rng.randrange(4)
    if kind == 0:
        return _by_hand(rng, name)
    if kind == 1:
        return _of_layers(rng, name)
    if kind == 2:
        return replace(
            tiny_network(np.random.default_rng(rng.randrange(10**6)), rng.randint(1, 5)), name=name
        )
    strides = tuple(rng.choice([1, 2]) for _ in range(rng.randint(1, 4)))
    return convolutions(
        name,
        rows=rng.choice([4, 7, 12, 24]),
        channels=rng.choice([2, 8, 32]),
        strides=strides,
        skip=rng.random() < 0.5,
    )


def _by_hand(rng, name):
    """Operators without windows, with results that nobody uses."""
    build = GraphBuilder(name)
    channels, size = rng.choice([3, 8, 17, 64]), rng.choice([1, 5, 8, 16])
    known = [build.tensor("x", (channels, size, size), TensorKind.INPUT)]
    for number in range(rng.randint(1, 8)):
        one, other, kind = rng.choice(known), rng.choice(known), rng.randrange(4)
        if kind == 0:
            known.append(build.elementwise(f"t{number}", one, other))
        elif kind == 1:
            build.tensor(f"t{number}", (channels, size, size))
            known.append(build.op("Odd", OpClass.UNKNOWN, [one, other], f"t{number}"))
        else:
            known.append(build.conv(f"t{number}", one, channels, rng.choice([1, 3])))
    return build.graph(*rng.sample(known[1:], min(len(known) - 1, rng.randint(1, 2))))


def _of_layers(rng, name):
    shape = tuple(rng.choice(sizes) for sizes in ((1, 2), (1, 2, 4, 8), (1, 3, 6, 12), (1, 4, 9)))
    build = layers.random_network(rng.randrange(10**6), _LAYERS, rng.randint(1, 5), 4000, shape)
    return build.graph(name, rng.choice(["int8", "fp16", "fp32"]))


def _machine(rng):
    speed, copy = rng.choice([1e7, 1e8, 1e9, 1e10, 3.3e11]), None
    memories = [_memory(rng, "dram", speed, MAIN)]
    if rng.random() < 0.85:
        near = speed * rng.choice([0.5, 1.0, 4.0, 16.0])
        memories.append(_memory(rng, "sp", near, FAST))
        if rng.random() < 0.8:
            rate = rng.choice([speed, speed * 0.4, near])
            copy = CopyEngine((rate, rate), (rate, rate * rng.choice([1, 0.5])), rng.random() < 0.3)
    cores = []
    for number in range(rng.randint(1, 4)):
        style = rng.choice(list(Style))
        choices = ROOFLINE if style is Style.ROOFLINE else ARRAY
        cores.append(Core(f"c{number}", style, **drawn(rng, choices)))
    power = rng.choice([0.0, 0.0, 0.01])
    return Target("random", "for tests", tuple(cores), tuple(memories), copy, power)


def _memory(rng, name, speed, choices):
    """Writing takes as long as reading, or longer."""
    rates = {"read_bandwidth": speed, "write_bandwidth": speed * rng.choice([1, 1, 0.4])}
    return Memory(name, **rates, **drawn(rng, choices))


@pytest.mark.slow
@pytest.mark.parametrize("group", range(4))
def test_whatever_is_planned_holds_for_its_networks_and_its_machine(group):
    planned = 0
    for seed in range(group, int(48 * FUZZ), 4):
        graphs, target, options = problem(seed)
        try:
            plan = lm.plan(graphs, target, **options)
        except lm.CapacityError:
            continue
        planned += 1
        assert lm.verify_against(plan, graphs, target) == (), seed
        assert plan_from_text(plan_to_text(plan), "plan.json") == plan, seed
        assert (plan.status == "optimal") == (
            plan.objective.value == plan.objective.lower_bound and not plan.missed
        ), seed
    assert planned


@pytest.mark.parametrize(
    ("attributes", "image", "weight"),
    [
        # The only row of the result lies in the padding above the only row of the operand.
        (
            "pads=[2,0,0,0], strides=[3,4], dilations=[3,1], group=4, kernel_shape=[1,3]",
            "float[1,8,1,5] x",
            "float[8,2,1,3] w",
        ),
        # Both columns of the result lie in the padding beside the only column of the operand.
        ("pads=[0,1,0,1], strides=[1,2]", "float[1,8,64,1] x", "float[8,8,1,1] w"),
    ],
    ids=["whole", "pieces"],
)
def test_a_convolution_that_sees_padding_alone_is_planned(attributes, image, weight):
    graph = graph_of(f"y = Conv<{attributes}>(x, w); z = Relu(y)", image, "z", weight)
    plan = verified([graph], npu(2, 2000))
    assert any("x" in operand.tensor for job in plan.jobs for operand in job.reads)


def test_an_operator_of_which_nothing_is_known_nor_needed_is_planned():
    nodes = "y = Conv<kernel_shape=[1, 1]>(x, k); odd = acme.Odd(y, w)"
    weights = "float[8,8,1,1] k, float[6] w"
    graph = graph_of(nodes, "float[1,8,7,7] x", "y", weights)
    verified([graph], lm.target("edge-npu"), effort=SEPARATE)
