"""Runs the jobs and copies of a plan on its memories, in any order that it allows, and compares the
outputs with those of the whole model."""

from __future__ import annotations

import heapq
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise

import numpy as np

from loadmaster.core.arrays import Array
from loadmaster.core.errors import ModelError, PlanError, Violation
from loadmaster.integrations.execute.execution import Execution, OutputCheck
from loadmaster.integrations.execute.layout import Layout
from loadmaster.integrations.execute.model import SourceModel, read_model, runtime
from loadmaster.integrations.execute.workspace import Workspace, unknown
from loadmaster.planning.against.model import models_of
from loadmaster.planning.against.networks import networks, operators, tensors
from loadmaster.planning.plan_records import PlannedJob, PlannedTransfer, PlanRecord
from loadmaster.planning.verify.plan import tell
from loadmaster.workloads.frontends.frontend import LoadOptions


def in_order(
    plan: PlanRecord, number: int, generator: np.random.Generator
) -> Iterator[PlannedJob | PlannedTransfer]:
    """Yield jobs and copies in an order that keeps all waits and the order of jobs on each core.
    O(waits + tasks log tasks).

    Orders of odd ``number`` choose among ready tasks at random. The others let one core run as far
    ahead as possible, then the next, beginning with a different core each time, with copies at
    random between. So a few orders suffice to expose a missing wait.

    Raises
    ------
    CycleError
        If tasks wait for one another.
    """
    tasks: dict[str, PlannedJob | PlannedTransfer] = {job.name: job for job in plan.jobs}
    tasks |= {copy.name: copy for copy in plan.transfers if not copy.job}
    waits = TopologicalSorter({name: task.after for name, task in tasks.items()})
    cores: dict[str, list[PlannedJob]] = {core.name: [] for core in plan.target.cores}
    for job in sorted(plan.jobs, key=lambda job: (job.start, job.end)):
        cores[job.core].append(job)
    rank = {name: float(generator.random()) for name in tasks}
    for place, own in enumerate(cores.values()):
        for before, job in pairwise(own):
            waits.add(job.name, before.name)
        if number % 2 == 0:
            ahead = ((place + number // 2) % len(cores) + 0.5) / len(cores)
            rank |= dict.fromkeys((job.name for job in own), ahead)
    waits.prepare()
    ready: list[tuple[float, str]] = []
    while waits.is_active():
        for name in waits.get_ready():
            heapq.heappush(ready, (rank[name], name))
        name = heapq.heappop(ready)[1]
        yield tasks[name]
        waits.done(name)


FILLS = 0x7B, 0x4D, 0xFB
"""Bytes that fill unwritten memory, in turn for each order: floating-point elements of any width
are very large, large or very negative, because an operator may hide one of these. None is NaN or
infinite, because some kernels (resize) multiply unused elements by zero."""


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
    """Run a plan of ONNX models, and compare its outputs with those of the whole models.

    Parameters
    ----------
    plan
        A valid plan; see :func:`loadmaster.verify`.
    sources
        ONNX files of the plan's networks, in the plan's order.
    batch, dims, precision
        Options with which the networks were read for the plan; see :func:`loadmaster.load`.
    orders
        Number of orders in which jobs and copies are run.
    seed
        Seed of inputs, orders, and weights that are missing in a file.

    Raises
    ------
    ModelError
        If a file cannot be read, or has an operator that cannot be run.
    PlanError
        If the plan is for other models.
    """
    generator = np.random.default_rng(seed)
    if len(sources) != len(plan.networks):
        names = ", ".join(repr(network.name) for network in plan.networks)
        raise PlanError(
            f"the plan is of the networks {names}, and there are {len(sources)} models: give one"
            " for each, in this order"
        )
    models = [
        read_model(source, network, generator, LoadOptions(batch, dims or {}, precision))
        for source, network in zip(sources, plan.networks, strict=True)
    ]
    against = models_of([model.graph for model in models])
    for check in (networks, operators, tensors):
        if found := tell("model", check(plan, against)):
            raise PlanError(
                f"the plan is not one of these models, in this order: {found[0].message}"
            )
    violations: list[Violation] = []
    with warnings.catch_warnings():
        # Unwritten elements may overflow.
        warnings.simplefilter("ignore", RuntimeWarning)
        executor = _Executor(plan, models, generator)
        for number in range(orders):
            outputs: list[OutputCheck] = []
            violations += [
                Violation("run", f"order {number + 1} of seed {seed}: {text}")
                for text in executor.run(number, outputs)
            ]
            if violations:
                break
    return Execution(
        runtime(),
        orders,
        seed,
        len(plan.jobs),
        sum(not each.job for each in plan.transfers),
        executor.layout.width,
        sum(model.drawn for model in models),
        tuple(outputs),
        tuple(violations),
    )


class _Executor:
    """Runs a plan's jobs and copies in byte arrays that stand for the machine's memories, and
    compares the results with those of the whole models."""

    def __init__(
        self, plan: PlanRecord, models: Sequence[SourceModel], generator: np.random.Generator
    ) -> None:
        self._plan = plan
        self._generator = generator
        self._main = plan.target.main.name
        self._models = {model.network.name: model for model in models}
        self.layout = Layout(plan, self._models)
        self._inputs = {
            (batch.network, batch.number): self._models[batch.network].inputs(generator)
            for batch in plan.mini_batches
        }
        self._due = {
            key: own | self._models[key[0]].whole(own) for key, own in self._inputs.items()
        }

    def run(self, number: int, outputs: list[OutputCheck]) -> Iterator[str]:
        """Run all jobs and copies in order ``number``. Yields descriptions of the first job with
        wrong results and of wrong outputs, and appends the checks of outputs to ``outputs``."""
        byte, layout, wrong = FILLS[number % len(FILLS)], self.layout, False
        layout.fill(byte)
        doing = "the plan"
        try:
            self._provide()
            for task in in_order(self._plan, number, self._generator):
                doing = repr(task.name)
                if isinstance(task, PlannedJob):
                    found = self._run_job(task, byte)
                    if found and not wrong:
                        wrong = True
                        yield f"job {doing} makes other elements than the whole model: {found}"
                    continue
                source, destination = (
                    layout.bytes_at(task.tensor, memory, task.start, task.end)[
                        : task.bytes * layout.width
                    ]
                    for memory in (task.source, task.destination)
                )
                destination[:] = source
            yield from self._compare(outputs)
        except ModelError:
            raise
        except Exception as error:
            # With a wrong plan an operator may read anything, and fail.
            yield f"{doing} cannot be run: {' '.join(str(error).split())[:300]}"

    def _provide(self) -> None:
        """Store weights and inputs at their first addresses."""
        layout = self.layout
        for tensor in self._plan.tensors:
            if tensor.producer:
                continue
            name, model = tensor.storage, self._models[tensor.network]
            array = self._inputs[tensor.network, tensor.mini_batch].get(name)
            if array is None:
                turned = layout.turned(tensor.network, name)
                array = model.constant(turned.node.result.name if turned else name)
            layout.store(array, tensor, self._main, (0, 0))

    def _run_job(self, job: PlannedJob, byte: int) -> str:
        """Load a job's operands, run its operators, and store its results; return a description of
        the first wrong result, empty if none is wrong."""
        layout, model = self.layout, self._models[job.network]
        # ONNX Runtime has running sums across channels, which keep what unknown ones have added.
        byte = 0 if model.steps[job.operators[0]].node.kind == "LRN" else byte
        work, times = Workspace(model, layout, byte), (job.start, job.end)
        for operand in job.reads:
            tensor = layout.tensors[operand.tensor]
            array = work.array(tensor.storage, bool(tensor.summed))
            layout.load(array, tensor, operand.memory, times, operand.ranges)
        written = [layout.tensors[operand.tensor] for operand in job.writes]
        ends = not any(tensor.summed for tensor in written)
        shape = model.flows[job.operators[0]].shape
        terms = (*job.summed, ends) if job.summed else ()
        whole = self._due[job.network, job.mini_batch] if ends else {}
        for name in job.operators if ends else job.operators[:1]:
            work.run(name, shape, job.ranges, terms)
            terms = ()
            # Rounding would add up, and change what is quantised, compared or cast after it.
            for storage in whole.keys() & model.flows[name].writes:
                made, its = work.arrays[storage], whole[storage]
                if made.shape == its.shape and storage not in model.network.outputs:
                    near = np.abs(made.astype(np.float64) - its) <= tolerance_of(its)
                    work.arrays[storage] = np.where(near, its, made)
        found = ""
        for operand, tensor in zip(job.writes, written, strict=True):
            made = work.array(tensor.storage)
            layout.store(made, tensor, operand.memory, times)
            due = whole.get(tensor.storage)
            if not (
                found
                or due is None
                or np.array_equal(layout.view(made, tensor), layout.view(due, tensor))
            ):
                result = due.copy()
                layout.view(result, tensor)[...] = layout.view(made, tensor)
                found = differences(result, due)[2]
        return found

    def _compare(self, outputs: list[OutputCheck]) -> Iterator[str]:
        """Compare outputs with the whole model's: append the checks, and yield descriptions of
        wrong outputs."""
        layout, end = self.layout, self._plan.metrics.makespan.value
        for (network, batch), due in self._due.items():
            model = self._models[network]
            for name in model.graph.outputs:
                storage = model.graph.tensors[name].storage
                if storage not in model.network.outputs:
                    continue
                its = due.get(storage, due[name])
                found = unknown(model.values[storage], 0xFF)
                parts = layout.parts
                # A constant output is stored once.
                for tensor in parts[network, storage, batch] or parts[network, storage, 0]:
                    layout.load(found, tensor, self._main, (end, end))
                difference, tolerance, text = differences(found.reshape(its.shape), its)
                outputs.append(
                    OutputCheck(
                        network, batch, name, str(its.dtype), its.size, difference, tolerance
                    )
                )
                if text:
                    yield (
                        f"output {name!r} of network {network!r}, mini-batch {batch}, differs from"
                        f" the whole model's: {text}"
                    )


def differences(mine: Array, its: Array) -> tuple[float, float, str]:
    """Return the largest difference of finite elements of an array from the expected one, the
    tolerance, and a description of elements that exceed it; empty if none does."""
    tolerance, wrong = tolerance_of(its), mine != its
    apart = np.abs(mine.astype(np.float64) - its.astype(np.float64))
    if "float" in its.dtype.name:
        wrong &= ~(apart <= tolerance) & ~(np.isnan(mine) & np.isnan(its))
    largest = float(apart[np.isfinite(apart)].max(initial=0))
    if not wrong.any():
        return largest, tolerance, ""
    at = np.unravel_index(int(wrong.argmax()), its.shape)
    text = f"{wrong.sum()} of {wrong.size} elements, the first at {[int(each) for each in at]},"
    return largest, tolerance, f"{text} which is {mine[at]} instead of {its[at]}"


def tolerance_of(due: Array) -> float:
    """Return the difference from an expected array that rounding explains: half of the digits,
    because partial sums are rounded in another order."""
    if "float" not in due.dtype.name:
        return 0.0
    most = np.abs(due[np.isfinite(due)]).max(initial=0)
    return math.sqrt(np.spacing(due.dtype.type(1))) * float(most)
