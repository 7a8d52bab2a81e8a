"""Mini-batches after the first, which differ from it in nothing but names and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from operator import attrgetter
from typing import Any

from loadmaster.core.record_columns import records_of
from loadmaster.workloads.job import Job, Operand, TensorInstance


def prefix_of(network: str, mini_batch: int) -> str:
    """What the names of jobs and tensors of one of several mini-batches begin with."""
    return f"{network}#{mini_batch}"


@dataclass(frozen=True)
class FirstMiniBatch:
    """The jobs and tensors of the first mini-batch of a network; weights are shared by all."""

    network: str
    jobs: Sequence[Job]
    tensors: Sequence[TensorInstance]

    def again(self, mini_batches: int) -> tuple[list[Job], list[TensorInstance]]:
        """Those of all others.

        Loop nests are the very objects of the first, so that one sees without looking at them that
        they are the same. O(operands).
        """
        cut, own = (
            len(prefix_of(self.network, 0)),
            [tensor for tensor in self.tensors if tensor.kind != "weight"],
        )
        operands = [operand for job in self.jobs for operand in (*job.reads, *job.writes)]
        sides = list(
            pairwise(
                accumulate(
                    (len(side) for job in self.jobs for side in (job.reads, job.writes)), initial=0
                )
            )
        )
        of_jobs, of_tensors, of_operands = (
            _columns(self.jobs, Job),
            _columns(own, TensorInstance),
            _columns(operands, Operand),
        )
        jobs, tensors = [], []
        for mini_batch in range(1, mini_batches):
            prefix, later = prefix_of(self.network, mini_batch), mini_batch * len(self.jobs)
            renamed = {tensor.name: prefix + tensor.name[cut:] for tensor in own}
            of_operands["tensor"] = [
                renamed.get(operand.tensor, operand.tensor) for operand in operands
            ]
            made = records_of(Operand, len(operands), *of_operands.values())
            of_jobs["name"] = [prefix + job.name[cut:] for job in self.jobs]
            of_jobs["reads"] = [tuple(made[first:last]) for first, last in sides[::2]]
            of_jobs["writes"] = [tuple(made[first:last]) for first, last in sides[1::2]]
            of_jobs["after"] = [
                tuple([before + later for before in job.after]) for job in self.jobs
            ]
            of_tensors["name"] = renamed.values()
            of_tensors["producer"] = [
                tensor.producer if tensor.producer < 0 else tensor.producer + later
                for tensor in own
            ]
            of_jobs["mini_batch"] = of_tensors["mini_batch"] = repeat(mini_batch)
            jobs += records_of(Job, len(self.jobs), *of_jobs.values())
            tensors += records_of(TensorInstance, len(own), *of_tensors.values())
        return jobs, tensors


def _columns(records: Sequence[Any], kind: Any) -> dict[str, Any]:
    """What records hold in each of their fields."""
    return {name: list(map(attrgetter(name), records)) for name in kind.__dataclass_fields__}
