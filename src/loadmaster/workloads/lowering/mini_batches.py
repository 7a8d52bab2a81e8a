"""Mini-batches after the first, which differ from it in nothing but names and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.workloads.job import Job, Operand, TensorInstance


def prefix_of(network: str, mini_batch: int) -> str:
    """What the names of jobs and tensors of one of several mini-batches begin with."""
    return f"{network}#{mini_batch}"


def again(jobs: Sequence[Job], tensors: Sequence[TensorInstance], network: str, mini_batch: int) -> tuple[list[Job], list[TensorInstance]]:
    """The jobs and tensors of mini-batch ``mini_batch`` of a network, whose first has those given; weights are shared.

    Loop nests are the very objects of the first, so that one sees without looking at them that they are the same. O(operands).
    """
    prefix, cut, later = prefix_of(network, mini_batch), len(prefix_of(network, 0)), mini_batch * len(jobs)
    own = [tensor for tensor in tensors if tensor.kind != "weight"]
    renamed = {tensor.name: prefix + tensor.name[cut:] for tensor in own}

    def operands(of_first: Sequence[Operand]) -> tuple[Operand, ...]:
        return tuple([Operand(renamed[o.tensor], o.bytes, o.role, o.nest) if o.tensor in renamed else o for o in of_first])

    made = [
        Job(
            prefix + job.name[cut:],
            network,
            mini_batch,
            job.kind,
            job.operators,
            job.nests,
            job.elements,
            job.bits,
            operands(job.reads),
            operands(job.writes),
            tuple([before + later for before in job.after]),
            job.tile,
            job.tiles,
            job.ranges,
            job.owns,
            job.summed,
        )
        for job in jobs
    ]
    copies = [
        TensorInstance(
            renamed[tensor.name],
            network,
            tensor.storage,
            mini_batch,
            tensor.bytes,
            tensor.kind,
            tensor.is_output,
            tensor.producer if tensor.producer < 0 else tensor.producer + later,
            tensor.shape,
            tensor.ranges,
            tensor.channels,
            tensor.summed,
        )
        for tensor in own
    ]
    return made, copies
