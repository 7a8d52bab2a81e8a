"""Ways to cut networks into bands for a small fast memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loadmaster.core.units import format_bytes
from loadmaster.planning.cutting.banding import Network, Stack
from loadmaster.planning.cutting.choice import alive_between
from loadmaster.planning.cutting.seen_network import SeenNetwork
from loadmaster.planning.cutting.stacking import stacked
from loadmaster.planning.cutting.stacks import Choice, StackModel, Way, best_stacks
from loadmaster.planning.cutting.stripes import STRIPES, has_wide_bands
from loadmaster.targets.hardware import Target
from loadmaster.workloads.lowering.divisible_network import DivisibleNetwork
from loadmaster.workloads.lowering.pieces import Cut, Cuts

_SHARES = (1.0, 0.5)
"""Of the fast memory, for which stacks are chosen: what is left lets pieces of several bands run at
once, and addresses be found."""
_PRICE_OF_WORK = 0.3
"""What a second of all cores' work counts beside a second of the main link, where stacks are
chosen."""
_AMPLE = 0.5
"""Share of the fast memory up to which what is in use at once leaves so much room that bands are
not tried."""


def stacks_of_bands(
    networks: Sequence[DivisibleNetwork],
    others: Sequence[Sequence[Cut]],
    target: Target,
    late: Callable[[], bool],
) -> Iterator[tuple[str, list[Cuts], Way]]:
    """Names of ways to cut networks into bands, the cuts of each, and how their bands follow one
    another.

    Nothing is offered where the fast memory is ample for all networks.

    First those in which operators of a stack run side by side, then those in which a band passes
    through all of them; then the same in stripes across the bands, where the thinnest bands are
    wide for the memory. Operators in no stack, and networks
    for which the memory is ample, are cut as in ``others``, where there are any, and where a band
    passes through all also as little as they can be.
    """
    tight = [
        target.fast is not None and _most_in_use(network) > target.fast.capacity * _AMPLE
        for network in networks
    ]
    if target.fast is None or not any(tight):
        return
    stackable = [Network(network.graph, network.fused, network.forms) for network in networks]
    seen = [
        SeenNetwork.both(own, target) if is_tight else []
        for own, is_tight in zip(stackable, tight, strict=True)
    ]
    plain = [network.plain for network in networks]
    rooms = [int(target.fast.capacity * share) for share in _SHARES]
    worth = _PRICE_OF_WORK * target.main.read_bandwidth
    wide = [bool(own) and has_wide_bands([one.network for one in own], rooms[0]) for own in seen]
    for about, way in _ways(any(wide)):
        found: list[list[Choice] | None] = []
        for own, is_wide, cuts in zip(seen, wide, others or plain, strict=True):
            model = (
                StackModel(own, rooms[0], target, cuts, worth, way.in_stripes(is_wide))
                if own
                else None
            )
            found.append(best_stacks(model, rooms) if model and not late() else None)
        if late():
            return
        for number, room in enumerate(rooms):
            stacks = [choices[number].stacks if choices else () for choices in found]
            every = [stack for own in stacks for stack in own]
            if all(stack.is_whole for stack in every) or not any(
                way.marks(stack) for stack in every
            ):
                continue
            name = (
                f"into {'tiles' if way.stripes else 'bands'} for {format_bytes(room)} of"
                f" {target.fast.name}{about}"
            )

            def cut(
                beside: Sequence[Sequence[Cut]], stacks: Sequence[Sequence[Stack]] = stacks
            ) -> list[Cuts]:
                return [
                    stacked(own, mine, cuts) if mine else Cuts(cuts)
                    for own, mine, cuts in zip(stackable, stacks, beside, strict=True)
                ]

            if others:
                yield f"{name}, others over the cores", cut(others), way
            if not others or way.is_depth_first:
                yield name, cut(plain), way


def _ways(wide: bool) -> Iterator[tuple[str, Way]]:
    """How bands may follow one another, and what it is called."""
    for stripes in ((), STRIPES) if wide else ((),):
        yield ", operators side by side", Way(skewed=True, stripes=stripes)
        yield "", Way(stripes=stripes)


def _most_in_use(network: DivisibleNetwork) -> int:
    """Most bytes that a whole operator reads and writes, and that lie there meanwhile for later
    ones. O(operators + operands)."""
    between = alive_between(network.graph, network.fused)
    made = {access.tensor for group in network.fused for access in group.writes}
    given = [
        sum(access.bytes for access in group.reads if access.tensor not in made)
        for group in network.fused
    ]
    return int((between + np.array(given)).max(initial=0))
