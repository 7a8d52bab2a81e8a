"""Groups of aliases, each member so many bytes above the group's address: which addresses suit all
of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm

from loadmaster.allocation.problem import FREE, Problem
from loadmaster.core.errors import AllocationError


def check_group(problem: Problem, group: Sequence[tuple[int, int]]) -> None:
    """There is an address for the group that suits the alignments and pins of all members."""
    names = ", ".join(repr(problem.name(member)) for member, _ in group)
    steps = [(int(problem.alignment[member]), shift) for member, shift in group]
    if common_residue(steps) is None:
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
                at = (
                    f"is pinned to {base + shift}, not a multiple of {step}, the alignment of"
                    f" {name!r}"
                )
                raise AllocationError(
                    f"aliases: an address that {name!r} must share {at}: move the pin or relax the"
                    " alignment"
                )


def common_step(problem: Problem, group: Sequence[tuple[int, int]]) -> int:
    """What the alignments of all members divide."""
    return lcm(*(int(problem.alignment[member]) for member, _ in group))


def common_residue(steps: Sequence[tuple[int, int]]) -> int | None:
    """The least address that, with each shift added, is a multiple of the alignment beside it; None
    if there is none.

    Solved one congruence after another (Chinese remainders of moduli that need not be coprime).
    """
    found, step = 0, 1
    for alignment, shift in steps:
        common = gcd(step, alignment)
        missing = -shift - found
        if missing % common:
            return None
        found += step * (
            missing // common * pow(step // common, -1, alignment // common) % (alignment // common)
        )
        step = lcm(step, alignment)
    return found % step
