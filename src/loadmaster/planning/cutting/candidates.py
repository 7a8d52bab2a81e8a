"""Candidates: ways to cut networks for a machine, among which the planner selects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from loadmaster.core.effort import Effort
from loadmaster.core.errors import CapacityError
from loadmaster.core.units import format_bytes
from loadmaster.cost.analytical.nests import STREAMED, WEIGHTS_STREAMED
from loadmaster.planning.cutting.band_cuts import stacks_of_bands
from loadmaster.planning.cutting.blocks import in_blocks, streams_weights
from loadmaster.planning.cutting.choice import CutChoice
from loadmaster.planning.cutting.fitting import fitted
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork, divides_sums

MOST_OPERATORS = 3000
"""Operators of all networks up to which they are cut: beyond, choosing cuts would take longer than
planning."""


_FEW_WAYS = 32
"""Candidates up to which all combinations of halves are tried."""


@dataclass(frozen=True)
class Candidate:
    """A cut of the networks: its name, and the cuts of each network (none: operators are cut only
    as far as they exceed the fast memory).

    ``pieces`` is the number of pieces of all mini-batches. ``large`` says that pieces are as large
    as suits the machine. Jobs are first planned with one ``tiling``; later each gets its own.
    """

    name: str
    cuts: Sequence[Cuts | None] = ()
    pieces: int = 0
    large: bool = False
    tiling: str = STREAMED


def candidates(
    graphs: Sequence[Graph],
    target: Target,
    mini_batches: int,
    cut: str = "auto",
    late: Callable[[], bool] = lambda: False,
    full: Callable[[], bool] = lambda: False,
    urgent: Callable[[], Sequence[bool]] = lambda: (),
    effort: Effort = Effort.NORMAL,
) -> Iterator[Candidate]:
    """Yield candidates lazily, whole operators first, until it is ``late``.

    Then come large pieces, for networks whose weights exceed the fast memory. If the screened jobs
    are not yet ``full``: pieces for the cores, and stacks of bands for the fast memory and shares
    of it, with the other operators cut for the cores. For a machine that must copy operands:
    operators in the largest pieces that fit, and smaller pieces of which several fit. For networks
    of more than 3,000 operators: whole operators only.
    """

    def counted(candidate: Candidate) -> Candidate:
        """Return a candidate with the number of its pieces."""
        pieces = sum(len(cuts.steps) for cuts in candidate.cuts if cuts)
        return replace(candidate, pieces=mini_batches * pieces)

    few = sum(len(graph.ops) for graph in graphs) <= MOST_OPERATORS
    copied = not target.main.in_place
    if copied and few:
        networks = [
            DivisibleNetwork.of(graph, target, sums=divides_sums(target)) for graph in graphs
        ]
        # Operators are cut only as far as their operands exceed the fast memory.
        networks = [replace(own, plain=fitted(own, target, target.room)) for own in networks]
        yield Candidate("none", [Cuts(network.plain) for network in networks])
    else:
        yield Candidate("none")
    if late() or cut == "none" or not few:
        return
    if not copied:
        networks = [DivisibleNetwork.of(graph, target) for graph in graphs]
        yield from map(counted, _in_blocks(networks, target))
        if late() or full():
            return
    offered: list[Sequence[Cuts | None]] = [[Cuts(network.plain) for network in networks]]
    for candidate in itertools.chain(
        _in_small_pieces(networks, target) if copied else (),
        _tilings(networks, target, mini_batches, late, urgent(), effort),
        _halves(networks),
    ):
        if candidate.cuts not in offered:
            offered.append(candidate.cuts)
            yield counted(candidate)


def _in_blocks(networks: Sequence[DivisibleNetwork], target: Target) -> Iterator[Candidate]:
    """Yield the candidate with blocks that stream weights, if that suits some network."""
    suits = [streams_weights(network, target) for network in networks]
    if any(suits):
        cuts = [
            in_blocks(network, target) if streams else Cuts(network.plain)
            for network, streams in zip(networks, suits, strict=True)
        ]
        name = "into blocks that stream weights"
        yield Candidate(name, cuts, large=True, tiling=WEIGHTS_STREAMED)


def _in_small_pieces(networks: Sequence[DivisibleNetwork], target: Target) -> Iterator[Candidate]:
    """Yield candidates with pieces of three quarters, a half, a quarter, an eighth of the fast
    memory (or of what the largest operator reads, if that is less), and so small that two fit for
    each core: jobs wait less for the copies of small ones.

    Reductions are split only where operators, or two of their pieces, would not fit otherwise. A
    chain of partial sums needs room only for the operands of the next piece, so larger pieces are
    offered too.
    """
    sums = [any(cut.sums for cut in network.plain) for network in networks]
    most = max(
        sum(use.bytes for use in group.reads) for network in networks for group in network.fused
    )
    for share in (4 / 3, 2, 4, 8, 2 * len(target.cores)):
        room = int(min(target.room, most) / share)
        with suppress(CapacityError):
            cuts = [
                Cuts(fitted(n, target, room, sums=own or share <= 2))
                for n, own in zip(networks, sums, strict=True)
            ]
            yield Candidate(f"into pieces of at most {format_bytes(room)}", cuts)


def _halves(networks: Sequence[DivisibleNetwork]) -> Iterator[Candidate]:
    """Yield candidates with operators whole or halved along one dimension: all combinations, or one
    halved operator at a time, if these are few."""
    options = [
        list(
            dict.fromkeys(
                [plain, form.grid({}), *(form.grid({axis: 2}) for axis in form.axes)]
                if form is not None
                else [plain]
            )
        )
        for network in networks
        for form, plain in zip(network.forms, network.plain, strict=True)
    ]
    plain = [own[0] for own in options]
    ways: Iterable[Sequence[Grid]] = itertools.product(*options)
    if math.prod(map(len, options)) > _FEW_WAYS:
        ways = (
            [*plain[:at], other, *plain[at + 1 :]]
            for at, own in enumerate(options)
            for other in own[1:]
        )
        if sum(len(own) - 1 for own in options) > _FEW_WAYS:
            return
    for chosen in ways:
        rest = iter(chosen)
        yield Candidate(
            "in halves",
            [Cuts(list(itertools.islice(rest, len(network.plain)))) for network in networks],
        )


def uncut(graphs: Sequence[Graph]) -> Iterator[str]:
    """Yield notes that say why networks are not cut."""
    if sum(len(graph.ops) for graph in graphs) > MOST_OPERATORS:
        yield (
            f"operators stay whole: choosing cuts for more than {MOST_OPERATORS} would take longer"
            " than planning: plan fewer networks"
        )
    else:
        for graph in graphs:
            if not any(op.axes for op in graph.ops):
                yield (
                    f"{graph.name}: operators stay whole: it is not known which part of its"
                    " operands a part of a result needs"
                )


def _tilings(
    networks: Sequence[DivisibleNetwork],
    target: Target,
    mini_batches: int,
    late: Callable[[], bool],
    urgent: Sequence[bool],
    effort: Effort,
) -> Iterator[Candidate]:
    """Yield tilings to try: operators cut across cores, if there are several, and stacks of
    bands. Of ``urgent`` networks also the cuts that they would have without the others."""

    def across_cores(networks: Sequence[DivisibleNetwork]) -> list[list[Cuts]]:
        """Choose cuts of some networks across the cores, the best first."""
        choice = CutChoice(networks, target, mini_batches, effort)
        return [choice.cuts(own) for own in choice.improved()]

    chosen = [[Cuts(network.plain) for network in networks]]
    if len(target.cores) > 1:
        chosen = across_cores(networks)
        if len({*urgent}) > 1:
            own = iter(across_cores(list(itertools.compress(networks, urgent)))[0])
            pairs = zip(chosen[0], urgent, strict=True)
            chosen.append([next(own) if mine else each for each, mine in pairs])
    yield Candidate("across cores", chosen[0])
    for name, cuts in stacks_of_bands(networks, chosen[0], target, late):
        yield Candidate(name, cuts)
    yield from (Candidate("across cores", cuts) for cuts in chosen[1:])
