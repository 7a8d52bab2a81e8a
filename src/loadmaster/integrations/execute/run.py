"""Runs the jobs and copies of a plan on its memories, in any order that it allows, and compares the
outputs with those of the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadmaster.core.errors import ModelError, PlanError
from loadmaster.core.violation import Violation
from loadmaster.integrations.execute.layout import Layout, Memories
from loadmaster.integrations.execute.model import AnyArray, SourceModel, read_model, runtime
from loadmaster.integrations.execute.order import in_order
from loadmaster.integrations.execute.workspace import Workspace, unknown
from loadmaster.planning.against.model import models_of
from loadmaster.planning.against.networks import networks, operators, tensors
from loadmaster.planning.plan_records import PlannedJob, PlannedTransfer, PlanRecord
from loadmaster.planning.verify.plan import tell

FILLS = 0xFF, 0x7F, 0xFE
"""The bytes of what was never written, one after the other in the orders: floating-point elements
are no number, large, or far below zero, since an operator may hide one of these."""


@dataclass(frozen=True)
class OutputCheck:
    """An output of a mini-batch: the largest difference from the whole model's in any order, and
    the most that it may be."""

    network: str
    mini_batch: int
    output: str
    type: str
    elements: int
    difference: float
    tolerance: float


@dataclass(frozen=True)
class Execution:
    """What came of running a plan. ``width`` bytes were held for each of the plan, ``drawn``
    weights were random; ``violations`` says what differs in the first order in which anything
    does."""

    runtime: str
    orders: int
    seed: int
    jobs: int
    copies: int
    width: int
    drawn: int
    outputs: tuple[OutputCheck, ...]
    violations: tuple[Violation, ...]

    def as_json(self) -> dict[str, Any]:
        """All but the violations, in values that JSON has."""
        found = asdict(self)
        del found["violations"]
        return found


def run_plan(
    plan: PlanRecord,
    sources: Sequence[str],
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    precision: str | None = None,
    orders: int = 3,
    seed: int = 0,
) -> Execution:
    """Run a plan of ONNX models, and compare its outputs with those of the models run in one go.

    Parameters
    ----------
    plan
        A plan that holds: see :func:`loadmaster.verify`.
    sources
        ONNX files of the plan's networks, in the plan's order.
    batch, dims, precision
        With what the networks were read for the plan; see :func:`loadmaster.load`.
    orders
        In how many orders jobs and copies are run: the first begins with what the plan starts last,
        as far as that may begin, the others are random.
    seed
        Inputs, orders, and weights that a file lacks follow from it.

    Raises
    ------
    ModelError
        If a file cannot be read, or has an operator that cannot be run.
    PlanError
        If the plan is not one of these models.
    """
    generator = np.random.default_rng(seed)
    if len(sources) != len(plan.networks):
        names = ", ".join(repr(network.name) for network in plan.networks)
        raise PlanError(
            f"the plan is of the networks {names}, and there are {len(sources)} models: give one"
            " for each, in this order"
        )
    models = [
        read_model(source, network, generator, batch, dims or {}, precision)
        for source, network in zip(sources, plan.networks, strict=True)
    ]
    against = models_of([model.graph for model in models])
    for check in (networks, operators, tensors):
        if found := tell("model", check(plan, against)):
            raise PlanError(f"the plan is not one of these models: {found[0].message}")
    return _Executor(plan, models, generator).execution(orders, seed)


class _Executor:
    def __init__(
        self, plan: PlanRecord, models: Sequence[SourceModel], generator: np.random.Generator
    ) -> None:
        self._plan, self._generator = plan, generator
        self._models = {model.network.name: model for model in models}
        self._layout = Layout(plan, self._models)
        self._inputs = {
            (model.network.name, batch): model.inputs(generator)
            for model in models
            for batch in range(model.network.mini_batches)
        }
        self._due = {key: self._models[key[0]].whole(own) for key, own in self._inputs.items()}
        self._checks: dict[tuple[str, int, str], OutputCheck] = {}

    def execution(self, orders: int, seed: int) -> Execution:
        found: list[Violation] = []
        for number in range(orders):
            where = f"order {number + 1} of seed {seed}"
            found += [Violation("run", f"{where}: {text}") for text in self._run(number)]
            if found:
                break
        jobs = len(self._plan.jobs)
        return Execution(
            runtime(),
            orders,
            seed,
            jobs,
            sum(not each.job for each in self._plan.transfers),
            self._layout.width,
            sum(model.drawn for model in self._models.values()),
            tuple(self._checks.values()),
            tuple(found),
        )

    def _run(self, number: int) -> Iterator[str]:
        """Run everything in an order, and say what differs: the results of the first job of which
        they do, and outputs."""
        byte, differs = FILLS[number % len(FILLS)], False
        memories = self._layout.memories(byte)
        doing = "the plan cannot be run"
        try:
            self._provide(memories)
            for task in in_order(self._plan, number, self._generator):
                doing = f"{task.name!r} cannot be run"
                if isinstance(task, PlannedTransfer):
                    size = task.bytes * self._layout.width
                    source, destination = (
                        self._layout.bytes_at(memories, task.tensor, memory, task.start, task.end)
                        for memory in (task.source, task.destination)
                    )
                    destination[:size] = source[:size]
                    continue
                for text in self._run_job(task, memories, byte):
                    if not differs:
                        yield f"job {task.name!r} makes {text}"
                    differs = True
            yield from self._outputs(memories)
        except ModelError:
            raise
        except Exception as error:
            # What a wrong plan lets a job read can make any operator fail.
            yield f"{doing}: {' '.join(str(error).split())[:300]}"

    def _provide(self, memories: Memories) -> None:
        """Put weights and inputs where they are at first."""
        layout, main = self._layout, self._plan.target.main.name
        for tensor in self._plan.tensors:
            if tensor.producer:
                continue
            array = self._inputs[tensor.network, tensor.mini_batch].get(tensor.storage)
            if array is None:
                model = self._models[tensor.network]
                turned = layout.turned(tensor.network, tensor.storage)
                array = model.constant(turned.node.result.name if turned else tensor.storage)
                array = array.reshape(model.values[tensor.storage].shape)
            layout.store(layout.bytes_at(memories, tensor.name, main, 0, 0), array, tensor)

    def _run_job(self, job: PlannedJob, memories: Memories, byte: int) -> Iterator[str]:
        """Load what a job reads, run its operators on it, store what it writes, and say what
        differs."""
        layout, model, times = self._layout, self._models[job.network], (job.start, job.end)
        work = Workspace(model, layout, byte)
        reads, writes = (
            [
                (
                    layout.bytes_at(memories, each.tensor, each.memory, *times),
                    layout.tensors[each.tensor],
                )
                for each in operands
            ]
            for operands in (job.reads, job.writes)
        )
        for data, tensor in reads:
            layout.load(data, work.array(tensor.storage, bool(tensor.summed)), tensor)
        ends = not any(tensor.summed for _, tensor in writes)
        first, *others = job.operators
        shape = model.steps[first].node.result.shape
        work.run(first, shape, job.ranges, (*job.summed, ends) if job.summed else ())
        for name in others if ends else ():
            work.run(name, shape, job.ranges, ())
        for data, tensor in writes:
            made = work.array(tensor.storage)
            layout.store(data, made, tensor)
            due = self._due[job.network, job.mini_batch].get(tensor.storage)
            if due is not None and not tensor.summed:
                mine = due.copy()
                layout.view(mine, tensor)[...] = layout.view(made, tensor)
                text = differences(mine, due)[2]
                if text:
                    yield f"other elements of {tensor.storage!r} than the whole model: {text}"

    def _outputs(self, memories: Memories) -> Iterator[str]:
        """Compare outputs, note the largest differences, and say what differs."""
        layout, main = self._layout, self._plan.target.main.name
        end = self._plan.metrics.makespan.value
        for (network, batch), due in self._due.items():
            model = self._models[network]
            for name in model.graph.outputs:
                storage = model.graph.tensors[name].storage
                if storage not in model.network.outputs:
                    continue
                found = unknown(model.values[storage], 0xFF)
                for tensor in layout.parts[network, storage, batch]:
                    data = layout.bytes_at(memories, tensor.name, main, end, end)
                    layout.load(data, found, tensor)
                its = due[name]
                difference, tolerance, text = differences(found.reshape(its.shape), its)
                key = network, batch, name
                if key in self._checks:
                    difference = max(difference, self._checks[key].difference)
                self._checks[key] = OutputCheck(
                    *key, str(its.dtype), its.size, difference, tolerance
                )
                if text:
                    yield (
                        f"output {name!r} of network {network!r}, mini-batch {batch}, differs from"
                        f" the whole model's: {text}"
                    )


def differences(mine: AnyArray, its: AnyArray) -> tuple[float, float, str]:
    """The largest difference of elements that are numbers, the most that it may be, and what
    differs more; empty if nothing does."""
    tolerance, wrong = 0.0, mine != its
    with np.errstate(all="ignore"):
        apart = np.abs(mine.astype(np.float64) - its.astype(np.float64))
        if its.dtype.kind == "f":
            largest = np.abs(its[np.isfinite(its)]).max(initial=0)
            # Half of the digits, since sums in parts are rounded in another order.
            tolerance = float(np.sqrt(np.finfo(its.dtype).eps) * largest)
            wrong &= ~(apart <= tolerance) & ~(np.isnan(mine) & np.isnan(its))
    largest = float(apart[np.isfinite(apart)].max(initial=0))
    if not wrong.any():
        return largest, tolerance, ""
    at = np.unravel_index(int(wrong.argmax()), its.shape)
    place = [int(each) for each in at]
    text = f"{wrong.sum()} of {wrong.size} elements, first {place}, {mine[at]} instead of {its[at]}"
    return largest, tolerance, text
