"""The fast memory as a hardware cache of the slow one ("2LM", memory mode): direct-mapped,
write-back, filled on every miss.

Tensors lie at the addresses that a first-fit allocator gives them. A kernel reads or writes each
block of each operand once, in order; a miss reads the block from the slow memory, on writing too,
and first writes the block that it displaces back if that is dirty, even if the tensor in it is
dead. The kernel takes as long as with everything fast, or as its traffic to the slow memory,
whichever is longer. One step warms the cache up; the next one is counted.

Approximated: blocks are not 64 bytes but as large as keeps a step at a few million of them, so that
conflicts are those of whole blocks; tags cost no bandwidth; operands that a kernel reads more than
once miss once. The slow memory's bandwidths are the best at which any operand is used in place.
"""

from __future__ import annotations

import math
from operator import add

import numpy as np

from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.rules import problem_of
from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.errors import PlacementError
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.strategies.result import BaselineResult, fitting_algorithms

_TOUCHES = 2**22
"""About how many blocks are touched in a step."""


def run(sequence: KernelSequence, limits: Ints) -> BaselineResult:
    """O(blocks touched). The cache is as large as the tightest limit beside workspace."""
    operands = [operand for kernel in sequence.kernels for operand in kernel.operands]
    if not all(math.isfinite(operand.slow_seconds) for operand in operands):
        raise PlacementError(
            "2lm needs a machine whose kernels can use the slow memory in place: leave it out"
        )
    algorithms, room = fitting_algorithms(sequence, limits)
    capacity = int(room.min(initial=WHOLE_LIMIT))
    named = [operand.tensor for operand in operands]
    touched = sum(sequence.sizes[named].tolist())
    block = 1 << max(0, -(-touched // _TOUCHES) - 1).bit_length()
    sizes = np.zeros_like(sequence.sizes)
    sizes[named] = sequence.sizes[named]
    blocks = (-(-sizes // block)).tolist()
    address = first_fit_addresses(sequence, sizes, block)
    # Lines beyond the last address would stay empty.
    used = max(map(add, address, blocks), default=0)
    cache = _Cache(max(1, min(capacity // block, used)))
    reading, writing = slow_bandwidths(sequence)
    for _ in range(2):
        seconds = []
        moved = 0
        for kernel, algorithm in zip(sequence.kernels, algorithms, strict=True):
            fills = evictions = 0
            for operand in kernel.operands:
                t = operand.tensor
                missed, dirty = cache.touch(address[t], blocks[t], operand.write)
                fills += missed * block
                evictions += dirty * block
            computing = kernel.seconds_within(False, algorithm)
            seconds.append(max(computing, fills / reading + evictions / writing))
            moved += fills + evictions
    return BaselineResult(math.fsum(seconds), moved, capacity, None)


class _Cache:
    """Which block each line holds (-1: none), and whether it is dirty."""

    def __init__(self, lines: int) -> None:
        self.lines = lines
        self.holds = np.full(lines, -1, dtype=np.int64)
        self.dirty = np.zeros(lines, dtype=bool)

    def touch(self, first: int, blocks: int, write: bool) -> tuple[int, int]:
        """Access a run of blocks in order: how many are missed, and how many dirty ones displaced.
        O(lines) however long the run."""
        beyond = max(0, blocks - self.lines)
        missed, displaced = self._lap(first, blocks - beyond, write)
        if beyond:
            # The run displaces its own blocks from here on: what of the first lap is dirty once,
            # then what it has written itself.
            again = (first + np.arange(min(beyond, self.lines))) % self.lines
            displaced += int(np.count_nonzero(self.dirty[again])) + (beyond - len(again)) * write
            missed += beyond
            last = first + blocks - self.lines + np.arange(self.lines)
            self.holds[last % self.lines] = last
            self.dirty[again] = write
        return missed, displaced

    def _lap(self, first: int, blocks: int, write: bool) -> tuple[int, int]:
        """Access at most as many blocks as there are lines."""
        missed = displaced = 0
        end = first + blocks
        while first < end:
            line = first % self.lines
            count = min(end - first, self.lines - line)
            held, dirty = self.holds[line : line + count], self.dirty[line : line + count]
            wanted = np.arange(first, first + count)
            miss = held != wanted
            missed += int(np.count_nonzero(miss))
            displaced += int(np.count_nonzero(miss & dirty))
            dirty &= ~miss
            if write:
                dirty[:] = True
            held[:] = wanted
            first += count
        return missed, displaced


def first_fit_addresses(sequence: KernelSequence, sizes: Ints, block: int) -> list[int]:
    """The lowest block at which each tensor, of ``sizes`` bytes, fits when its life begins; what
    ends before frees its blocks first."""
    begin, end = sequence.lifetimes.T
    problem = problem_of((begin, end, -(-sizes // block)))
    in_turn = np.argsort(begin, kind="stable")
    offsets: list[int] = packing_problem(problem).place_in_order(in_turn).offsets.tolist()
    return offsets


def slow_bandwidths(sequence: KernelSequence) -> tuple[float, float]:
    """Return bytes/s at which the slow memory is read and written: the best of any operand, else
    the link's."""

    def best(reading: bool) -> float:
        """Return the highest bandwidth, in bytes per second, at which an operand is only read or
        only written in the slow memory."""
        return max(
            (
                sequence.tensors[o.tensor].bytes / o.slow_seconds
                for kernel in sequence.kernels
                for o in kernel.operands
                if o.read is reading is not o.write and o.slow_seconds > 0
            ),
            default=0.0,
        )

    return best(True) or sequence.link.to_fast, best(False) or sequence.link.to_slow


NAME = "2lm"
HARDWARE = run
