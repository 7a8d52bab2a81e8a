"""Checks of sums that are added up in parts: each chain of pieces sums over everything once, in
order, and nobody else sees its sums."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from loadmaster.planning.plan_records import PlannedJob, PlannedTensor
from loadmaster.planning.verify.facts import Facts, quoted
from loadmaster.planning.verify.pieces import (
    Box,
    adds_only,
    is_within,
    needed_part,
    operators_of,
    renamed,
    sum_extent,
    text,
    volume,
)
from loadmaster.workloads.job import OperandNeeds, OperatorInfo


def recomputed(facts: Facts) -> Iterator[str]:
    """What a piece makes beside what it owns is read: by pieces that read no other part of the
    result. O(reads of pieces)."""
    makers = {operand.tensor: job for job in facts.plan.jobs if job.owns for operand in job.writes}
    if not makers:
        return
    operators = operators_of(facts)
    reached: dict[str, Box] = {job.name: job.owns for job in makers.values()}
    for job in facts.plan.jobs:
        if not job.ranges:
            continue
        read = defaultdict(set)
        for operand in job.reads:
            read[facts.tensors[operand.tensor].storage].add(operand.tensor)
        for needs in (
            needs for name in job.operators for needs in operators[job.network, name].operands
        ):
            if len(read[needs.tensor]) == 1 and (maker := makers.get(min(read[needs.tensor]))):
                shape = operators[maker.network, maker.operators[0]].shape
                reached[maker.name] = _with(reached[maker.name], _needed(job, needs, shape))
    for job in facts.plan.jobs:
        if job.owns and not is_within(job.ranges, reached.get(job.name, job.owns)):
            yield (
                f"job {quoted(job.name)} makes {text(job.ranges)} and owns {text(job.owns)}: nobody"
                " reads all of the rest"
            )


def _needed(job: PlannedJob, needs: OperandNeeds, shape: tuple[int, ...]) -> Box:
    """What a piece needs of a storage of a shape; nothing where that cannot be said, which other
    checks report."""
    box = needed_part(needs, job.ranges, job.summed)
    if not volume(box) or math.prod(shape) != math.prod(needs.shape):
        return ()
    return box if shape == needs.shape else renamed(box, needs.shape, shape)


def _with(part: Box, other: Box) -> Box:
    return (
        [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(part, other, strict=True)]
        if other
        else part
    )


def sound(facts: Facts) -> Iterator[str]:
    """Ranges of sums lie inside what the first operator of a piece sums over; sums are made by
    pieces, of a part of the result."""
    operators = operators_of(facts)
    for job in facts.plan.jobs:
        if not job.summed:
            continue
        known = job.operators and (job.network, job.operators[0]) in operators
        extent = sum_extent(operators[job.network, job.operators[0]]) if known else 0
        if not extent:
            yield (
                f"job {quoted(job.name)} takes a part of a sum, and its operator does not say over"
                " what it sums"
            )
        elif not _inside(job.summed, extent) or not job.ranges or job.owns:
            yield (
                f"job {quoted(job.name)} takes the part {list(job.summed)!s:.100} of a sum, which"
                f" is none of the {extent} in it"
            )
    for tensor in facts.plan.tensors:
        if tensor.summed and (
            not _inside(tensor.summed, tensor.summed[-1]) or tensor.summed[0] or not tensor.ranges
        ):
            yield (
                f"tensor {quoted(tensor.name)}: {list(tensor.summed)!s:.100} is no beginning of a"
                " sum, or it holds no part of a result"
            )


def chains(facts: Facts) -> Iterator[str]:
    """The pieces of a chain take ranges that follow one another, and each hands its sums to the
    next alone. O(operands of pieces)."""
    operators = operators_of(facts)
    sums = {tensor.name: tensor for tensor in facts.plan.tensors if tensor.summed}
    width = max((core.accumulator for core in facts.plan.target.cores), default=0)
    found: dict[tuple[object, ...], list[PlannedJob]] = defaultdict(list)
    taken: dict[str, str] = {}
    for job in facts.plan.jobs:
        if job.summed:
            found[job.network, job.mini_batch, job.operators, job.ranges].append(job)
    for links in found.values():
        links.sort(key=lambda job: job.summed)
        yield from _in_turn(links, operators[links[0].network, links[0].operators[0]])
        for before, job in zip((None, *links), links, strict=False):
            if before is not None:
                taken |= {
                    operand.tensor: job.name for operand in before.writes if operand.tensor in sums
                }
    for job in facts.plan.jobs:
        read = {operand.tensor for operand in job.reads if operand.tensor in sums}
        written = {operand.tensor for operand in job.writes if operand.tensor in sums}
        for name in sorted(read):
            if taken.get(name) != job.name:
                yield (
                    f"job {quoted(job.name)} reads the partial sums {quoted(name)}, which are not"
                    " of the piece before it in its chain"
                )
        if job.summed and job.summed[0] and not read:
            yield f"job {quoted(job.name)} reads no partial sums to which it could add"
        if len(written) != (1 if adds_only(job, operators) else 0):
            yield f"job {quoted(job.name)} writes {len(written)} tensors of partial sums"
        for name in sorted(written):
            yield from _left(job, sums[name], max(width, -(-job.bits // 8)))


def _inside(summed: Sequence[int], extent: int) -> bool:
    return len(summed) == 2 and 0 <= summed[0] < summed[1] <= extent


def _in_turn(links: Sequence[PlannedJob], operator: OperatorInfo) -> Iterator[str]:
    """A chain begins with the first element of the sum, leaves none out, takes none twice, and ends
    with the last."""
    at = 0
    for job in links:
        if job.summed[0] != at:
            yield (
                f"job {quoted(job.name)} sums from {job.summed[0]} on, the pieces of"
                f" {text(job.ranges)} before it up to {at}"
            )
        at = job.summed[1]
    if at != sum_extent(operator):
        yield (
            f"the pieces of {text(links[0].ranges)} of operator {quoted(operator.name)} sum up to"
            f" {at} of {sum_extent(operator)}"
        )


def _left(job: PlannedJob, tensor: PlannedTensor, width: int) -> Iterator[str]:
    """Sums that a piece leaves are those of its part of the result, over all so far, as wide as an
    accumulator."""
    if (tensor.ranges, tensor.summed[1]) != (job.ranges, job.summed[-1] if job.summed else 0):
        yield (
            f"job {quoted(job.name)} writes {quoted(tensor.name)}, which holds other sums than"
            " those that it makes"
        )
    elif tensor.bytes != width * volume(tensor.ranges):
        yield (
            f"tensor {quoted(tensor.name)} has {tensor.bytes} bytes for {volume(tensor.ranges)}"
            f" partial sums of {width} bytes each"
        )
