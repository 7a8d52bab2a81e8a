"""Checks of jobs against the cost model: arithmetic, bytes over the core's port, tiles in private
buffers, energy."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

from loadmaster.core.units import FEMTOJOULES, PICOSECONDS, format_joules, format_seconds
from loadmaster.cost.job_table import JobTable
from loadmaster.planning.against.work import Rebuilt
from loadmaster.planning.plan_records import PlannedJob, PlanRecord
from loadmaster.planning.verify.facts import ps, quoted

Key = tuple[str, str, int]
"""Core, tensor, picosecond at which a job starts."""


class Costs:
    """A plan's jobs beside what they cost; rows of the table are the rebuilt jobs. Linear in
    operands."""

    def __init__(self, plan: PlanRecord, rebuilt: Rebuilt, table: JobTable) -> None:
        self._plan, self._rebuilt, self._table = plan, rebuilt, table
        self._core = {core.name: number for number, core in enumerate(plan.target.cores)}
        self._moved: list[Counter[tuple[str, bool]]] = [Counter() for _ in rebuilt.planned]
        self._tiles: list[Counter[str]] = [Counter() for _ in rebuilt.planned]
        self._add_operands()

    def compute(self) -> Iterator[str]:
        """Jobs take the arithmetic that the model counts, rounded to a picosecond."""
        for number, job in enumerate(self._rebuilt.planned):
            due = int(self._table.compute[number, self._core[job.core]] * PICOSECONDS)
            lasts = ps(job.end) - ps(job.start)
            if not min(due, lasts) - 1 <= ps(job.compute) <= due + 1 or lasts + 1 < due:
                says = (
                    f"takes {format_seconds(job.compute)} of arithmetic in"
                    f" {format_seconds(lasts / PICOSECONDS)}"
                )
                yield (
                    f"job {quoted(job.name)} {says}, on {job.core} it needs"
                    f" {format_seconds(due / PICOSECONDS)}"
                )

    def energy(self) -> Iterator[str]:
        """Jobs take the energy inside their cores that the model counts, to a femtojoule."""
        for number, job in enumerate(self._rebuilt.planned):
            due = float(self._table.energy[number, self._core[job.core]])
            if not math.isclose(job.energy, due, rel_tol=1e-9, abs_tol=1.5 / FEMTOJOULES):
                yield (
                    f"job {quoted(job.name)} is said to take {format_joules(job.energy)}, on"
                    f" {job.core} it takes {format_joules(due)}"
                )

    def bytes(self) -> Iterator[str]:
        """Jobs read and write the tensors that they must, and as many bytes of each as cross the
        core's port."""
        for number, job in enumerate(self._rebuilt.planned):
            for write, operands in ((False, job.reads), (True, job.writes)):
                due = {
                    name: size
                    for (name, writes), size in self._moved[number].items()
                    if writes == write
                }
                verb = "write" if write else "read"
                yield from (
                    f"job {quoted(job.name)} does not {verb} {quoted(name)}, of which it needs"
                    f" {due[name]} bytes"
                    for name in sorted(due.keys() - {operand.tensor for operand in operands})
                )
                for operand in operands:
                    if operand.bytes != due.get(operand.tensor, 0):
                        says = f"{verb}s {operand.bytes} bytes of {quoted(operand.tensor)}"
                        yield (
                            f"job {quoted(job.name)} {says}, on {job.core} it must {verb}"
                            f" {due.get(operand.tensor, 0)}"
                        )

    def tiles(self) -> Iterator[str]:
        """Private buffers hold the tiles that go with those bytes."""
        stated: dict[Key, Counter[int]] = defaultdict(Counter)
        for allocation in self._plan.allocations:
            if allocation.memory in self._core:
                stated[allocation.memory, allocation.tensor, ps(allocation.start)][
                    allocation.bytes
                ] += 1
        buffers = {core.name: core.buffer for core in self._plan.target.cores}
        for number, job in enumerate(self._rebuilt.planned):
            for name, size in self._tiles[number].items() if buffers[job.core] else ():
                if size not in stated[job.core, name, ps(job.start)]:
                    yield (
                        f"job {quoted(job.name)}: the tile of {quoted(name)} in {job.core} takes"
                        f" {size} bytes, the plan says otherwise"
                    )

    def _add_operands(self) -> None:
        table, tensors = self._table, self._rebuilt.workload.tensors
        columns = (
            table.operand_job.tolist(),
            table.operand_tensor.tolist(),
            table.operand_write.tolist(),
        )
        for row, (number, tensor, write) in enumerate(zip(*columns, strict=True)):
            core, name = self._core[self._planned(number).core], tensors[tensor].name
            self._moved[number][name, write] += int(table.moved[row, core])
            self._tiles[number][name] += int(table.tile[row, core])

    def _planned(self, number: int) -> PlannedJob:
        return self._rebuilt.planned[number]
