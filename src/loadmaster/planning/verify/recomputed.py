"""Checks of what pieces make beside what they own: others own it, so that making it again is only
right where somebody reads it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from loadmaster.planning.plan_records import PlannedJob
from loadmaster.planning.verify.facts import Facts, quoted
from loadmaster.planning.verify.pieces import (
    Box,
    is_within,
    needed_part,
    operators_of,
    renamed,
    text,
    volume,
)
from loadmaster.workloads.job import OperandNeeds


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
