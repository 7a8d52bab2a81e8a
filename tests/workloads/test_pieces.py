"""Random graphs in random pieces against the whole: a piece that sees its ranges alone makes its part of the result, bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.networks import npu
from tests.support.pieces_reference import Network, piece

import loadmaster as lm
from loadmaster.core.deadline import NO_DEADLINE
from loadmaster.core.interrupts import Interrupts
from loadmaster.core.progress import no_progress
from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.energy_model import EnergyModel
from loadmaster.planning.assemble import assemble
from loadmaster.planning.goal import goal_of
from loadmaster.planning.plan import Plan
from loadmaster.planning.scheduling.goal_bounds import goal_bounds
from loadmaster.planning.workload_planner import WorkloadPlanner
from loadmaster.targets.hardware import Target
from loadmaster.workloads.frontends.onnx.graph_builder import build_graph
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.grid import Divisible, Grid, divisible
from loadmaster.workloads.lowering.instantiate import Cuts, lower
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import WHOLE


class Builder:
    """Adds nodes one by one; every tensor's shape is known from running what is there so far."""

    def __init__(self, seed: int, opset: int = 17) -> None:
        self.generator = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.values: dict[str, np.ndarray] = {}
        self.inputs: dict[str, np.ndarray] = {}

    def choose(self, *options):
        return options[int(self.generator.integers(len(options)))]

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.values[name] = self.generator.uniform(-1, 1, shape).astype(np.float32)
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        self.values[name] = array
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.generator.uniform(-1, 1, shape).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, kind: str, *operands: str, **attributes) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, operands, [name], f"{kind}_{name}", **attributes))
        network = Network(self.model(name))
        self.values |= network.run(self.nodes[-1].name, self.values)
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def model(self, *outputs: str) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in self.inputs.items()]
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "random", inputs, results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)


def convolution(build: Builder, x: str) -> str:
    channels = build.shape(x)[1]
    groups = build.choose(*[g for g in (1, 2, channels) if channels % g == 0])
    each, taps, dilation = build.choose(1, 2), build.choose(1, 2, 3), build.choose(1, 2)
    if min(build.shape(x)[2:]) <= (taps - 1) * dilation:
        taps = 1
    pads = [build.choose(0, 1) for _ in range(4)] if taps > 1 else [0] * 4
    weight = build.weight(each * groups, channels // groups, taps, taps)
    return build.add("Conv", x, weight, strides=[build.choose(1, 2), build.choose(1, 2)], pads=pads, dilations=[dilation] * 2, group=groups)


def transposed(build: Builder, x: str) -> str:
    channels = build.shape(x)[1]
    groups = build.choose(*[g for g in (1, 2, channels) if channels % g == 0])
    taps, dilation = build.choose(2, 3), build.choose(1, 2)
    weight = build.weight(channels, build.choose(1, 2), taps, taps)
    bias = [] if build.choose(True, False) else [build.weight(build.shape(weight)[1] * groups)]
    pads = [build.choose(0, 1) for _ in range(4)]
    return build.add(
        "ConvTranspose", x, weight, *bias, strides=[build.choose(1, 2, 3), 2], pads=pads, dilations=[dilation, 1], group=groups
    )


def pooling(build: Builder, x: str) -> str:
    size = build.choose(1, 2) if min(build.shape(x)[2:]) > 1 else 1
    return build.add(build.choose("MaxPool", "AveragePool"), x, kernel_shape=[size, size], strides=[build.choose(1, 2), 1])


def resized(build: Builder, x: str) -> str:
    none = build.constant(np.zeros(0, np.float32))
    scales = build.constant(np.array([1, 1, build.choose(0.5, 1.5, 2.0), build.choose(1.0, 3.0)], np.float32))
    mode, coordinates = build.choose("nearest", "linear", "cubic"), build.choose("half_pixel", "asymmetric")
    return build.add("Resize", x, none, scales, mode=mode, coordinate_transformation_mode=coordinates)


def concatenated(build: Builder, x: str) -> str:
    axis = int(build.generator.integers(4))
    other = build.input(*(build.choose(1, 2, 3) if d == axis else n for d, n in enumerate(build.shape(x))))
    return build.add("Concat", *build.choose((x, other), (other, x), (x, other, x)), axis=axis)


def residual(build: Builder, x: str) -> str:
    again = build.add("Relu", x)
    return build.add("Add", x, again)


def scaled(build: Builder, x: str) -> str:
    shape = tuple(build.choose(1, n) for n in build.shape(x))
    return build.add("Mul", x, build.weight(*shape[build.choose(0, 1, 2) :]))


def expanded(build: Builder, x: str) -> str:
    mean = build.add("ReduceMean", x, axes=[build.choose(1, 2, 3)])
    return build.add("Sub", x, build.add("Expand", mean, build.ints(*build.shape(x))))


def padded(build: Builder, x: str) -> str:
    mode = build.choose("constant", "edge")
    return build.add("Pad", x, build.ints(0, 0, build.choose(0, 2), 1, 0, build.choose(0, 1), 0, 0), mode=mode)


def sliced(build: Builder, x: str) -> str:
    axis = int(build.generator.integers(4))
    n = build.shape(x)[axis]
    step = build.choose(1, 2)
    return build.add("Slice", x, build.ints(0 if n == 1 else 1), build.ints(n), build.ints(axis), build.ints(step))


def normalised(build: Builder, x: str) -> str:
    kind = build.choose("Softmax", "LayerNormalization", "LpNormalization")
    if kind == "LayerNormalization":
        width = build.shape(x)[-1]
        return build.add(kind, x, build.weight(width), build.weight(width))
    return build.add(kind, x, axis=build.choose(1, 2, 3))


def folded(build: Builder, x: str) -> str:
    """Through a reshape and a transpose and back."""
    n, c, h, w = build.shape(x)
    turned = build.add("Transpose", build.add("Reshape", x, build.ints(n, c, h * w)), perm=[0, 2, 1])
    back = build.add("Transpose", build.add("Relu", turned), perm=[0, 2, 1])
    return build.add("Reshape", back, build.ints(n, c, h, w))


def attention(build: Builder, x: str) -> str:
    """Heads from channels, MatMul - Softmax - MatMul, and back to the layout of the operand."""
    n, c, h, w = build.shape(x)
    heads, width = build.choose(1, 2), 4
    tokens = build.add("Transpose", build.add("Reshape", x, build.ints(n, c, h * w)), perm=[0, 2, 1])
    split = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        projected = build.add("MatMul", tokens, build.weight(c, heads * width))
        split.append(build.add("Transpose", build.add("Reshape", projected, build.ints(n, h * w, heads, width)), perm=order))
    scores = build.add("Softmax", build.add("MatMul", split[0], split[1]), axis=-1)
    mixed = build.add("Transpose", build.add("MatMul", scores, split[2]), perm=[0, 2, 1, 3])
    result = build.add("MatMul", build.add("Reshape", mixed, build.ints(n, h * w, heads * width)), build.weight(heads * width, c))
    return build.add("Reshape", build.add("Transpose", result, perm=[0, 2, 1]), build.ints(n, c, h, w))


LAYERS = (
    *(convolution, transposed, pooling, resized, concatenated, residual, scaled, expanded, padded, sliced, normalised, folded, attention),
)


def network(seed: int, layers=LAYERS, length: int = 4) -> tuple[Builder, onnx.ModelProto, Graph]:
    build = Builder(seed)
    last = build.input(build.choose(1, 2), build.choose(2, 4), build.choose(3, 5), build.choose(3, 4))
    for _ in range(length):
        following = build.choose(*layers)(build, last)
        # Sizes stay those that a naive evaluation bears.
        last = following if np.prod(build.shape(following)) <= 1500 else last
    model = build.model(build.add("Relu", last))
    return build, model, build_graph(model, name="random", source="test", batch=None, dims={}, precision=None)


def grid_of(form: Divisible, generator: np.random.Generator) -> Grid:
    axes = generator.permutation(form.axes)[: generator.integers(1, 3)].tolist()
    return form.grid({axis: int(generator.integers(2, 5)) for axis in axes})


def check(seed: int, build: Builder, model: onnx.ModelProto, graph: Graph) -> int:
    """Every piece of every operator that can be cut, and the number of these."""
    runs, values = Network(model), build.values
    cut = 0
    for group in fuse(graph):
        form = divisible(graph, group)
        if form is None:
            continue
        cut += 1
        grid = grid_of(form, build.generator)
        count = np.zeros(form.shape, int)
        for box in grid.boxes:
            index = tuple(slice(first, last) for first, last in box)
            count[index] += 1
            found = piece(runs, graph, group, form, box, values, build.generator)
            for write in group.writes:
                np.testing.assert_allclose(
                    found[write.tensor][index], values[write.tensor][index], 1e-4, 1e-5, err_msg=f"{seed} {group.main.kind} {box}"
                )
        assert (count == 1).all(), "every element is made once"
    return cut


@pytest.mark.parametrize("layer", LAYERS, ids=[layer.__name__ for layer in LAYERS])
def test_a_piece_of_every_layer_needs_its_ranges_only(layer) -> None:
    assert sum(check(seed, *network(seed, (layer,), 1)) for seed in range(4))


@pytest.mark.parametrize("seed", range(12))
def test_pieces_of_random_graphs_need_their_ranges_only(seed: int) -> None:
    build, model, graph = network(100 + seed)
    assert check(seed, build, model, graph)
    assert check(seed, build, model, without_updates(graph)), "the same where copies are left out"


def test_products_read_what_was_moved_where_it_lies() -> None:
    """Attention reads transposed keys, and convolutions the parts of a concatenation: neither is copied."""
    left_out = 0
    for seed in range(20):
        build, model, graph = network(300 + seed, (attention, concatenated, convolution), 3)
        single = without_updates(graph)
        left_out += len(graph.ops) - len(single.ops)
        assert check(seed, build, model, single)
        workload = lower([graph], npu())
        assert lm.verify(planned(workload, npu())) == ()
    assert left_out > 20


def planned(workload: Workload, target: Target) -> Plan:
    """A plan of these jobs."""
    table, goal = job_table(workload, target), goal_of(workload, "throughput", None, {}, {})
    energy = EnergyModel(table, energy_rates(target))
    planner = WorkloadPlanner(workload, table, target, goal, energy, 0, 2, 0, NO_DEADLINE, no_progress, Interrupts())
    bounds = goal_bounds(workload, table, target, energy.rates, goal)
    return assemble(workload, table, target, energy.rates, goal, planner.best(), bounds, 0, [])


@pytest.mark.parametrize("seed", range(12))
def test_plans_of_random_graphs_in_random_pieces_hold(seed: int) -> None:
    """What the verifier works out by itself from the windows agrees with what pieces read."""
    build, _, graph = network(200 + seed)
    single = without_updates(graph)
    forms = [divisible(single, group) for group in fuse(single)]
    cuts = Cuts([WHOLE if form is None else grid_of(form, build.generator) for form in forms])
    workload = lower([graph], npu(), cuts=[cuts])
    assert any(job.ranges for job in workload.jobs)
    assert sum(job.macs for job in workload.jobs) >= graph.macs
    assert lm.verify(planned(workload, npu())) == ()
