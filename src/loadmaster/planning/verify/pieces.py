"""Checks of operators in pieces: they make their result once, parts hold their storage once, what a
job reads of a storage is one box, and sums are handed on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from loadmaster.planning.plan_records import PlannedJob
from loadmaster.planning.verify.boxes import (
    LARGEST,
    Box,
    held,
    hull,
    is_part,
    is_same_part,
    once,
    taken,
    text,
    volume,
    whole,
)
from loadmaster.planning.verify.facts import Facts, group_of, quoted
from loadmaster.workloads.job import OperatorInfo

_TERMS = whole((LARGEST - 1,))
"""The most that a sum is over."""


def ranges(facts: Facts) -> Iterator[str]:
    """Boxes lie inside what they are boxes of, and the operators of a piece have results of as many
    elements."""
    unsound = list(_tensor_ranges(facts))
    yield from unsound
    if not unsound:
        for job in facts.plan.jobs:
            yield from _job_ranges(job, facts.operators)
            yield from _operand_ranges(facts, job)


def _tensor_ranges(facts: Facts) -> Iterator[str]:
    """Yield tensors whose ranges are not within their shape, or whose partial sums do not begin at
    0."""
    for tensor in facts.plan.tensors:
        outer = whole(tensor.shape)
        if not is_part(tensor.ranges, outer) if tensor.ranges else min(tensor.shape, default=0) < 0:
            yield _outside(f"tensor {quoted(tensor.name)}", tensor.shape)
        begins = tensor.summed[:1] == (0,) and is_part((tensor.summed,), _TERMS)
        if tensor.summed and not (begins and tensor.ranges):
            yield (
                f"tensor {quoted(tensor.name)}: {list(tensor.summed)!s:.100} is no beginning of a"
                " sum, or it holds no part of a result"
            )


def _job_ranges(job: PlannedJob, operators: dict[tuple[str, str], OperatorInfo]) -> Iterator[str]:
    """Yield the faults of a job's piece: missing, without known operators, outside the result or
    outside the reduction."""
    label = f"job {quoted(job.name)}"
    known = [operators.get((job.network, name)) for name in job.operators]
    shapes = [operator.shape for operator in known if operator is not None]
    as_many = len({math.prod(shape) for shape in shapes}) == 1 and len(shapes) == len(known)
    shape = shapes[0] if as_many else None
    if not job.ranges:
        if job.summed:
            yield f"{label} is said to sum a part of its result, and not which part it makes"
        elif job.tiles > 1:
            yield f"{label} is a piece, and does not say which part of the result it makes"
    elif shape is None or job.tiles < 2:
        yield (
            f"{label} makes a part of a result, but its operators are not known or do not have as"
            " many elements, or it is said to be whole"
        )
    elif not is_part(job.ranges, whole(shape)):
        yield _outside(label, shape)
    elif job.summed and not is_part((job.summed,), _TERMS):
        yield f"{label} takes the part {list(job.summed)!s:.100} of a sum, which is none"


def _operand_ranges(facts: Facts, job: PlannedJob) -> Iterator[str]:
    """Yield reads outside the box that the tensor holds, and writes of less than a tensor."""
    for operand in job.reads:
        tensor = facts.tensors[operand.tensor]
        if operand.ranges and not is_part(operand.ranges, held(tensor)):
            yield (
                f"job {quoted(job.name)} reads {operand.ranges!s:.100} of {quoted(tensor.name)},"
                f" which holds {text(held(tensor))!s:.100}"
            )
    for operand in job.writes:
        if operand.ranges:
            yield f"job {quoted(job.name)} writes a part of {quoted(operand.tensor)}"


def _outside(what: str, shape: tuple[int, ...]) -> str:
    """Return the message for ranges outside of a shape."""
    return f"{what}: its ranges do not lie inside the shape {'x'.join(map(str, shape))!s:.100}"


def pieces(facts: Facts) -> Iterator[str]:
    """The pieces of an operator make every element of its result once, or every term of its sums,
    and write just what they make. O(pieces x those beside each)."""
    for (network, batch, names), jobs in facts.pieces.items():
        if not any(job.ranges for job in jobs):
            continue
        shape = facts.operators[network, names[0]].shape
        terms = _terms(jobs)
        yield from once(
            f"network {quoted(network)}, mini-batch {batch}: the pieces of operator"
            f" {quoted(names[0])}{' with the terms of their sums' if terms else ''}",
            [job.ranges + ((job.summed,) if job.summed else terms) for job in jobs if job.ranges],
            whole(shape) + terms,
        )
        for job in jobs:
            for name in {operand.tensor for operand in job.writes}:
                tensor = facts.tensors[name]
                if not is_same_part(job.ranges, shape, held(tensor), tensor.shape):
                    yield (
                        f"job {quoted(job.name)} writes {quoted(name)}, which holds another part"
                        " than the one that it makes"
                    )


def parts(facts: Facts) -> Iterator[str]:
    """The tensors that a storage lies in hold each of its elements once, and have bytes in
    proportion."""
    for key, tensors in facts.stored.items():
        if len(tensors) == 1 and not tensors[0].ranges:
            continue
        what = f"network {quoted(key[0])}: the parts of {quoted(key[1])}"
        if len({tensor.shape for tensor in tensors}) > 1:
            yield f"{what} are parts of different shapes"
            continue
        yield from once(what, [held(tensor) for tensor in tensors], whole(tensors[0].shape))
        total = sum(tensor.bytes for tensor in tensors)
        elements = sum(volume(held(tensor)) for tensor in tensors)
        for tensor in tensors:
            if abs(tensor.bytes * elements - total * volume(held(tensor))) >= elements:
                yield (
                    f"tensor {quoted(tensor.name)} has {tensor.bytes} bytes, its share of"
                    f" {quoted(key[1])} is another"
                )


def boxes_read(facts: Facts, job: PlannedJob) -> dict[str, list[Box]]:
    """What a job reads of each storage."""
    found: dict[str, list[Box]] = defaultdict(list)
    for operand in job.reads:
        tensor = facts.tensors[operand.tensor]
        if not tensor.summed:
            found[tensor.storage].append(taken(operand, tensor))
    return found


def reads(facts: Facts) -> Iterator[str]:
    """What a job reads of a storage is one box, of which it takes each element from one tensor.
    O(reads x those beside each)."""
    for job in facts.plan.jobs:
        for storage, boxes in boxes_read(facts, job).items():
            if len(boxes) > 1 and len(set(map(len, boxes))) == 1:
                what = f"job {quoted(job.name)}: the boxes that it reads of {quoted(storage)}"
                yield from once(what, boxes, hull(boxes))


def chains(facts: Facts) -> Iterator[str]:
    """Each piece of a sum hands what it has added up to the one that takes the next terms, and to
    nobody else. O(operands of pieces)."""
    width = max((core.accumulator for core in facts.plan.target.cores), default=0)
    for job in facts.plan.jobs:
        label, (first, last) = f"job {quoted(job.name)}", job.summed or (0, 0)
        read, written = facts.sums(job.reads), facts.sums(job.writes)
        for name, tensor in read.items():
            maker = facts.jobs.get(tensor.producer, job)
            found = (tensor.ranges, tensor.summed)
            if group_of(maker) != group_of(job) or found != (job.ranges, (0, first)):
                yield (
                    f"{label} reads the partial sums {quoted(name)}, which are not of the piece"
                    " before it in its chain"
                )
        if first and not read:
            yield f"{label} reads no partial sums to which it could add"
        hands_on = bool(job.summed) and (last,) < _terms(facts.pieces[group_of(job)])[0][1:]
        if len(written) != hands_on:
            yield f"{label} writes {len(written)} tensors of partial sums"
        bytes_each = max(width, -(-job.bits // 8))
        for name, tensor in written.items():
            if (tensor.ranges, tensor.summed) != (job.ranges, (0, last)):
                yield (
                    f"{label} writes {quoted(name)}, which holds other sums than those that it"
                    " makes"
                )
            elif tensor.bytes != bytes_each * volume(tensor.ranges):
                yield (
                    f"tensor {quoted(name)} has {tensor.bytes} bytes for {volume(tensor.ranges)}"
                    f" partial sums of {bytes_each} bytes each"
                )


def _terms(jobs: Iterable[PlannedJob]) -> Box:
    """Over how much an operator sums, if its pieces take parts of its sums."""
    ends = [job.summed[1] for job in jobs if job.summed]
    return ((0, max(ends)),) if ends else ()
