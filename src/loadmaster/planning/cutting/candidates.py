"""Ways to cut networks for a machine; the planner plans with some of them and keeps the best
plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.effort import Effort
from loadmaster.core.units import format_bytes
from loadmaster.cost.analytical.nests import STREAMED, WEIGHTS_STREAMED
from loadmaster.planning.cutting.band_cuts import stacks_of_bands
from loadmaster.planning.cutting.blocks import in_blocks, streams_weights
from loadmaster.planning.cutting.choice import Choosable, Chosen, CutChoice
from loadmaster.planning.cutting.fitting import fitted
from loadmaster.planning.cutting.options import (
    Option,
    costed_grids,
    first_boxes,
    operator_options,
    piece_axes,
    sizes_of,
)
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.grid import Chains, Divisible, Grid, needed_boxes
from loadmaster.workloads.lowering.pieces import Cut, Cuts, DivisibleNetwork, divides_sums

_MOST_PIECES = 32
"""Of an operator that differs from what was chosen: more pay for starting."""
_MOST_SIZES = 128
"""Of a dimension that is followed to what it reads; longer ones in larger steps."""


def refined(choice: CutChoice, chosen: Chosen, target: Target) -> CutChoice:
    """The same choice with what was chosen as the first option of every operator, and then also
    what follows the pieces of its operands.

    What is offered anyhow is as balanced as can be for operators by themselves. Together, a piece
    begins earlier if it needs nothing of the piece after the one that it waits for. O(operators x
    pieces).
    """
    networks = []
    for network, first in zip(choice.networks, choice.options_of(chosen), strict=True):
        own = [option.cut for option in first]
        offered = list(
            dict.fromkeys(
                (number, grid)
                for number in range(len(own))
                for grid in _alike(network, own, number)
            )
        )
        options = [[now] for now in first]
        for (number, _), option in zip(
            offered,
            costed_grids(network.graph, network.fused, network.forms, offered, target),
            strict=True,
        ):
            # As elsewhere: what is streamed cannot be fetched ahead of its use.
            if options[number][0].costs.stream.any() or not option.costs.stream.any():
                options[number].append(option)
        known = [
            _distinct([*some, *before])
            for some, before in zip(options, network.options, strict=True)
        ]
        networks.append(Choosable(network.graph, network.fused, network.forms, known))
    return CutChoice(networks, target, choice.mini_batches, choice.effort)


def _distinct(options: Sequence[Option]) -> list[Option]:
    """Options of which no two cut alike: the first of those that do."""
    found: dict[Cut, Option] = {}
    for option in options:
        found.setdefault(option.cut, option)
    return list(found.values())


def _alike(network: Choosable, cuts: Sequence[Cut], number: int) -> Iterator[Grid]:
    """Grids of an operator that follow the one of what it reads."""
    form = network.forms[number]
    if form is None:
        return
    for axis, inner in _following(network, cuts, number, form):
        step, extent = form.step[axis], form.shape[axis]
        ends = tuple(
            sorted(
                {end // step * step for end in inner if step <= end < extent // step * step}
                | {extent}
            )
        )
        if 1 < len(ends) <= _MOST_PIECES:
            yield form.along(axis, ends)


def _axis(cut: Cut) -> tuple[int, tuple[int, ...]] | None:
    """The dimension along which a grid is cut, and where its pieces end; None if it is not cut
    along one."""
    axes = (
        [axis for axis, ends in enumerate(cut.ends) if len(ends) > 1]
        if isinstance(cut, Grid)
        else []
    )
    return (axes[0], cut.ends[axes[0]]) if isinstance(cut, Grid) and len(axes) == 1 else None


def _refined_halves(ends: Sequence[int]) -> list[int]:
    return [(begin + end) // 2 for begin, end in zip((0, *ends[:-1]), ends, strict=True)]


def _following(
    network: Choosable, cuts: Sequence[Cut], number: int, form: Divisible
) -> Iterator[tuple[int, list[int]]]:
    """Dimensions, and ends of pieces that each need no more than the pieces up to one, or every
    few, of what is made last for them."""
    group, graph, home = network.fused[number], network.graph, network.home
    storage = max(
        (access.tensor for access in group.reads if access.tensor in home),
        key=home.__getitem__,
        default=None,
    )
    if storage is None:
        return
    made, source = network.forms[home[storage]], _axis(cuts[home[storage]])
    if made is None or source is None or made.shape != graph.tensors[storage].shape:
        return
    for axis in piece_axes(form, group):
        sizes = sizes_of(form.shape[axis], form.step[axis], _MOST_SIZES)
        needed = needed_boxes(form, graph, storage, first_boxes(form, axis, sizes))[:, source[0], 1]
        if needed[0] < needed[-1]:
            able = np.searchsorted(np.maximum.accumulate(needed), source[1], side="right")
            ends = [int(sizes[count - 1]) for count in able.tolist() if count]
            for some in (ends, ends[1::2], ends[::2], ends[2::3], [*ends, *_refined_halves(ends)]):
                yield axis, some


MOST_OPERATORS = 3000
"""In all networks together: beyond, trying to cut them would take longer than planning them."""


_FEW_WAYS = 32
"""Candidates with halves that are all tried in small networks."""


@dataclass(frozen=True)
class Candidate:
    """A cut of the networks: its name, and the cuts of each network; without any,
    operators stay as whole as they fit.

    ``chosen`` are options of a ``choice``, if it is from one. ``pieces`` are those of all
    mini-batches. ``large`` pieces are as few as suit the machine. Jobs are planned with the
    ``tiling`` before it is chosen for each.
    """

    name: str
    cuts: Sequence[Cuts | None] = ()
    choice: CutChoice | None = None
    chosen: Chosen = ()
    pieces: int = 0
    large: bool = False
    tiling: str = STREAMED

    @staticmethod
    def of(name: str, choice: CutChoice, chosen: Chosen) -> Candidate:
        """The candidate of an option for every operator."""
        return Candidate(name, [Cuts(own) for own in choice.cuts(chosen)], choice, chosen)


def candidates(
    graphs: Sequence[Graph],
    target: Target,
    mini_batches: int,
    cut: str = "auto",
    late: Callable[[], bool] = lambda: False,
    full: Callable[[], bool] = lambda: False,
    effort: Effort = Effort.NORMAL,
) -> Iterator[Candidate]:
    """Candidates, whole operators first; each is worked out when it is asked for, until
    it is late.

    Large pieces for networks whose weights exceed the fast memory; then, unless what is tried is
    ``full``, pieces for the cores, stacks of bands for the fast memory and for shares of it, and
    both together. A machine that must copy operands is offered operators as whole as they fit, and
    in smaller pieces, of which several fit. Networks of more than 3,000 operators are offered whole
    operators only.
    """
    few = sum(len(graph.ops) for graph in graphs) <= MOST_OPERATORS
    copied = not target.main.in_place
    if copied and few:
        sums = divides_sums(target)
        networks = [
            _whole_where_fitting(DivisibleNetwork.of(graph, target, sums=sums), target)
            for graph in graphs
        ]
        yield Candidate("none", [Cuts(network.plain) for network in networks])
    else:
        yield Candidate("none")
    if late() or cut == "none" or not few:
        return
    if not copied:
        networks = [DivisibleNetwork.of(graph, target) for graph in graphs]
        yield from _in_blocks(networks, target, mini_batches)
        if late() or full():
            return
    small = _in_small_pieces(networks, target, late) if copied else ()
    offered: list[Sequence[Cuts | None]] = [[Cuts(network.plain) for network in networks]]
    for candidate in itertools.chain(
        small, _offers(networks, target, mini_batches, late, effort), _halves(networks)
    ):
        if candidate.cuts not in offered:
            offered.append(candidate.cuts)
            yield replace(
                candidate,
                pieces=mini_batches * sum(len(cuts.steps) for cuts in candidate.cuts if cuts),
            )


def _in_blocks(
    networks: Sequence[DivisibleNetwork], target: Target, mini_batches: int
) -> Iterator[Candidate]:
    """Blocks that stream weights, for the networks that these suit."""
    if any(streams_weights(network, target) for network in networks):
        cuts = [
            in_blocks(network, target) if streams_weights(network, target) else Cuts(network.plain)
            for network in networks
        ]
        pieces = mini_batches * sum(len(own.steps) for own in cuts)
        yield Candidate(
            "into blocks that stream weights",
            cuts,
            pieces=pieces,
            large=True,
            tiling=WEIGHTS_STREAMED,
        )


def _whole_where_fitting(network: DivisibleNetwork, target: Target) -> DivisibleNetwork:
    """A network whose operators are cut only as far as their operands exceed the fast memory."""
    assert target.fast is not None
    cuts = fitted(network.graph, network.fused, network.forms, target, target.fast.capacity)
    return network if cuts is None else replace(network, plain=cuts)


def _in_small_pieces(
    networks: Sequence[DivisibleNetwork], target: Target, late: Callable[[], bool]
) -> Iterator[Candidate]:
    """Pieces of which several fit into the fast memory: one or two for each core, or at least two.

    Sums are in parts only where operators would not fit otherwise, or no two of their pieces.
    Beside a piece of a sum there need only be room for what the next adds, so that larger pieces
    are offered, too.
    """
    assert target.fast is not None
    sums = [any(isinstance(cut, Chains) for cut in network.plain) for network in networks]
    for share in dict.fromkeys(
        (*((4 / 3,) if any(sums) else ()), 2, max(2, len(target.cores)), 2 * len(target.cores))
    ):
        if late():
            return
        room = int(target.fast.capacity / share)
        cuts = [
            fitted(n.graph, n.fused, n.forms, target, room, sums=own or share <= 2)
            for n, own in zip(networks, sums, strict=True)
        ]
        if all(own is not None for own in cuts):
            yield Candidate(
                f"into pieces of at most {format_bytes(room)}",
                [Cuts(own) for own in cuts if own is not None],
            )


def _halves(networks: Sequence[DivisibleNetwork]) -> Iterator[Candidate]:
    """Operators whole or in halves along any of their dimensions: in all ways, or one at a time, if
    these are few."""
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
    ways: Iterable[Sequence[Cut]] = itertools.product(*options)
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
            "in halves where that helps",
            [Cuts(list(itertools.islice(rest, len(network.plain)))) for network in networks],
        )


def uncut(graphs: Sequence[Graph]) -> Iterator[str]:
    """Why networks are not cut, or some of them."""
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


def _over_cores(
    networks: Sequence[Choosable],
    target: Target,
    mini_batches: int,
    late: Callable[[], bool],
    effort: Effort,
) -> Iterator[Candidate]:
    """Pieces for the cores with which all networks and mini-batches end early.

    Native code explores in a thread of its own, while what was found before is screened.
    """
    name = "over the cores for an early end"
    choice = CutChoice(networks, target, mini_batches, effort)
    start = choice.improved(choice.whole)
    pool = ThreadPoolExecutor(1)
    try:
        further = pool.submit(_explored, choice, start, target)
        yield Candidate.of(name, choice, start)
        if late():
            return
        for own, chosen in further.result():
            yield Candidate.of(name, own, chosen)
    finally:
        # Who stops here does not wait for what is explored.
        pool.shutdown(wait=False, cancel_futures=True)


def _explored(choice: CutChoice, start: Chosen, target: Target) -> list[tuple[CutChoice, Chosen]]:
    """What is found from a start by exploring, among cuts that differ from it a little too,
    and by then refining that.

    Only what promises to be better.
    """
    finer = refined(choice, start, target)
    explored = finer.explored(finer.whole)
    finest = finer if explored == finer.whole else refined(finer, explored, target)
    # A quick score takes less time than either search, and tells more than the model by which
    # they go.
    worth = choice.seconds(start)
    return [
        (own, found)
        for own, found in ((finer, explored), (finest, finest.improved(finest.whole)))
        if own.seconds(found) < worth
    ]


def _choosable(network: DivisibleNetwork, target: Target) -> Choosable:
    """A network with the options for the cores."""
    options = operator_options(network.graph, network.fused, network.forms, network.plain, target)
    return Choosable(network.graph, network.fused, network.forms, options)


def _offers(
    networks: Sequence[DivisibleNetwork],
    target: Target,
    mini_batches: int,
    late: Callable[[], bool],
    effort: Effort,
) -> Iterator[Candidate]:
    choosable = (
        [_choosable(network, target) for network in networks if not late()]
        if len(target.cores) > 1
        else []
    )
    if late():
        return
    others: list[Sequence[Cut]] = []
    if choosable:
        for candidate in _over_cores(choosable, target, mini_batches, late, effort):
            yield candidate
            assert candidate.choice is not None
            others = list(candidate.choice.cuts(candidate.chosen))
    for name, cuts in stacks_of_bands(networks, others, target, late):
        yield Candidate(name, cuts)
