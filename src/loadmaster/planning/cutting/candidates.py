"""Ways to cut networks for a machine; the planner plans with some of them and keeps the best plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from loadmaster.planning.cutting.band_cuts import stacks_of_bands
from loadmaster.planning.cutting.choice import Chosen, CutChoice
from loadmaster.planning.cutting.options import operator_options
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.divisible_network import DivisibleNetwork
from loadmaster.workloads.lowering.instantiate import Cuts

MOST_OPERATORS = 3000
"""In all networks together: beyond, trying to cut them would take longer than planning them."""
_FEW_WAYS = 32
"""Ways to cut small networks in halves that are all tried."""
_PATIENCE = {"little work": 0.5, "an early end and little work": 0.8, "an early end": 1.0}
"""What pieces for the cores are chosen for: how much the end of a network alone counts, against the time at which cores are free. The
fewest pieces come first."""


@dataclass(frozen=True)
class Candidate:
    """A way to cut networks: what it is called, and the cuts of each network; without any, operators stay as whole as they fit.

    One that was ``chosen`` from the options of ``choices``, a network each, can be changed. ``pieces`` are those of all mini-batches.
    """

    name: str
    cuts: Sequence[Cuts | None] = ()
    choices: Sequence[CutChoice] = ()
    chosen: Sequence[Chosen] = ()
    pieces: int = 0

    @staticmethod
    def of(name: str, choices: Sequence[CutChoice], chosen: Sequence[Chosen]) -> Candidate:
        """The candidate of an option for every operator of every network."""
        return Candidate(name, [Cuts(choice.cuts(own)) for choice, own in zip(choices, chosen, strict=True)], choices, chosen)

    def changed(self) -> Iterator[Candidate]:
        """The same with one operator cut in another way, first those that a model thinks best of."""
        changes = [
            (*change, n) for n, (choice, own) in enumerate(zip(self.choices, self.chosen, strict=True)) for change in choice.changes(own)
        ]
        for _, own, n in sorted(changes, key=lambda change: change[0]):
            yield Candidate.of(self.name, self.choices, [*self.chosen[:n], own, *self.chosen[n + 1 :]])


def candidates(
    graphs: Sequence[Graph], target: Target, mini_batches: int, cut: str = "auto", late: Callable[[], bool] = lambda: False
) -> Iterator[Candidate]:
    """Ways to cut networks, whole operators first; each is worked out when it is asked for, until it is late.

    Pieces for the cores, stacks of bands for the fast memory and for shares of it, and both together. A machine
    that must copy operands is offered whole operators only, and so are networks of more than 3,000 operators.
    """
    yield Candidate("none")
    if late() or cut == "none" or not target.main.in_place or sum(len(graph.ops) for graph in graphs) > MOST_OPERATORS:
        return
    networks = [DivisibleNetwork.of(graph, target) for graph in graphs]
    offered: list[Sequence[Cuts | None]] = [[Cuts(network.plain) for network in networks]]
    for candidate in itertools.chain(_offers(networks, target, late), _halves(networks)):
        if candidate.cuts not in offered:
            offered.append(candidate.cuts)
            yield replace(candidate, pieces=mini_batches * sum(len(cuts.steps) for cuts in candidate.cuts if cuts))


def _halves(networks: Sequence[DivisibleNetwork]) -> Iterator[Candidate]:
    """Every operator whole or in halves along any of its dimensions, in all ways, if these are few."""
    options = [
        [plain, *(form.grid({axis: 2}) for axis in form.axes)] if form is not None else [plain]
        for network in networks
        for form, plain in zip(network.forms, network.plain, strict=True)
    ]
    if math.prod(map(len, options)) > _FEW_WAYS:
        return
    for chosen in itertools.product(*options):
        rest = iter(chosen)
        yield Candidate("in halves", [Cuts(list(itertools.islice(rest, len(network.plain)))) for network in networks])


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


def _over_cores(choices: Sequence[CutChoice]) -> Iterator[Candidate]:
    """Pieces for the cores; what does not only count as little work is offered as it was improved, too."""
    for aim, patience in _PATIENCE.items():
        chosen = [choice.best(patience) for choice in choices]
        if patience > min(_PATIENCE.values()):
            better = [choice.improved(own) for choice, own in zip(choices, chosen, strict=True)]
            yield Candidate.of(f"over the cores for {aim}", choices, better)
        yield Candidate.of(f"over the cores for {aim}", choices, chosen)


def _choice(network: DivisibleNetwork, target: Target) -> CutChoice:
    """The choice of pieces for the cores."""
    options = operator_options(network.graph, network.fused, network.forms, network.plain, target)
    return CutChoice(network.graph, network.fused, network.forms, options, target)


def _offers(networks: Sequence[DivisibleNetwork], target: Target, late: Callable[[], bool]) -> Iterator[Candidate]:
    choices = [_choice(network, target) for network in networks if not late()] if len(target.cores) > 1 else []
    if late():
        return
    if choices:
        yield from _over_cores(choices)
    others = [choice.cuts(choice.best(_PATIENCE["an early end and little work"])) for choice in choices]
    for name, cuts in stacks_of_bands(networks, others, target, late):
        yield Candidate(name, cuts)
