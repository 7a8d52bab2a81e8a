"""Which tensors stay in the fast memory of a given schedule.

Activations are kept from producer to last reader. Where cores cannot use main memory in place,
every operand is brought first. Stays that find no address go back to main memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.core.errors import CapacityError
from loadmaster.core.units import format_bytes
from loadmaster.cost.base import JobTable, link_seconds
from loadmaster.planning.decisions import Copy, Placement, Residence, Schedule, Timeline
from loadmaster.targets.hardware import Memory, Target
from loadmaster.workloads.job import Job, TensorInstance, Workload


def worth_of_stays(
    residences: Sequence[Residence],
    tensors: Sequence[TensorInstance],
    table: JobTable,
    schedule: Schedule,
) -> Floats:
    """Bytes of the main link that each stay saves: reads, and a write that nobody else needs, less
    what fetches it. O(operands + users)."""
    moved = table.moved[np.arange(len(table.operand_job)), schedule.core[table.operand_job]]
    crossing: dict[tuple[int, int], int] = defaultdict(int)
    written: dict[int, int] = defaultdict(int)
    columns = (table.operand_job, table.operand_tensor, table.operand_write, moved)
    for job, tensor, write, size in zip(*(column.tolist() for column in columns), strict=True):
        if write:
            written[tensor] += size
        else:
            crossing[job, tensor] += size
    jobs = len(schedule.core)
    worth = []
    for stay in residences:
        saved = sum(crossing[job, stay.tensor] for job in stay.users)
        record = tensors[stay.tensor]
        fetched = stay.writer >= jobs
        saved += -record.bytes if fetched else 0 if record.is_output else written[stay.tensor]
        worth.append(max(0.0, float(saved)) + 1e-6 * record.bytes)
    return np.array(worth)


def evict(
    evicted: Collection[Residence],
    placement: Placement,
    timeline: Timeline,
    tensors: Sequence[TensorInstance],
    table: JobTable,
    jobs: int,
) -> tuple[Placement, Timeline]:
    """The placement without some stays of the fast memory, and the timeline without the copies that
    fetched them.

    Jobs that used an evicted stay use main memory; when tasks start and end is left as it was.
    O(operands + tasks + users of all stays).
    """
    gone = set(evicted)
    kept_copies = sorted(
        set(range(len(placement.copies)))
        - {stay.writer - jobs for stay in gone if stay.writer >= jobs}
    )
    number = {jobs + old: jobs + new for new, old in enumerate(kept_copies)}

    def renamed(task: int) -> int:
        return task if task < jobs else number[task]

    kept = [stay for stay in placement.residences if stay not in gone]
    streams: dict[int, list[int]] = defaultdict(list)
    for stay in evicted:
        streams[stay.tensor] += stay.users
    pairs = {(job, stay.tensor) for stay in evicted for job in stay.users}
    written = {stay.tensor for stay in evicted if stay.writer < jobs}
    columns = (table.operand_job, table.operand_tensor, table.operand_write)
    moved = [
        tensor in written if write else (job, tensor) in pairs
        for job, tensor, write in zip(*(column.tolist() for column in columns), strict=True)
    ]
    used = placement.used.copy()
    used[:, moved] = [[True], [False]]
    residences = []
    for stay in kept:
        users = tuple([renamed(task) for task in stay.users if task < jobs or task in number])
        if stay.memory == 0 and stay.tensor in streams:
            users = tuple(dict.fromkeys((*users, *streams.pop(stay.tensor))))
        residences.append(
            Residence(stay.tensor, stay.memory, renamed(stay.writer), users, stay.to_the_end)
        )
    residences += [
        Residence(tensor, 0, tensors[tensor].producer, tuple(dict.fromkeys(users)))
        for tensor, users in streams.items()
    ]
    tasks = np.array([*range(jobs), *(jobs + old for old in kept_copies)], dtype=np.int64)
    changed = Placement(
        used, tuple(placement.copies[old] for old in kept_copies), tuple(residences)
    )
    return changed, replace(timeline, start=timeline.start[tasks], end=timeline.end[tasks])


class Occupancy:
    """Bytes in use in each of ``steps`` consecutive slots; O(slots touched) per call."""

    def __init__(self, steps: int, capacity: int) -> None:
        self._used = np.zeros(steps, dtype=np.int64)
        self._capacity = capacity

    def fits(self, first: int, last: int, size: int) -> bool:
        """Whether ``size`` more bytes fit in slots [first, last)."""
        return size + int(self._used[first:last].max(initial=0)) <= self._capacity

    def add(self, first: int, last: int, size: int) -> None:
        """Take ``size`` bytes in slots [first, last)."""
        self._used[first:last] += size

    def earliest(self, last: int, size: int) -> int:
        """The first slot from which ``size`` more bytes fit in every slot before ``last``; ``last``
        itself if there is none."""
        full = np.flatnonzero(self._used[:last] > self._capacity - size)
        return int(full[-1]) + 1 if full.size else 0

    @property
    def used(self) -> Ints:
        """Bytes in use, by slot."""
        return self._used


def keep_resident(
    workload: Workload, table: JobTable, target: Target, schedule: Schedule, timeline: Timeline
) -> Mask:
    """Choose the tensors that stay in the fast memory, greedily by link time saved per byte and
    second of occupancy.

    A tensor occupies it from the start of its producer to the end of its last reader in
    ``timeline``; one with no reader gains nothing. Refills count: what a core fetches several times
    saves several times. O(tensors x (log tensors + slots)).
    """
    assert target.fast is not None
    tensors, users = workload.tensors, workload.readers
    saved = saved_seconds(tensors, table, target, schedule)
    starts, ends = timeline.start.tolist(), timeline.end.tolist()
    candidates = [
        t for t, tensor in enumerate(tensors) if tensor.producer >= 0 and users[t] and saved[t] > 0
    ]
    begin = {t: starts[tensors[t].producer] for t in candidates}
    finish = {t: max(ends[reader] for reader in users[t]) for t in candidates}
    instants = np.unique(np.array([*begin.values(), *finish.values()], dtype=np.int64))
    occupancy = Occupancy(len(instants), target.fast.capacity)
    room = {t: target.fast.padded(tensors[t].bytes) for t in candidates}
    chosen = np.zeros(len(tensors), dtype=np.bool_)
    for t in sorted(
        candidates, key=lambda t: (-saved[t] / (tensors[t].bytes * max(1, finish[t] - begin[t])), t)
    ):
        first, last = (int(i) for i in np.searchsorted(instants, (begin[t], finish[t])))
        if occupancy.fits(first, max(last, first + 1), room[t]):
            occupancy.add(first, max(last, first + 1), room[t])
            chosen[t] = True
    return chosen


def saved_seconds(
    tensors: Sequence[TensorInstance], table: JobTable, target: Target, schedule: Schedule
) -> Floats:
    """Seconds of the main link that each tensor would save in the fast memory; an output must be
    written to main memory all the same."""
    t = table.operand_tensor
    each = link_seconds(table, target.main)[np.arange(len(t)), schedule.core[table.operand_job]]
    output = np.array([tensor.is_output for tensor in tensors])
    seconds = np.where(table.operand_write & output[t], 0.0, each)
    return np.bincount(t, weights=seconds, minlength=len(tensors)).astype(np.float64)


def resident(workload: Workload, table: JobTable, in_fast: Mask) -> Placement:
    """The placement that keeps ``in_fast`` activations in the fast memory and everything else in
    main memory."""
    tensors = workload.tensors
    output = np.array([tensor.is_output for tensor in tensors], dtype=np.bool_)
    in_main = ~in_fast | output
    residences = []
    for t, users in enumerate(workload.readers):
        writer = tensors[t].producer
        if in_fast[t]:
            residences.append(Residence(t, 1, writer, users))
        if in_main[t]:
            # Weights serve every later run too: they keep their place.
            stays = tensors[t].is_output or tensors[t].kind == "weight"
            residences.append(Residence(t, 0, writer, () if in_fast[t] else users, stays))
    rows, write = table.operand_tensor, table.operand_write
    used = np.stack([np.where(write, in_main[rows], ~in_fast[rows]), in_fast[rows]])
    return Placement(used, (), tuple(residences))


@dataclass
class _Stay:
    """A tensor in fast memory for a run of uses: over positions [first, last] of the order, from
    its producer or from a copy.

    ``written_back`` is the first position at which main memory may hold the tensor; a copy starts
    at position ``copied_from``. ``copy`` is the task that brings it, or that takes it back if the
    stay began with the producer; -1 for none.
    """

    tensor: int
    uses: list[int]
    produced: bool
    written_back: int = 0
    copied_from: int = 0
    copy: int = -1

    @property
    def first(self) -> int:
        """Position of the first use."""
        return self.uses[0]


def stage_copies(
    workload: Workload,
    table: JobTable,
    order: Sequence[int],
    fast: Memory,
    *,
    margin: float = 1.0,
    wait_for_copies_back: bool = False,
) -> Placement:
    """Decide what stays in fast memory between uses, what goes back to main memory, and how early
    each copy may start.

    All jobs run on one core in ``order``. Every operand is in fast memory while its job runs.
    Between two uses a tensor stays if it fits, the most bytes per position of waiting last; else it
    is written back (once: tensors are written once) and read again. A copy to fast memory starts as
    early as space allows. ``margin`` scales the capacity that is filled, for when a packing at full
    capacity failed. O(uses x positions) in vectorised steps.

    Raises
    ------
    CapacityError
        If one job's operands exceed the fast memory: with the bytes required, available and in
        excess.
    """
    jobs, tensors = workload.jobs, workload.tensors
    position = {job: at for at, job in enumerate(order)}
    uses = [sorted(position[j] for j in users) for users in workload.readers]
    occupancy = Occupancy(len(order), int(fast.capacity * margin))
    _require_operands(jobs, tensors, position, uses, occupancy, fast)
    stays = _keep_between_uses(tensors, position, uses, occupancy, fast)
    for stay in sorted((s for s in stays if not s.produced), key=lambda s: (s.first, s.tensor)):
        size = fast.padded(tensors[stay.tensor].bytes)
        stay.copied_from = max(stay.written_back, occupancy.earliest(stay.first, size))
        occupancy.add(stay.copied_from, stay.first, size)
    used = np.zeros((2, len(table.operand_job)), dtype=np.bool_)
    used[1] = True
    return _Writer(tensors, order, stays, len(jobs)).placement(used, wait_for_copies_back)


def _require_operands(
    jobs: Sequence[Job],
    tensors: Sequence[TensorInstance],
    position: dict[int, int],
    uses: list[list[int]],
    occupancy: Occupancy,
    fast: Memory,
) -> None:
    """Take the space of every job's operands at its position."""
    for t, positions in enumerate(uses):
        for at in positions:
            occupancy.add(at, at + 1, fast.padded(tensors[t].bytes))
    for tensor in tensors:
        if tensor.producer >= 0:
            occupancy.add(
                position[tensor.producer], position[tensor.producer] + 1, fast.padded(tensor.bytes)
            )
    worst = int(np.argmax(occupancy.used))
    required = int(occupancy.used[worst])
    if required > fast.capacity:
        job = next(jobs[index] for index, at in position.items() if at == worst)
        raise CapacityError(
            f"job {job.name} needs all its operands in {fast.name}: {format_bytes(required)}"
            f" required, {format_bytes(fast.capacity)} available,"
            f" {format_bytes(required - fast.capacity)} in excess: use a smaller batch, a lower"
            f" precision, or a larger {fast.name}.capacity"
        )


def _keep_between_uses(
    tensors: Sequence[TensorInstance],
    position: dict[int, int],
    uses: list[list[int]],
    occupancy: Occupancy,
    fast: Memory,
) -> list[_Stay]:
    gaps = []
    events = []
    for t, tensor in enumerate(tensors):
        own = ([position[tensor.producer]] if tensor.producer >= 0 else []) + uses[t]
        events.append(own)
        gaps += [(later - earlier, t, i) for i, (earlier, later) in enumerate(pairwise(own))]
    kept: set[tuple[int, int]] = set()
    for _, t, i in sorted(gaps):
        first, last, size = events[t][i] + 1, events[t][i + 1], fast.padded(tensors[t].bytes)
        if first >= last or occupancy.fits(first, last, size):
            occupancy.add(first, last, size)
            kept.add((t, i))
    stays: list[_Stay] = []
    for t, own in enumerate(events):
        for i, at in enumerate(own):
            if i and (t, i - 1) in kept:
                stays[-1].uses.append(at)
            else:
                stays.append(
                    _Stay(
                        t,
                        [at],
                        i == 0 and tensors[t].producer >= 0,
                        written_back=own[i - 1] + 1 if i else 0,
                    )
                )
    return stays


class _Writer:
    """Numbers the copies, in the order in which the copy engine makes them, and says what waits for
    what."""

    def __init__(
        self, tensors: Sequence[TensorInstance], order: Sequence[int], stays: list[_Stay], jobs: int
    ) -> None:
        self._tensors, self._order = tensors, order
        self._of_tensor: dict[int, list[_Stay]] = {}
        for stay in stays:
            self._of_tensor.setdefault(stay.tensor, []).append(stay)
        # A copy back is due when its producer has run; a copy in, when its space is free.
        back = [
            (own[0].first + 1, 0, own[0])
            for own in self._of_tensor.values()
            if self._goes_back(own)
        ]
        inward = [(stay.copied_from, 1, stay) for stay in stays if not stay.produced]
        self._plan = sorted(
            back + inward, key=lambda item: (item[0], item[1], item[2].first, item[2].tensor)
        )
        for number, (_, _, stay) in enumerate(self._plan):
            stay.copy = jobs + number

    def _goes_back(self, own: list[_Stay]) -> bool:
        return own[0].produced and (len(own) > 1 or self._tensors[own[0].tensor].is_output)

    def placement(self, used: Mask, wait_for_copies_back: bool) -> Placement:
        copies = []
        for due, into, stay in self._plan:
            after = [self._order[due - 1]] if due else []
            first = self._of_tensor[stay.tensor][0]
            if into and first.produced:
                after.append(first.copy)
            before = (
                [self._order[stay.first]]
                if into
                else list(self._order[due : due + 1]) * wait_for_copies_back
            )
            copies.append(
                Copy(stay.tensor, 1 - into, into, tuple(dict.fromkeys(after)), tuple(before))
            )
        return Placement(used, tuple(copies), tuple(self._residences()))

    def _residences(self) -> Iterator[Residence]:
        for t, own in sorted(self._of_tensor.items()):
            tensor, inward = self._tensors[t], tuple(stay.copy for stay in own if not stay.produced)
            for stay in own:
                jobs = tuple(self._order[at] for at in stay.uses)
                if stay.produced:
                    back = (stay.copy,) if self._goes_back(own) else ()
                    yield Residence(t, 1, jobs[0], jobs[1:] + back)
                else:
                    yield Residence(t, 1, stay.copy, jobs)
            if tensor.producer < 0:
                yield Residence(t, 0, -1, inward, tensor.kind == "weight" or tensor.is_output)
            elif self._goes_back(own):
                yield Residence(t, 0, own[0].copy, inward, tensor.is_output)
