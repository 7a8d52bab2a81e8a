"""Runs the jobs and copies of a plan on its memories, in any order that it allows, and compares the
outputs with those of the whole model."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise

import numpy as np

from loadmaster.core.arrays import Array
from loadmaster.core.errors import ModelError, PlanError, Violation
from loadmaster.integrations.execute.execution import Execution, OutputCheck
from loadmaster.integrations.execute.layout import Layout, Memories
from loadmaster.integrations.execute.model import SourceModel, read_model, runtime
from loadmaster.integrations.execute.workspace import Workspace, unknown
from loadmaster.planning.against.model import models_of
from loadmaster.planning.against.networks import networks, operators, tensors
from loadmaster.planning.plan_records import PlannedJob, PlannedTransfer, PlanRecord
from loadmaster.planning.verify.plan import tell


def in_order(
    plan: PlanRecord, number: int, generator: np.random.Generator
) -> Iterator[PlannedJob | PlannedTransfer]:
    """Jobs and copies, each after all that it waits for and after the job before it on its core.
    O(waits + tasks log tasks).

    In orders of odd number whoever may run does so at random. In the others one core after the
    other runs as far ahead as it may, each of them the first in some, and copies run at random
    between: that way few orders show that a wait is missing.

    Raises
    ------
    CycleError
        If some wait for one another.
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
"""The bytes of what was never written, one after the other in the orders: floating-point elements
of any width are large, not so large, or far below zero, since an operator may hide one of these.
All are numbers: kernels multiply elements that do not count by zero, as when they resize."""


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
        In how many orders jobs and copies are run.
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
    violations: list[Violation] = []
    with warnings.catch_warnings():
        # Of elements that are not known anything may become.
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
    def __init__(
        self, plan: PlanRecord, models: Sequence[SourceModel], generator: np.random.Generator
    ) -> None:
        self._plan = plan
        self._generator = generator
        self._main = plan.target.main.name
        self._models = {model.network.name: model for model in models}
        self.layout = Layout(plan, self._models)
        batches = [(batch.network, batch.number) for batch in plan.mini_batches]
        self._inputs = {key: self._models[key[0]].inputs(generator) for key in batches}
        self._due = {key: self._models[key[0]].whole(own) for key, own in self._inputs.items()}

    def run(self, number: int, outputs: list[OutputCheck]) -> Iterator[str]:
        """Run everything in an order, and say what differs: results of the first job of which
        they do, and outputs."""
        byte, layout, wrong = FILLS[number % len(FILLS)], self.layout, False
        memories = layout.memories(byte)
        doing = "the plan"
        try:
            self._provide(memories)
            for task in in_order(self._plan, number, self._generator):
                doing = repr(task.name)
                if isinstance(task, PlannedJob):
                    found = self._run_job(task, memories, byte)
                    if found and not wrong:
                        wrong = True
                        yield f"job {doing} makes other elements than the whole model: {found}"
                    continue
                source, destination = (
                    layout.bytes_at(memories, task.tensor, memory, task.start, task.end)[
                        : task.bytes * layout.width
                    ]
                    for memory in (task.source, task.destination)
                )
                destination[:] = source
            yield from self._compare(memories, outputs)
        except ModelError:
            raise
        except Exception as error:
            # What a wrong plan lets a job read can make any operator fail.
            yield f"{doing} cannot be run: {' '.join(str(error).split())[:300]}"

    def _provide(self, memories: Memories) -> None:
        """Put weights and inputs where they are at first."""
        layout = self.layout
        for tensor in self._plan.tensors:
            if tensor.producer:
                continue
            name, model = tensor.storage, self._models[tensor.network]
            array = self._inputs[tensor.network, tensor.mini_batch].get(name)
            if array is None:
                turned = layout.turned(tensor.network, name)
                array = model.constant(turned.node.result.name if turned else name)
            layout.store(layout.bytes_at(memories, tensor.name, self._main, 0, 0), array, tensor)

    def _run_job(self, job: PlannedJob, memories: Memories, byte: int) -> str:
        """Load what a job reads, run its operators on it, store what it writes, and return what
        differs."""
        layout, model = self.layout, self._models[job.network]
        work, times = Workspace(model, layout, byte), (job.start, job.end)
        for operand in job.reads:
            tensor = layout.tensors[operand.tensor]
            array = work.array(tensor.storage, bool(tensor.summed))
            data = layout.bytes_at(memories, tensor.name, operand.memory, *times)
            layout.load(data, array, tensor, operand.ranges)
        written = [layout.tensors[operand.tensor] for operand in job.writes]
        ends = not any(tensor.summed for tensor in written)
        shape = model.flows[job.operators[0]].shape
        terms = (*job.summed, ends) if job.summed else ()
        for name in job.operators if ends else job.operators[:1]:
            work.run(name, shape, job.ranges, terms)
            terms = ()
        found = ""
        for operand, tensor in zip(job.writes, written, strict=True):
            made = work.array(tensor.storage)
            layout.store(
                layout.bytes_at(memories, tensor.name, operand.memory, *times), made, tensor
            )
            due = self._due[job.network, job.mini_batch].get(tensor.storage)
            if found or due is None or not ends:
                continue
            if not np.array_equal(layout.view(made, tensor), layout.view(due, tensor)):
                mine = due.copy()
                layout.view(mine, tensor)[...] = layout.view(made, tensor)
                found = differences(mine, due)[2]
        return found

    def _compare(self, memories: Memories, outputs: list[OutputCheck]) -> Iterator[str]:
        """Compare outputs with the whole model's, and say what differs."""
        layout, end = self.layout, self._plan.metrics.makespan.value
        for (network, batch), due in self._due.items():
            model = self._models[network]
            for name in model.graph.outputs:
                storage = model.graph.tensors[name].storage
                if storage not in model.network.outputs:
                    continue
                its = due.get(storage, due[name])
                found = unknown(model.values[storage], 0xFF)
                for tensor in layout.parts[network, storage, batch]:
                    layout.load(
                        layout.bytes_at(memories, tensor.name, self._main, end, end), found, tensor
                    )
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
    """The largest difference of elements that are numbers, the most that it may be, and what
    differs more; empty if nothing does."""
    tolerance, wrong = 0.0, mine != its
    apart = np.abs(mine.astype(np.float64) - its.astype(np.float64))
    if its.dtype.kind == "f":
        # Half of the digits, since sums in parts are rounded in another order.
        most = np.abs(its[np.isfinite(its)]).max(initial=0)
        tolerance = float(np.sqrt(np.finfo(its.dtype).eps) * most)
        wrong &= ~(apart <= tolerance) & ~(np.isnan(mine) & np.isnan(its))
    largest = float(apart[np.isfinite(apart)].max(initial=0))
    if not wrong.any():
        return largest, tolerance, ""
    at = np.unravel_index(int(wrong.argmax()), its.shape)
    text = f"{wrong.sum()} of {wrong.size} elements, the first at {[int(each) for each in at]},"
    return largest, tolerance, f"{text} which is {mine[at]} instead of {its[at]}"
