"""What pieces of operators cost on every core, before a cut of them has been chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints, grouped_sums
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.job_times import JobTable, link_seconds
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Access, Graph
from loadmaster.workloads.job import Job, Operand, Role, TensorInstance, Workload
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Divisible, needed_boxes, piece_of
from loadmaster.workloads.lowering.pieces import operand_roles
from loadmaster.workloads.window import volumes


def signature(graph: Graph, group: FusedOp, form: Divisible) -> object:
    """What the costs of an operator's pieces follow from, names left out."""
    names: dict[str, str] = {}

    def alias(name: str) -> str:
        return names.setdefault(name, str(len(names)))

    nests = tuple(
        replace(n, input=alias(n.input), weight=alias(n.weight), output=alias(n.output))
        for n in group.nests
    )
    reads = tuple(
        (
            alias(storage),
            graph.tensors[storage].bytes,
            tuple((graph.tensors[name].shape, windows) for name, windows in uses),
        )
        for storage, uses in form.uses.items()
    )
    writes = tuple(
        (alias(access.tensor), graph.tensors[access.tensor].bytes) for access in group.writes
    )
    return form.shape, form.step, group.elements, group.main.bits, nests, reads, writes


def canonical_index(
    graph: Graph, fused: Sequence[FusedOp], forms: Sequence[Divisible | None]
) -> list[int]:
    """For every operator the first that is like it; one that does not divide is like no other.
    O(operators + operands)."""
    known: dict[object, int] = {}
    return [
        number if form is None else known.setdefault(signature(graph, group, form), number)
        for number, (group, form) in enumerate(zip(fused, forms, strict=True))
    ]


@dataclass(frozen=True)
class PieceCosts:
    """Seconds of pieces: ``alone[p, c]`` on each core, ``link[p]`` of the near memory's link, and
    ``stream[p]`` of the main one's.

    Operands are in the fast memory where all of a piece's fit there, else they are streamed from
    the main memory.
    """

    alone: Floats
    link: Floats
    stream: Floats

    def __getitem__(self, pieces: slice | list[int]) -> PieceCosts:
        """Costs of some of the pieces."""
        return PieceCosts(self.alone[pieces], self.link[pieces], self.stream[pieces])

    @staticmethod
    def of(table: JobTable, target: Target) -> PieceCosts:
        """Those of the jobs of a table."""
        job, jobs = table.operand_job, len(table.compute)
        least = grouped_sums(job, table.moved.min(axis=1), jobs)
        near = target.fast or target.main
        streams = (least > near.capacity)[job]
        seconds = np.where(
            streams[:, None], link_seconds(table, target.main), link_seconds(table, near)
        )
        link = grouped_sums(job, np.where(streams, 0.0, seconds.min(axis=1)), jobs)
        stream = grouped_sums(job, np.where(streams, seconds.min(axis=1), 0.0), jobs)
        return PieceCosts(np.maximum(table.compute, grouped_sums(job, seconds, jobs)), link, stream)


@dataclass(frozen=True)
class Pieces:
    """Parts of the result of an operator: boxes, shape (pieces, dimensions, 2)."""

    group: FusedOp
    form: Divisible
    boxes: Ints


def piece_costs(graph: Graph, pieces: Sequence[Pieces], target: Target) -> PieceCosts:
    """Costs of pieces of a network's operators, whatever they are cut with. Linear in their
    operands."""
    return PieceCosts.of(piece_table(graph, pieces, target), target)


def piece_table(graph: Graph, pieces: Sequence[Pieces], target: Target) -> JobTable:
    """The job table of pieces of a network's operators, a row each. Linear in their operands."""
    return job_table(piece_workload(graph, pieces), target)


def piece_workload(graph: Graph, pieces: Sequence[Pieces]) -> Workload:
    """Pieces of a network's operators as jobs, which read and write tensors as large as all of
    each. Linear in their operands."""
    jobs = tuple(job for several in pieces for job in _jobs(graph, several))
    names = dict.fromkeys(operand.tensor for job in jobs for operand in (*job.reads, *job.writes))
    tensors = tuple(
        TensorInstance(name, "", name, 0, graph.tensors[name].bytes, "activation") for name in names
    )
    return Workload((), jobs, tensors)


def _jobs(graph: Graph, pieces: Pieces) -> Iterator[Job]:
    group, form = pieces.group, pieces.form
    total, reads = math.prod(form.shape), [_reads(graph, pieces, access) for access in group.reads]
    outputs = [
        (
            access.tensor,
            next((i for i, nest in enumerate(group.nests) if nest.output == access.tensor), -1),
        )
        for access in group.writes
    ]
    for number, (box, made) in enumerate(
        zip(pieces.boxes.tolist(), volumes(pieces.boxes).tolist(), strict=True)
    ):
        writes = (
            Operand(
                name,
                graph.tensors[name].bytes * made // total,
                Role.OUTPUT if nest >= 0 else Role.ONCE,
                nest,
            )
            for name, nest in outputs
        )
        yield Job(
            name=group.main.name,
            network="",
            mini_batch=0,
            kind=group.main.kind,
            operators=(group.main.name,),
            nests=tuple(piece_of(nest, form.shape, box) for nest in group.nests),
            elements=group.elements * made // total,
            bits=group.main.bits,
            reads=tuple(operand for own in reads for operand in own[number]),
            writes=tuple(writes),
            after=(),
        )


def _reads(graph: Graph, pieces: Pieces, access: Access) -> list[list[Operand]]:
    """What each piece reads of a storage."""
    tensor, roles = graph.tensors[access.tensor], operand_roles(pieces.group.nests, access)
    needed = volumes(needed_boxes(pieces.form, graph, access.tensor, pieces.boxes)).tolist()
    sizes = (-(-tensor.bytes * count // max(1, math.prod(tensor.shape))) for count in needed)
    return [
        [Operand(access.tensor, size, role, nest) for role, nest in roles if size] for size in sizes
    ]
