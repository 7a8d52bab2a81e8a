"""Ways to cut networks for a machine, best guesses first; the planner plans with some of them and keeps the best plan.

Every operator that can be cut is tried whole and in parts along its channels, rows and columns, and costed as if it ran alone: pieces
go to the core where they end first, and all operands are in the fast memory, if there is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.core.units import format_bytes
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.planning.cutting.banding import Network, stacked
from loadmaster.planning.cutting.stacks import best_stacks
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import FusedOp, fuse
from loadmaster.workloads.lowering.grid import CHANNELS, Divisible, divisible
from loadmaster.workloads.lowering.instantiate import Cut, Cuts, lower
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import WHOLE, choose_split

MOST_OPERATORS = 3000
"""In all networks together: beyond, trying to cut them would take longer than planning them."""
MOST_PIECES = 20_000
"""In all mini-batches together."""
_ROWS, _COLUMNS = "rows", "columns"
_SHARES = (1.0, 0.8, 0.5)
"""Of the fast memory, for which stacks are chosen: what is left lets pieces of several bands run at once, and addresses be found."""
_GAIN = 0.03
"""A cut must make an operator faster by this share for each doubling of its pieces, or it is left as it was."""


@dataclass(frozen=True)
class _Network:
    """A network's fused operators, and how each can be cut."""

    graph: Graph
    fused: list[FusedOp]
    forms: list[Divisible | None]
    plain: list[Cut]

    @staticmethod
    def of(graph: Graph, target: Target) -> _Network:
        single = without_updates(graph)
        fused = fuse(single)
        room = target.fast.capacity if target.fast else None
        plain: list[Cut] = [choose_split(f, room) if room else WHOLE for f in fused]
        return _Network(graph, fused, [divisible(single, f) for f in fused], plain)

    def uniform(self, along: str, parts: int) -> list[Cut]:
        """Every operator that can be cut along its channels, or rows, in so many parts; the others as they were."""
        return [self._cut(form, group, along, parts, plain) for form, group, plain in zip(self.forms, self.fused, self.plain, strict=True)]

    def _cut(self, form: Divisible | None, group: FusedOp, along: str, parts: int, plain: Cut) -> Cut:
        axis = _axis(form, group, along) if form is not None else None
        if form is None or axis is None:
            return plain
        grid = form.grid({axis: parts})
        return grid if grid.tiles >= plain.tiles else plain


def _axis(form: Divisible, group: FusedOp, along: str) -> int | None:
    """The dimension of an operator's result that holds its channels, its columns, or its rows: the longest other one, if any."""
    rank = len(form.shape)
    loops = group.nests[0].loops if group.nests else ()
    channels = loops.index(CHANNELS) if CHANNELS in loops else (1 if rank > 3 else rank - 1)
    if along == CHANNELS:
        return channels if channels in form.axes else None
    others = [axis for axis in form.axes if axis != channels]
    if along == _COLUMNS:
        return rank - 1 if rank > 3 and rank - 1 in others else None
    return max(others, key=lambda axis: (min(form.shape[axis], 32), -axis), default=None)


@dataclass(frozen=True)
class Candidate:
    """A way to cut networks: what it is called, and the cuts of each network; without any, operators stay as whole as they fit."""

    name: str
    cuts: Sequence[Cuts | None] = ()


def candidates(
    graphs: Sequence[Graph], target: Target, mini_batches: int, cut: str = "auto", late: Callable[[], bool] = lambda: False
) -> Iterator[Candidate]:
    """Ways to cut networks, whole operators first, then by how good they seem; each is worked out when it is asked for, until it is late.

    Up to so many pieces for the cores, stacks of bands for the fast memory and for shares of it, and both together. A machine
    that must copy operands is offered whole operators only, and so are networks of more than 3,000 operators.
    """
    yield Candidate("none")
    if late() or cut == "none" or not target.main.in_place or sum(len(graph.ops) for graph in graphs) > MOST_OPERATORS:
        return
    networks = [_Network.of(graph, target) for graph in graphs]
    offered = [[Cuts(network.plain) for network in networks]]
    for name, cuts in _offers(networks, target, late):
        if cuts not in offered and mini_batches * sum(len(each.steps) for each in cuts) <= MOST_PIECES:
            offered.append(cuts)
            yield Candidate(name, cuts)


def uncut(graphs: Sequence[Graph], target: Target) -> Iterator[str]:
    """Why networks are not cut, or some of them."""
    if not target.main.in_place:
        yield f"operators stay whole: {target.name} must copy all operands of a job before it starts"
    elif sum(len(graph.ops) for graph in graphs) > MOST_OPERATORS:
        yield f"operators stay whole: choosing cuts for more than {MOST_OPERATORS} would take longer than planning: plan fewer networks"
    else:
        for graph in graphs:
            if not any(op.axes for op in graph.ops):
                yield f"{graph.name}: operators stay whole: it is not known which part of its operands a part of a result needs"


def _offers(networks: Sequence[_Network], target: Target, late: Callable[[], bool]) -> Iterator[tuple[str, list[Cuts]]]:
    cores = len(target.cores)
    estimates = [_estimates(network, target, late) for network in networks] if cores > 1 else []
    if late():
        return
    by_cores = [_best(options, cores) for options in estimates] or [network.plain for network in networks]
    if cores > 1:
        yield f"into up to {cores} pieces", [Cuts(pieces) for pieces in by_cores]
    if target.fast is not None:
        stackable = [Network(without_updates(network.graph), network.fused, network.forms) for network in networks]
        for share in _SHARES:
            room = int(target.fast.capacity * share)
            stacks = [best_stacks(own, room, target, n.plain).stacks for own, n in zip(stackable, networks, strict=True) if not late()]
            if late():
                return
            if all(stack.bands == 1 for own in stacks for stack in own):
                continue
            bands = f"into bands for {format_bytes(room)} of {target.fast.name}"
            if cores > 1:
                combined = zip(stackable, stacks, by_cores, strict=True)
                yield f"{bands}, others into up to {cores} pieces", [stacked(*each) for each in combined]
            yield bands, [stacked(own, found, n.plain) for own, found, n in zip(stackable, stacks, networks, strict=True)]
    for most in (2 * cores, 2) if cores > 1 else ():
        yield f"into up to {most} pieces", [Cuts(_best(options, most)) for options in estimates]


@dataclass(frozen=True)
class _Option:
    """A way to cut all operators, and the seconds that each then takes."""

    cuts: list[Cut]
    seconds: Floats


def _estimates(network: _Network, target: Target, late: Callable[[], bool]) -> list[_Option]:
    """Ways to cut all operators of a network, the plain one first; not all of them once it is late."""
    cores = len(target.cores)
    options = [network.plain]
    options += [network.uniform(along, parts) for parts in sorted({2, 3, cores, 2 * cores}) for along in (CHANNELS, _ROWS, _COLUMNS)]
    return [_Option(cuts, _seconds(network, cuts, target)) for number, cuts in enumerate(options) if not number or not late()]


def _best(options: Sequence[_Option], most: int) -> list[Cut]:
    """The fastest cut of every operator into at most so many pieces, where that is worth it."""
    chosen = list(options[0].cuts)
    least = options[0].seconds.copy()
    for option in options[1:]:
        for number, cut in enumerate(option.cuts):
            if chosen[number].tiles < cut.tiles <= max(most, chosen[number].tiles) or cut.tiles == chosen[number].tiles:
                doublings = np.log2(max(1.0, cut.tiles / chosen[number].tiles))
                if option.seconds[number] < least[number] * (1.0 - _GAIN * doublings):
                    chosen[number], least[number] = cut, option.seconds[number]
    return chosen


def _seconds(network: _Network, cuts: list[Cut], target: Target) -> Floats:
    """Seconds of every operator alone on the machine, cut so: what its pieces take on the cores, or its operands on the near link.

    The main link is left out, as weights can be fetched while operators before run, however this one is cut.
    """
    workload = lower([network.graph], target, cuts=[Cuts(cuts)])
    table = job_table(workload, target)
    near = target.fast or target.main
    each = table.moved / np.where(table.operand_write, near.write_bandwidth, near.read_bandwidth)[:, None]
    busy, shared = np.zeros_like(table.compute), np.zeros(len(table.compute))
    np.add.at(busy, table.operand_job, each)
    np.add.at(shared, table.operand_job, each.min(axis=1))
    durations = np.maximum(table.compute, busy)
    until = np.concatenate([[0], np.cumsum([cut.tiles for cut in cuts])])
    return np.array([max(shared[a:b].sum(), _listed(durations[a:b])) for a, b in itertools.pairwise(until)])


def _listed(durations: Floats) -> float:
    """Makespan of a few jobs, the longest first, each on the core where it ends first."""
    ends = np.zeros(durations.shape[1])
    for row in durations[np.argsort(-durations.min(axis=1), kind="stable")]:
        core = int(np.argmin(ends + row))
        ends[core] += row[core]
    return float(ends.max())
