"""The answer to a placement problem: which memory each tensor is in and when, its addresses, the
lower bound, and baselines."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.core.provenance import costs_json
from loadmaster.core.shown import DisplayMixin
from loadmaster.placement.decisions import Division, Mode, Move, Stay, TensorPlacement
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.timing import MovementTimeline, moved_bytes


@dataclass(frozen=True)
class Rival:
    """The result of a simpler strategy with the same kernels, costs and limit, before packing.

    ``seconds`` is None where it cannot, for a ``reason``; ``placement`` is None too where the
    hardware decides.
    """

    name: str
    seconds: float | None
    moved_bytes: int
    placement: TensorPlacement | None = None
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class MemoryPlan(DisplayMixin):
    """A placement of every tensor of a kernel sequence, with addresses, estimated times and a lower
    bound.

    Attributes
    ----------
    sequence
        What is placed. Where tensors may have pages in both memories, its tensors are the pieces of
        those that were given.
    division
        Which piece is part of which tensor; None where all are whole.
    status
        ``optimal``: no placement of this mode takes less time, proven. ``feasible``: a valid
        placement.
    placement, offsets
        Decisions; the address of every stay, then of every kernel's workspace.
    timeline
        When each kernel and copy runs, estimated.
    lower_bound
        Seconds that any placement of this mode within ``limit`` takes at least, by the same
        estimates.
    all_fast_seconds, all_slow_seconds
        Time with everything in the fast memory, however small that is, and with everything in the
        slow one (infinite if kernels cannot use it).
    limit, peak_fast
        Bytes of fast memory that may be used, and the most that are used at once, gaps between
        buffers included: the highest address.
    prices
        Seconds that one byte more of fast memory would save while each kernel runs, shape
        (kernels,).
    rivals
        Results of simpler strategies.
    rounds
        Placements that were tried until one could be packed.
    """

    sequence: KernelSequence
    mode: Mode
    strategy: str
    status: Literal["optimal", "feasible"]
    placement: TensorPlacement
    offsets: tuple[int, ...]
    timeline: MovementTimeline
    lower_bound: float
    all_fast_seconds: float
    all_slow_seconds: float
    limit: int
    peak_fast: int
    prices: Floats
    rivals: tuple[Rival, ...]
    rounds: int
    seed: int
    search_seconds: float
    cpu_seconds: float
    interrupted: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    division: Division | None = None

    @property
    def seconds(self) -> float:
        """Estimated seconds of the sequence."""
        return self.timeline.total

    @property
    def gap(self) -> float:
        """Distance of the time to the lower bound, relative to the bound; 0 where both are 0."""
        if self.seconds <= self.lower_bound:
            return 0.0
        return self.seconds / self.lower_bound - 1 if self.lower_bound > 0 else float("inf")

    @property
    def slowdown(self) -> float:
        """Time relative to that with everything in the fast memory."""
        return self.seconds / self.all_fast_seconds if self.all_fast_seconds > 0 else 1.0

    def piece(self, tensor: int) -> tuple[str, int]:
        """Return the name of the tensor that a tensor of ``sequence`` is a piece of, or itself, and
        the piece's first byte there."""
        if self.division is None:
            return self.sequence.tensors[tensor].name, 0
        return self.division.whole.tensors[self.division.of[tensor]].name, self.division.begin[
            tensor
        ]

    @property
    def moved_bytes(self) -> int:
        """Bytes copied in both directions."""
        return moved_bytes(self.sequence, self.placement)

    @property
    def price_per_gib(self) -> float:
        """Seconds that another GiB would save at most, if it were there all the time.

        With the multipliers ``prices`` of the limits, the lower bound falls by no more than
        ``sum(prices[k] * bytes[k])``, where ``bytes[k]`` of the GiB are of use to kernel ``k``:
        those that everything fast would take beyond the limit. Time can also fall to the bound. It
        is never less than what all kernels take wherever their operands are.

        Everything fast may save less than that, as kernels read both memories at once.
        """
        kernels = self.sequence.kernels
        workspace = [max(algorithm.workspace for algorithm in k.algorithms) for k in kernels]
        most = self.sequence.live_bytes(workspace=False) + np.array(workspace, dtype=np.int64)
        useful = np.clip(most - self.limit, 0, 2**30)
        bound = self.lower_bound - float((self.prices * useful).sum())
        return max(0.0, self.seconds - max(bound, self.sequence.least_seconds))

    def within(self, limit: int, lower_bound: float) -> MemoryPlan:
        """Return the same placement for a larger limit, whose bound is ``lower_bound``."""
        return replace(
            self,
            limit=limit,
            lower_bound=lower_bound,
            status="optimal" if self.seconds <= lower_bound else "feasible",
        )

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that ``loadmaster place --json`` prints."""
        return {
            "network": self.sequence.name,
            "status": self.status,
            "mode": self.mode.value,
            "strategy": self.strategy,
            "seed": self.seed,
            "makespan": self.seconds,
            "lower_bound": self.lower_bound,
            "gap": self.gap if np.isfinite(self.gap) else None,
            "all_fast_time": self.all_fast_seconds,
            "all_slow_time": self.all_slow_seconds if np.isfinite(self.all_slow_seconds) else None,
            "slowdown": self.slowdown,
            "capacity": self.limit,
            "peak": self.peak_fast,
            "peak_all_fast": self.sequence.peak_bytes,
            "moved_bytes": self.moved_bytes,
            "moves": len(self.placement.moves),
            "seconds_per_gib": self.price_per_gib,
            "rounds": self.rounds,
            "seconds": self.search_seconds,
            "cpu_seconds": self.cpu_seconds,
            "interrupted": self.interrupted,
            "costs": costs_json(self.sequence.costs),
            "counters": self.counters,
            "rivals": [
                {
                    "name": rival.name,
                    "makespan": rival.seconds,
                    "moved_bytes": rival.moved_bytes,
                    "reason": rival.reason,
                }
                for rival in self.rivals
            ],
            "kernels": [
                {"name": kernel.name, "algorithm": kernel.algorithms[chosen].name}
                for kernel, chosen in zip(
                    self.sequence.kernels, self.placement.algorithms, strict=True
                )
            ],
            "tensors": self._paths(),
        }

    def _paths(self) -> list[dict[str, Any]]:
        """For every tensor when it is in the fast memory, at which address, and when it is copied;
        kernels by number."""
        stays: dict[int, list[tuple[Stay, int]]] = defaultdict(list)
        moves: dict[int, list[Move]] = defaultdict(list)
        for stay, offset in zip(self.placement.stays, self.offsets, strict=False):
            stays[stay.tensor].append((stay, offset))
        for move in self.placement.moves:
            moves[move.tensor].append(move)
        return [
            {
                "name": tensor.name,
                "kind": tensor.kind.value,
                "bytes": tensor.bytes,
                **dict(zip(("of", "begin"), self.piece(t), strict=True)),
                "lifetime": self.sequence.lifetimes[t].tolist(),
                "fast": [
                    {"start": stay.start, "end": stay.end, "offset": offset}
                    for stay, offset in stays[t]
                ],
                "copies": [
                    {"to": "fast" if m.to_fast else "slow", "start": m.start, "end": m.end}
                    for m in moves[t]
                ],
            }
            for t, tensor in enumerate(self.sequence.tensors)
        ]
