"""Which jobs write and read each tensor instance."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.workloads.job import Job, TensorInstance


def readers(jobs: Sequence[Job], tensors: Sequence[TensorInstance]) -> list[tuple[int, ...]]:
    """For every tensor, the jobs that read it, in workload order."""
    index = {tensor.name: i for i, tensor in enumerate(tensors)}
    lists: list[list[int]] = [[] for _ in tensors]
    for number, job in enumerate(jobs):
        for operand in job.reads:
            own = lists[index[operand.tensor]]
            if not own or own[-1] != number:
                own.append(number)
    return [tuple(users) for users in lists]
