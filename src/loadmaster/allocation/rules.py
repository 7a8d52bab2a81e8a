"""Validates packing problems, and converts records and arrays to a checked `Problem`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import gcd, lcm
from operator import index
from typing import Any

import numpy as np

from loadmaster.allocation.problem import (
    COLUMNS,
    FREE,
    NO_GAPS,
    AliasGroup,
    AllowedMemories,
    Buffer,
    BuffersLike,
    Gap,
    Parts,
    Problem,
)
from loadmaster.allocation.verify import overlaps
from loadmaster.core.arguments import as_whole, require_type, validate_arguments
from loadmaster.core.arrays import WHOLE_LIMIT, Ints, Mask
from loadmaster.core.errors import AllocationError


def check_group(problem: Problem, group: AliasGroup) -> None:
    """Check that some address of the group satisfies the alignments and pins of all members."""
    names = ", ".join(repr(problem.name(member)) for member, _ in group)
    # A system of congruences is solvable if every pair is.
    steps = [(int(problem.alignment[member]), shift) for member, shift in group]
    residues = {(step, shift % step) for step, shift in steps}
    if any((up - more) % gcd(step, wide) for (step, up), (wide, more) in combinations(residues, 2)):
        raise AllocationError(
            f"aliases: no address suits the alignments of {names}, which lie at"
            f" {[shift for _, shift in group]}: relax one"
        )
    bases = {
        int(problem.pin[member]) - shift for member, shift in group if problem.pin[member] != FREE
    }
    if len(bases) > 1:
        pins = sorted({int(problem.pin[member]) for member, _ in group} - {FREE})
        raise AllocationError(
            f"aliases: {names} must share an address but are pinned to {pins}: keep one pin"
        )
    for base in bases:
        if base < 0:
            raise AllocationError(
                f"aliases: {names} would begin at {base} where one of them is pinned: move the pin"
                f" up by {-base}"
            )
        for member, shift in group:
            step, name = int(problem.alignment[member]), problem.name(member)
            if (base + shift) % step:
                raise AllocationError(
                    f"aliases: an address that {name!r} must share is pinned to {base + shift}, not"
                    f" a multiple of {step}, the alignment of {name!r}: move the pin or relax the"
                    " alignment"
                )


Where = Callable[[int, str], str]
"""A function that names a buffer and one of its fields for an error."""


def problem_of(buffers: BuffersLike, **demands: Any) -> Problem:
    """Make a checked problem of records or arrays.

    Parameters
    ----------
    buffers
        `Buffer` records; or three integer arrays (lower, upper, size), also as one array of shape
        (n, 3); or a mapping of arrays that may add ``alignment``, ``pin``, ``hint`` and ``ids``; or
        a problem, which is taken as it is.
    **demands
        Further fields of `Problem`: ``reserved``, ``aliases``, ``in_place``, ``conflicts``.

    Raises
    ------
    AllocationError
        If anything is malformed. The message names the buffer and the field.
    """
    if isinstance(buffers, Problem) and not demands:
        return buffers
    problem = _problem_from(buffers, demands)
    check(problem)
    return problem


def problem_of_banks(buffers: BuffersLike, **demands: Any) -> Problem:
    """Make a problem for several memories as `problem_of` does, but without checking pins against
    one another, as they may be in different memories."""
    problem = _problem_from(buffers, demands)
    if problem.allowed is None:
        problem = replace(problem, allowed=AllowedMemories.anywhere(len(problem)))
    if not isinstance(buffers, Problem) or demands:
        check(problem)
    return problem


def _problem_from(buffers: BuffersLike, demands: dict[str, Any]) -> Problem:
    """Return the problem of buffers given as a Problem, as Buffer records, as a mapping of columns
    or as three arrays, with its demands."""
    if isinstance(buffers, Problem):
        return replace(buffers, **_checked_demands(demands))
    require_type(buffers, (Sequence, Mapping, np.ndarray), "buffers", AllocationError)
    if isinstance(buffers, np.ndarray):
        buffers = tuple(np.atleast_1d(buffers).T)
    if isinstance(buffers, Mapping):
        return from_columns(buffers, NO_GAPS, demands)
    if len(buffers) and all(isinstance(buffer, Buffer) for buffer in buffers):
        records = list(buffers)
        demands = {"allowed": _allowed_memories_of(records)} | demands
        return from_columns(_columns_of(records), _gaps_of(records), demands)
    return from_columns(_columns_of_arrays(buffers), NO_GAPS, demands)


def from_columns(columns: Mapping[str, Any], gaps: Parts, demands: Mapping[str, Any]) -> Problem:
    """Make a problem of columns: fill in defaults, and check that columns are whole numbers of
    equal length."""
    missing = [name for name in ("lower", "upper", "size") if name not in columns]
    if missing:
        raise AllocationError(f"buffers: {missing[0]!r} is missing: give lower, upper and size")
    given = {name: whole(columns[name], name) for name in COLUMNS if name in columns}
    size, ids = given["size"], columns.get("ids")
    every = np.ones_like(size)
    filled: dict[str, Any] = {"alignment": every, "pin": FREE * every, "hint": FREE * every} | given
    filled["ids"] = None if ids is None else tuple(map(str, ids))
    for name, column in filled.items():
        if column is not None and len(column) != len(size):
            raise AllocationError(
                f"buffers: {name!r} has {len(column)} entries and 'size' has {len(size)}: give as"
                " many of each"
            )
    return Problem(**filled, gaps=gaps, **_checked_demands(demands))


def _checked_demands(demands: Mapping[str, Any]) -> dict[str, Any]:
    """Convert demands to the fields of `Problem`, and refuse malformed ones."""
    converters: dict[str, Callable[[Any], Any]] = {
        "reserved": lambda ranges: ranges_of(ranges, "reserved"),
        "aliases": _groups,
        "in_place": lambda pairs: _rows(pairs, "in_place", (2, 3), _SHIFTED),
        "conflicts": lambda pairs: _rows(pairs, "conflicts", (2,), _TWO),
        "allowed": lambda allowed: allowed,
    }
    unknown = [name for name in demands if name not in converters]
    if unknown:
        known = ", ".join([*converters][:4])
        raise AllocationError(f"demand {unknown[0]!r} is not known: use {known}")
    given = {name: value for name, value in demands.items() if value is not None}
    return {name: converters[name](value) for name, value in given.items()}


def ranges_of(values: Any, name: str) -> tuple[tuple[int, int], ...]:
    """Convert values to pairs of whole numbers."""
    return tuple((low, high) for low, high in _rows(values, name, (2,), _TWO).tolist())


_TWO = "pairs of whole numbers, such as [(0, 1), (4, 5)]"
_SHIFTED = "pairs of buffers, such as [(0, 1)], or with a shift, (4, 5, 64)"
_GROUPS = (
    "groups of buffers' numbers, such as ((0, 1), (4, 5)), or with a shift in bytes, (0, (1, 64))"
)


def _groups(groups: Any) -> tuple[AliasGroup, ...]:
    """Convert alias groups."""
    if not isinstance(groups, Sequence) or not all(isinstance(each, Sequence) for each in groups):
        raise AllocationError(f"aliases: give {_GROUPS}")
    return tuple(map(_group, groups))


def _group(members: Sequence[Any]) -> AliasGroup:
    """Convert the members of an alias group to (buffer, shift), with a lowest shift of 0."""
    rows = [
        (
            tuple(member)
            if isinstance(member, Sequence) and not isinstance(member, str)
            else (member, 0)
        )
        for member in members
    ]
    flat = _rows(rows, "aliases", (2,), _GROUPS).tolist()
    lowest = min((shift for _, shift in flat), default=0)
    return tuple((buffer, shift - lowest) for buffer, shift in flat)


@validate_arguments(AllocationError)
def conflicts_of_order(count: int, before: Sequence[tuple[int, int]] | Ints) -> Ints:
    """Pairs of buffers that may be alive together under a partial order.

    Parameters
    ----------
    count
        Number of buffers.
    before
        Pairs (i, j): buffer ``i`` is dead before ``j`` is born in every execution. The transitive
        closure is taken.

    Returns
    -------
    array of shape (pairs, 2)
        All pairs that the order does not separate. O(count^3 / 64) time and O(count^2) memory.

    Raises
    ------
    AllocationError
        A pair names no buffer, or some buffer would be dead before it is born.
    """
    pairs = _rows(before, "before", (2,), _TWO)
    unknown = pairs[((pairs < 0) | (pairs >= count)).any(axis=1)]
    if count < 0:
        raise AllocationError(f"count is {count}: there are at least 0 buffers")
    if len(unknown):
        pair = tuple(unknown[0].tolist())
        raise AllocationError(
            f"before: {pair} names a buffer that is not there: there are {count}, from 0 on"
        )
    reach = np.zeros((count, count), dtype=bool)
    reach[pairs[:, 0], pairs[:, 1]] = True
    for middle in range(count):
        reach[reach[:, middle]] |= reach[middle]
    if reach.diagonal().any():
        circular = int(reach.diagonal().argmax())
        raise AllocationError(
            f"before: by these pairs buffer {circular} would be dead before it is born: leave out"
            " one of the circle"
        )
    return np.argwhere(np.triu(~(reach | reach.T), k=1)).astype(np.int64)


def _rows(values: Any, name: str, widths: tuple[int, ...], what: str) -> Ints:
    """Convert values to rows of whole numbers, padded with zeros to the largest of ``widths``."""
    if isinstance(values, Sequence) and len(widths) > 1:
        values = [
            [*row, 0] if isinstance(row, Sequence) and len(row) == widths[0] else row
            for row in values
        ]
    try:
        rows = np.asarray(values, dtype=None if isinstance(values, np.ndarray) else object)
    except ValueError:
        rows = np.empty(1, dtype=object)
    if rows.size and (rows.ndim != 2 or rows.shape[1] not in widths):
        raise AllocationError(f"{name}: give {what}")
    width = rows.shape[1] if rows.size else widths[-1]
    table = whole(rows.reshape(-1), name).reshape(-1, width)
    return np.ascontiguousarray(np.pad(table, ((0, 0), (0, widths[-1] - width))))


def whole(values: Any, name: str) -> Ints:
    """Convert values to a one-dimensional int64 array; values that are not whole numbers below 2^62
    are errors."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise AllocationError(
            f"buffers: {name!r} must be a list of whole numbers, not an array of shape"
            f" {array.shape}"
        )
    if (
        (array.dtype.kind in "iu" and array.dtype.itemsize < 8)
        or array.dtype == np.int64
        or not len(array)
    ):
        return np.ascontiguousarray(array, dtype=np.int64)
    numbers = [_number(value, at, name) for at, value in enumerate(array.tolist())]
    return np.array(numbers, dtype=np.int64)


def _number(value: Any, at: int, name: str) -> int:
    """Convert a value of any type to a whole number."""
    number = as_whole(value)
    if number is None:
        raise AllocationError(f"buffer {at}: {name} is {value!r}: write a whole number")
    if abs(number) >= WHOLE_LIMIT:
        raise AllocationError(
            f"buffer {at}: {name} is {number}, which is 2^62 or more: scale the problem down"
        )
    return number


def _columns_of_arrays(buffers: Any) -> dict[str, Any]:
    """Return the columns ``lower``, ``upper`` and ``size`` of three arrays."""
    if len(buffers) == 0:
        buffers = ([], [], [])
    if len(buffers) != 3 or any(
        isinstance(column, str | int | float | Buffer) for column in buffers
    ):
        raise AllocationError(
            "buffers: give Buffer records, or three arrays (lower, upper, size), also as one array"
            " of shape (n, 3)"
        )
    return dict(zip(("lower", "upper", "size"), buffers, strict=True))


def _columns_of(buffers: Sequence[Buffer]) -> dict[str, Any]:
    """Return the columns of Buffer records."""

    def addresses(field: str) -> list[Any]:
        """Return a column of addresses, FREE for None; raise AllocationError for negative ones."""
        values = [getattr(buffer, field) for buffer in buffers]
        if bad := [
            at
            for at, value in enumerate(values)
            if value is not None and (as_whole(value) or 0) < 0
        ]:
            raise AllocationError(
                f"buffer {buffers[bad[0]].id!r}: {field} is {as_whole(values[bad[0]])}: an address"
                " is at least 0"
            )
        return [FREE if value is None else value for value in values]

    columns: dict[str, Any] = {
        name: [getattr(buffer, name) for buffer in buffers] for name in COLUMNS[:4]
    }
    ids = [buffer.id for buffer in buffers]
    return columns | {"pin": addresses("offset"), "hint": addresses("hint"), "ids": ids}


def _gaps_of(buffers: Sequence[Buffer]) -> Parts:
    """Return the gaps of Buffer records."""
    rows = []
    for owner, buffer in enumerate(buffers):
        for gap in buffer.gaps:
            require_type(gap, Gap, f"a gap of buffer {buffer.id!r}", AllocationError)
            rows.append((owner, gap.lower, gap.upper, *(gap.window or (0, 0))))
    return gaps_from(rows) if rows else NO_GAPS


def _allowed_memories_of(buffers: Sequence[Buffer]) -> AllowedMemories | None:
    """Return the allowed memories of Buffer records; None if all have the defaults."""
    prefers = [
        tuple((item, None) if isinstance(item, str) else tuple(item[:2]) for item in buffer.prefers)
        for buffer in buffers
    ]
    return allowed_memories(
        [buffer.memory for buffer in buffers],
        prefers,
        [buffer.accesses for buffer in buffers],
        lambda at, field: f"buffer {buffers[at].id!r}: {field}",
    )


def allowed_memories(
    memory: Sequence[str | None], prefers: Sequence[Any], accesses: Sequence[Any], where: Where
) -> AllowedMemories | None:
    """Return the allowed memories of buffers; None if all have the defaults. Refuse accesses and
    costs that are not whole numbers, and memories that are listed twice."""
    if not any(prefers) and all(name is None for name in memory) and all(n == 1 for n in accesses):
        return None
    for buffer, choices in enumerate(prefers):
        costs = [("prefers", cost) for _, cost in choices if cost is not None]
        for field, value in [("accesses", accesses[buffer]), *costs]:
            if not is_whole(value):
                raise AllocationError(
                    f"{where(buffer, field)} has {value!r}: write a whole number from 0 to 2^62 - 1"
                )
        names = [name for name, _ in choices]
        if len(set(names)) < len(names):
            raise AllocationError(
                f"{where(buffer, 'prefers')} names a memory twice: name each once"
            )
    plain = tuple(tuple((name, as_whole(cost)) for name, cost in choices) for choices in prefers)
    return AllowedMemories(tuple(memory), plain, tuple(map(index, accesses)))


def is_whole(value: Any, least: int = 0, limit: int = WHOLE_LIMIT) -> bool:
    """Whether a value of any type is a whole number of at least ``least`` and below ``limit``."""
    number = as_whole(value)
    return number is not None and least <= number < limit


def gaps_from(rows: Sequence[tuple[int, ...]]) -> Parts:
    """Convert rows (owner, lower, upper, low, high) to columns."""
    return Parts(*(whole(list(column), "gaps") for column in zip(*rows, strict=True)))


def check(problem: Problem, where: Where | None = None) -> None:
    """Raise `AllocationError` for the first error in a problem; O(n log n)."""
    place = where or _named_place(problem)
    for wrong, field, what in _faults(problem):
        if wrong.any():
            buffer = int(np.flatnonzero(wrong)[0])
            values = {name: int(getattr(problem, name)[buffer]) for name in COLUMNS}
            raise AllocationError(f"{place(buffer, field)} {what.format(**values)}")
    _check_members(problem)
    _check_sums(problem)
    _check_ids(problem, place)
    _check_gaps(problem, place)
    _check_groups(problem)
    check_pins(problem, place)


def _named_place(problem: Problem) -> Where:
    """Return a function that names a buffer and a field for messages."""
    return lambda buffer, field: f"buffer {problem.name(buffer)!r}: {field}"


def _faults(problem: Problem) -> Iterator[tuple[Mask, str, str]]:
    """Yield, for every rule on single numbers, the mask of buffers that break it, the field and the
    message."""
    far = "is {%s}, which is 2^62 or more: scale the problem down"
    for field in COLUMNS:
        yield getattr(problem, field) >= WHOLE_LIMIT, field, far % field
    yield problem.lower < 0, "lower", "is {lower}: an instant is at least 0"
    yield problem.upper < problem.lower, "upper", "is {upper}, before lower ({lower}): swap the two"
    yield problem.size < 0, "size", "is {size}: a size is at least 0"
    yield problem.alignment < 1, "alignment", "is {alignment}: an alignment is at least 1"
    yield problem.pin < FREE, "offset", "is {pin}: an address is at least 0"
    yield problem.hint < FREE, "hint", "is {hint}: an address is at least 0"


def _check_members(problem: Problem) -> None:
    """Check that every index in aliases, in_place and conflicts is valid."""
    conflicts = () if problem.conflicts is None else problem.conflicts
    for named in map(np.ravel, (problem.alias_rows[:, 1], problem.in_place[:, :2], conflicts)):
        unknown = named[(named < 0) | (named >= len(problem))]
        if len(unknown):
            raise AllocationError(
                f"buffer {unknown[0]} of an alias group or a pair does not exist: there are"
                f" {len(problem)}"
            )


def _check_sums(problem: Problem) -> None:
    """Check that the addresses of every packing that an engine may try are below 2^62."""
    if not len(problem):
        return
    highest = max(
        int(problem.pin.max()), int(problem.hint.max()), *(high for _, high in problem.reserved), 0
    )
    # The extent of an alias group includes shifts, and its alignment is that of all members.
    alignment = problem.alignment.tolist()
    far = sum(
        max(shift for _, shift in group) + 2 * lcm(*(alignment[member] for member, _ in group))
        for group in problem.aliases
        if group
    )
    far += sum(abs(shift) for *_, shift in problem.in_place.tolist())
    total = highest + sum(problem.size.tolist()) + sum(alignment) + far
    if total >= WHOLE_LIMIT:
        raise AllocationError(
            f"buffers: the sizes add up to {total} bytes with alignments and pins, 2^62 or more:"
            " scale them down"
        )


def _check_ids(problem: Problem, place: Where) -> None:
    """Raise AllocationError if two buffers have the same id."""
    seen: dict[str, int] = {}
    for buffer, name in enumerate(problem.ids or ()):
        first = seen.setdefault(name, buffer)
        if first < buffer:
            raise AllocationError(
                f"{place(buffer, 'id')} is taken already, by buffer number {first + 1}: give each"
                " buffer its own"
            )


def _check_gaps(problem: Problem, place: Where) -> None:
    """Raise AllocationError if gaps overlap or exceed their buffer's lifetime or size."""
    last: dict[int, int] = {}
    order = np.lexsort((problem.gaps.lower, problem.gaps.owner))
    for owner, lower, upper, low, high in zip(
        *(column[order].tolist() for column in problem.gaps), strict=True
    ):
        columns = problem.lower, problem.upper, problem.size
        begin, end, size = (int(column[owner]) for column in columns)
        spot = f"{place(owner, 'gaps')} has {lower}-{upper}"
        if not begin <= lower <= upper <= end:
            raise AllocationError(
                f"{spot}, which is not within its lifetime {begin}-{end}: shorten the gap"
            )
        if lower < last.get(owner, lower):
            raise AllocationError(f"{spot}, which overlaps the gap before it: join the two")
        if not 0 <= low <= high <= size:
            raise AllocationError(
                f"{spot}@{low}:{high}, which is not within its {size} bytes: shorten the window"
            )
        last[owner] = upper


def _check_groups(problem: Problem) -> None:
    """Raise AllocationError for invalid reserved ranges and alias groups."""
    for low, high in problem.reserved:
        if not 0 <= low <= high < WHOLE_LIMIT:
            raise AllocationError(
                f"reserved range {low}-{high}: it must not be reversed and must lie between 0 and"
                " 2^62"
            )
    grouped = problem.alias_rows[:, 1]
    if len(np.unique(grouped)) < len(grouped):
        raise AllocationError("aliases: a buffer is in two groups: join the groups")
    for group in problem.aliases:
        check_group(problem, group)


def check_pins(problem: Problem, where: Where | None = None) -> None:
    """Check that pins satisfy alignments and reserved ranges, and that pinned buffers do not
    overlap unless they may.
    """
    place = where or _named_place(problem)
    off = np.flatnonzero((problem.pin >= 0) & (problem.pin % problem.alignment != 0))
    if len(off):
        at, step = int(problem.pin[off[0]]), int(problem.alignment[off[0]])
        what = (
            f"is {at}, not a multiple of its alignment ({step}): move the pin or relax the"
            " alignment"
        )
        raise AllocationError(f"{place(int(off[0]), 'offset')} {what}")
    if not (problem.pin >= 0).any():
        return
    owner, _, _, low, high = problem.parts
    pin = problem.pin[owner]
    for begin, end in problem.reserved:
        inside = (pin >= 0) & (pin + low < end) & (pin + high > begin) & (begin < end)
        if inside.any():
            buffer = int(owner[inside].min())
            at = int(problem.pin[buffer])
            raise AllocationError(
                f"{place(buffer, 'offset')} is {at}, which touches the reserved range"
                f" {begin}-{end}: move one"
            )
    if problem.allowed is not None:
        # Pins to different memories do not meet: each memory is looked at when it is known who
        # lives there.
        return
    for pair in overlaps(problem, problem.pin):
        other, one = sorted(pair[:2], key=lambda buffer: (int(problem.lower[buffer]), buffer))
        when = "" if problem.conflicts is not None else f" at instant {pair[2]}"
        both = f"is {problem.pin[one]}, and buffer {problem.name(other)!r} is pinned to"
        raise AllocationError(
            f"{place(one, 'offset')} {both} {problem.pin[other]}: they overlap{when}: move one"
        )
