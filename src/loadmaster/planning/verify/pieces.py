"""Checks of operators in pieces: they own their result once, parts hold their storage, and each
piece reads what it needs.

Which part of an operand a part of the result needs is worked out here from the windows that the
plan states.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from loadmaster.planning.plan_records import PlannedJob, PlannedTensor, PlanRecord
from loadmaster.planning.verify.facts import Facts, quoted
from loadmaster.workloads.job import OperandNeeds, OperandWindow, OperatorInfo

Box = Sequence[Sequence[int]]
_LARGEST = 2**63


def ranges(facts: Facts) -> Iterator[str]:
    """Ranges lie inside what they are ranges of; operators of a piece have one shape, and windows
    name dimensions of it."""
    operators = operators_of(facts)
    for tensor in facts.plan.tensors:
        if tensor.ranges or tensor.shape:
            yield from _inside(f"tensor {quoted(tensor.name)}", tensor.ranges, tensor.shape)
        if tensor.channels:
            yield from _channels_inside(tensor)
    for (_, name), operator in operators.items():
        yield from _sound(f"operator {quoted(name)}", operator)
    for job in facts.plan.jobs:
        shapes = {
            operators[job.network, name].shape
            for name in job.operators
            if (job.network, name) in operators
        }
        if job.ranges and not all((job.network, name) in operators for name in job.operators):
            yield (
                f"job {quoted(job.name)} makes a part of the result of operators that its network"
                " does not have"
            )
        elif job.ranges and (len(shapes) != 1 or job.tiles < 2):
            yield (
                f"job {quoted(job.name)} makes a part of a result, but its operators do not have"
                " one shape, or it is said to be whole"
            )
        elif job.ranges:
            yield from _inside(f"job {quoted(job.name)}", job.ranges, next(iter(shapes)))
            if job.owns:
                yield from _inside(
                    f"job {quoted(job.name)}, what it owns", job.owns, next(iter(shapes))
                )
        elif job.owns:
            yield (
                f"job {quoted(job.name)} is said to own a part of its result, and not which part it"
                " makes"
            )
        elif job.tiles > 1 and any(shapes):
            yield (
                f"job {quoted(job.name)} is a piece, and does not say which part of the result it"
                " makes"
            )


def pieces(facts: Facts) -> Iterator[str]:
    """The pieces of an operator own every element of its result once, and write just what they
    make. O(pieces x those beside each)."""
    operators = operators_of(facts)
    groups: dict[tuple[str, int, tuple[str, ...]], list[PlannedJob]] = defaultdict(list)
    for job in facts.plan.jobs:
        if job.ranges:
            groups[job.network, job.mini_batch, job.operators].append(job)
    for (network, batch, names), jobs in groups.items():
        shape = operators[network, names[0]].shape
        what = (
            f"network {quoted(network)}, mini-batch {batch}: the pieces of operator"
            f" {quoted(names[0])}"
        )
        yield from _once(
            what, [owned_part(job) for job in jobs if not adds_only(job, operators)], shape
        )
        for job in jobs:
            if not is_within(owned_part(job), job.ranges):
                yield (
                    f"job {quoted(job.name)} is said to own {text(job.owns)}, of which it does not"
                    " make all"
                )
            for name in {operand.tensor for operand in job.writes}:
                tensor = facts.tensors[name]
                # The only chain of an operator makes all of its result.
                whole = job.summed and not tensor.ranges and volume(job.ranges) == math.prod(shape)
                if (tensor.shape, tensor.ranges) != (shape, job.ranges) and not whole:
                    yield (
                        f"job {quoted(job.name)} writes {quoted(name)}, which holds another part"
                        " than the one that it makes"
                    )
    for job in facts.plan.jobs:
        if len({facts.tensors[operand.tensor].channels for operand in job.writes}) > 1:
            yield f"job {quoted(job.name)} writes tensors that hold different channels"


def parts(facts: Facts) -> Iterator[str]:
    """The tensors that a storage lies in hold each of its elements, what is not recomputed once,
    and have bytes in proportion."""
    owned = owned_parts(facts.plan)
    for key, tensors in _stored(facts).items():
        what = f"network {quoted(key[0])}: the parts of {quoted(key[1])}"
        if any(tensor.channels for tensor in tensors):
            yield from _in_turn(what, tensors)
        if not any(tensor.ranges for tensor in tensors):
            continue
        if len({tensor.shape for tensor in tensors}) > 1:
            yield f"{what} are parts of different shapes"
            continue
        yield from _once(
            what, [owned.get(tensor.name, tensor.ranges) for tensor in tensors], tensors[0].shape
        )
        total, elements = (
            sum(tensor.bytes for tensor in tensors),
            sum(volume(tensor.ranges) for tensor in tensors),
        )
        for tensor in tensors:
            if abs(tensor.bytes * elements - total * volume(tensor.ranges)) >= elements:
                yield (
                    f"tensor {quoted(tensor.name)} has {tensor.bytes} bytes, its share of"
                    f" {quoted(key[1])} is another"
                )


def _in_turn(what: str, tensors: Sequence[PlannedTensor]) -> Iterator[str]:
    """Parts over channels follow one another in their order, and have bytes in proportion."""
    if len({tensor.channels[:3] for tensor in tensors}) > 1:
        yield f"{what} are channels of different arrays"
        return
    total, channels, at = sum(tensor.bytes for tensor in tensors), tensors[0].channels[1], 0
    for tensor in tensors:
        first, last = tensor.channels[3:]
        if first != at or tensor.bytes * channels != total * (last - first):
            yield (
                f"tensor {quoted(tensor.name)} is said to hold the channels {first} to {last}: its"
                " place and bytes are those of others"
            )
        at = last
    if at != channels:
        yield f"{what} are {at} channels together, not {channels}"


def _channels_inside(tensor: PlannedTensor) -> Iterator[str]:
    """A part over channels has some, inside those that there are, and no ranges."""
    fits = (
        len(tensor.channels) == 5
        and not tensor.ranges
        and all(0 < n < _LARGEST for n in tensor.channels[:3])
    )
    if not fits or not 0 <= tensor.channels[3] < tensor.channels[4] <= tensor.channels[1]:
        yield (
            f"tensor {quoted(tensor.name)}: its channels {list(tensor.channels)!s:.100} are no part"
            " of an array"
        )


def reads(facts: Facts) -> Iterator[str]:
    """Every piece reads all that its part of the result needs, and as many bytes. O(reads of pieces
    + operands)."""
    operators, stored, owned = operators_of(facts), _stored(facts), owned_parts(facts.plan)
    for job in facts.plan.jobs:
        if not job.ranges:
            continue
        own = [operators[job.network, name] for name in job.operators]
        made = {name for operator in own for name in operator.writes}
        read: dict[str, int] = {}
        for operand in job.reads:
            read[operand.tensor] = read.get(operand.tensor, 0) + operand.bytes
        for operator in own:
            for storage in sorted(
                set(operator.reads) - {needs.tensor for needs in operator.operands}
            ):
                yield (
                    f"operator {quoted(operator.name)} is in pieces, and does not say what they"
                    f" need of {quoted(storage)}"
                )
            for needs in operator.operands:
                if adds_only(job, operators) and not any(window.summed for window in needs.windows):
                    # The last piece of a chain reads what follows the sum.
                    continue
                if needs.tensor in made:
                    yield from _own(job, operator, needs)
                else:
                    tensors = (
                        stored[job.network, needs.tensor, job.mini_batch]
                        + stored[job.network, needs.tensor, -1]
                    )
                    yield from _covered(job, needs, tensors, read, owned)


def _own(job: PlannedJob, operator: OperatorInfo, needs: OperandNeeds) -> Iterator[str]:
    """What a piece needs of its own results is what it makes."""
    needed = needed_part(needs, job.ranges, job.summed)
    inside = needs.shape == operator.shape and all(
        a >= c and b <= d for (a, b), (c, d) in zip(needed, job.ranges, strict=True)
    )
    if not inside and volume(needed):
        yield (
            f"job {quoted(job.name)} needs more of {quoted(needs.tensor)} than the part of it that"
            " it makes"
        )


def _covered(
    job: PlannedJob,
    needs: OperandNeeds,
    tensors: Sequence[PlannedTensor],
    read: dict[str, int],
    owned: dict[str, Box],
) -> Iterator[str]:
    """A piece's reads of one storage against what it needs of it."""
    needed = needed_part(needs, job.ranges, job.summed)
    if not volume(needed):
        return
    if not all(tensor.ranges for tensor in tensors) or not tensors:
        missing = (
            [tensor.name for tensor in tensors if tensor.name not in read]
            if tensors
            else [needs.tensor]
        )
        yield from (
            f"job {quoted(job.name)} does not read {quoted(name)}, which its operators need"
            for name in missing
        )
        return
    shape = tensors[0].shape
    if math.prod(shape) != math.prod(needs.shape) or any(
        tensor.shape != shape for tensor in tensors
    ):
        yield (
            f"job {quoted(job.name)} reads {quoted(needs.tensor)} as another number of elements"
            " than it has"
        )
        return
    box = needed if shape == needs.shape else renamed(needed, needs.shape, shape)
    share, found = _share_touched(needs, job.ranges), 0
    for tensor, shared in _taken(box, [tensor for tensor in tensors if tensor.name in read], owned):
        found += shared
        if read[tensor.name] < tensor.bytes * shared * share.numerator // (
            volume(tensor.ranges) * share.denominator
        ):
            yield (
                f"job {quoted(job.name)} reads {read[tensor.name]} bytes of {quoted(tensor.name)},"
                " less than it needs"
            )
    if found != volume(box):
        yield (
            f"job {quoted(job.name)} reads {found} of the {volume(box)} elements of"
            f" {quoted(needs.tensor)} that it needs"
        )


def _taken(
    box: Box, tensors: Sequence[PlannedTensor], owned: dict[str, Box]
) -> Iterator[tuple[PlannedTensor, int]]:
    """Elements of a box that are taken from each of some tensors: from a single one what it holds,
    from several what each owns."""
    for tensor in tensors:
        yield (
            tensor,
            common_elements(
                box, tensor.ranges if len(tensors) == 1 else owned.get(tensor.name, tensor.ranges)
            ),
        )


def sum_extent(operator: OperatorInfo) -> int:
    """Elements of the dimension that an operator sums over; 0 if that cannot be cut."""
    found = {
        extent
        for needs in operator.operands
        for extent, window in zip(needs.shape, needs.windows, strict=False)
        if window.summed
    }
    return found.pop() if len(found) == 1 else 0


def adds_only(job: PlannedJob, operators: Mapping[tuple[str, str], OperatorInfo]) -> bool:
    """Whether a piece adds to sums that a later one of its chain makes a result of."""
    return bool(job.summed) and job.summed[-1] < sum_extent(
        operators[job.network, job.operators[0]]
    )


def owned_part(job: PlannedJob) -> Box:
    """The part of the result that only this piece answers for."""
    return job.owns or job.ranges


def owned_parts(plan: PlanRecord) -> dict[str, Box]:
    """By tensor, what its part owns of what it holds, where that is not all."""
    return {operand.tensor: job.owns for job in plan.jobs if job.owns for operand in job.writes}


def owned_bytes(tensor: PlannedTensor, owned: Mapping[str, Box]) -> int:
    """Bytes of a tensor that no other part of its storage owns; ``owned`` is from
    :func:`owned_parts`."""
    own = owned.get(tensor.name)
    return tensor.bytes if own is None else tensor.bytes * volume(own) // volume(tensor.ranges)


def is_within(inner: Box, outer: Box) -> bool:
    """Whether a part lies in another."""
    return len(inner) == len(outer) and all(
        c <= a and b <= d for (a, b), (c, d) in zip(inner, outer, strict=True)
    )


def operators_of(facts: Facts) -> dict[tuple[str, str], OperatorInfo]:
    """Operators by network and name."""
    return {
        (network.name, operator.name): operator
        for network in facts.plan.networks
        for operator in network.operators
    }


def _stored(facts: Facts) -> dict[tuple[str, str, int], list[PlannedTensor]]:
    """Tensors by network, storage and mini-batch, but for partial sums; weights have mini-batch
    -1."""
    found: dict[tuple[str, str, int], list[PlannedTensor]] = defaultdict(list)
    for tensor in (each for each in facts.plan.tensors if not each.summed):
        found[
            tensor.network, tensor.storage, -1 if tensor.kind == "weight" else tensor.mini_batch
        ].append(tensor)
    return found


def _inside(what: str, box: Box, shape: Sequence[int]) -> Iterator[str]:
    """Ranges of a part are none empty and inside the whole."""
    fits = len(box) == len(shape) and all(
        len(part) == 2 and 0 <= part[0] < part[1] <= n for part, n in zip(box, shape, strict=True)
    )
    if not fits or math.prod(shape) >= _LARGEST:
        yield (
            f"{what}: its ranges do not lie inside the shape"
            f" {'x'.join(str(n) for n in shape)!s:.100}"
        )


def _sound(what: str, operator: OperatorInfo) -> Iterator[str]:
    """Windows name dimensions of the result, divide by something, and count in numbers of bearable
    size."""
    if any(not 0 < n < _LARGEST for n in operator.shape):
        yield f"{what}: its result has a dimension that is empty or out of range"
    for needs in operator.operands:
        fits = not needs.windows or len(needs.windows) == len(needs.shape)
        if (
            not fits
            or any(n < 0 for n in needs.shape)
            or not all(_sound_window(window, len(operator.shape)) for window in needs.windows)
        ):
            yield (
                f"{what}: what it says of its operand {quoted(needs.tensor)} is no window for each"
                " of the operand's dimensions"
            )


def _sound_window(window: OperandWindow, rank: int) -> bool:
    numbers = (window.stride, window.ahead, window.behind, window.reach, window.unit, window.divide)
    free = window.axis is None or (0 <= window.axis < rank and not window.summed)
    return all(0 <= n < _LARGEST for n in numbers) and window.divide > 0 and free


def _share_touched(needs: OperandNeeds, box: Box) -> Fraction:
    """Share of a range from the first to the last element that a part of the result needs of which
    it needs any: strides step over some."""
    share = Fraction(1)
    for window in needs.windows:
        if window.axis is not None and window.divide == 1 and window.reach + 1 < window.stride:
            first, last = box[window.axis]
            count, each = last - first, window.reach + 1
            share *= Fraction(count * each, (count - 1) * window.stride + each)
    return share


def needed_part(needs: OperandNeeds, box: Box, summed: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Ranges of an operand that a part of the result needs, of which a piece may sum a range
    alone."""
    if not needs.windows:
        return [(0, extent) for extent in needs.shape]
    ranges = (
        _range(window, box, extent)
        for window, extent in zip(needs.windows, needs.shape, strict=True)
    )
    return [
        (summed[0], summed[1]) if summed and window.summed else each
        for window, each in zip(needs.windows, ranges, strict=True)
    ]


def _range(window: OperandWindow, box: Box, extent: int) -> tuple[int, int]:
    if window.axis is None:
        return 0, extent
    first, last = box[window.axis]
    shift = window.ahead - window.behind
    begin = (first * window.stride + shift) // window.divide * window.unit
    end = (((last - 1) * window.stride + shift + window.reach) // window.divide + 1) * window.unit
    begin = max(0, min(begin, extent))
    return begin, max(begin, min(end, extent))


def volume(box: Box) -> int:
    """Elements of a part."""
    return math.prod(last - first for first, last in box)


def common_elements(one: Box, other: Box) -> int:
    """Elements that two parts have in common."""
    return math.prod(
        max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in zip(one, other, strict=True)
    )


def _once(what: str, boxes: Sequence[Box], shape: Sequence[int]) -> Iterator[str]:
    """No two parts share an element, and together they are as many as the whole has."""
    axis = max(range(len(shape)), key=lambda d: len({box[d][0] for box in boxes}), default=0)
    ordered = sorted(boxes, key=lambda box: (box[axis][0], box[axis][1]))
    for i, one in enumerate(ordered):
        for other in ordered[i + 1 :]:
            if other[axis][0] >= one[axis][1]:
                break
            if common_elements(one, other):
                yield f"{what} overlap: {text(one)} and {text(other)}"
                return
    total = sum(volume(box) for box in boxes)
    if total != math.prod(shape):
        yield f"{what} are {total} elements together, not {math.prod(shape)}"


def text(box: Box) -> str:
    """A part as people write it."""
    return "[" + ", ".join(f"{first}:{last}" for first, last in box) + "]"


def renamed(box: Box, old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int]]:
    """The smallest part of an array of shape ``new`` that holds a part of shape ``old``, element
    after element the same array.

    Dimensions fall into runs of as many elements on both sides, as short as can be; in each run a
    part lies between two positions.
    """
    result = [(0, 1)] * len(new)
    left, right = [i for i, n in enumerate(old) if n > 1], [i for i, n in enumerate(new) if n > 1]
    while left or right:
        mine, its = [left.pop(0)], [right.pop(0)]
        while (a := math.prod(old[i] for i in mine)) != (b := math.prod(new[i] for i in its)):
            (mine if a < b else its).append((left if a < b else right).pop(0))
        low = high = 0
        for i in mine:
            low, high = low * old[i] + box[i][0], high * old[i] + box[i][1] - 1
        for place, i in enumerate(its):
            inner = math.prod(new[k] for k in its[place + 1 :])
            result[i] = (low // inner, high // inner + 1)
            if low // inner != high // inner:
                for k in its[place + 1 :]:
                    result[k] = (0, new[k])
                break
            low, high = low % inner, high % inner
    return result
