"""Whether memories and addresses hold: each memory is checked as if nothing lived in the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadmaster.allocation.memories.problem import Bank, check_banks
from loadmaster.allocation.problem import FREE, Problem
from loadmaster.allocation.verify import BrokenRules, broken_rules, whole_offsets
from loadmaster.core.arguments import validate_arguments
from loadmaster.core.arrays import Ints, Mask
from loadmaster.core.errors import AllocationError, Violation, first_violations


@validate_arguments(AllocationError)
def verify_banks(
    problem: Problem,
    memory: Sequence[str],
    offsets: Sequence[int] | Ints,
    banks: Sequence[Bank],
) -> tuple[Violation, ...]:
    """Check that memories and offsets solve a problem with several memories: what is wrong with
    them, at most 20 violations.

    Raises
    ------
    AllocationError
        If ``offsets`` are not whole numbers, or a memory is malformed.
    """
    checked = check_banks(banks)
    return first_violations(broken_bank_rules(problem, memory, whole_offsets(offsets), checked))


def broken_bank_rules(
    problem: Problem, memory: Sequence[str], offsets: Ints, banks: Sequence[Bank]
) -> BrokenRules:
    """Rule and message for everything that is wrong with buffers in ``memory``, a name for each, at
    ``offsets``."""
    if len(memory) != len(problem) or len(offsets) != len(problem):
        yield (
            "complete",
            f"{len(memory)} memories and {len(offsets)} offsets for {len(problem)} buffers",
        )
        return
    names = [bank.name for bank in banks]
    yield from _allowed_memories(problem, memory, names)
    for group in problem.aliases:
        if len({memory[member] for member, _ in group}) > 1:
            yield (
                "alias",
                (
                    f"buffers {', '.join(repr(problem.name(member)) for member, _ in group)} must"
                    " share their memory"
                ),
            )
    within = {member for group in problem.aliases for member, shift in group if shift > 0}
    for bank in banks:
        inside = np.array([name == bank.name for name in memory], dtype=bool)
        for buffer in np.flatnonzero(
            inside & (offsets >= 0) & (offsets % bank.alignment != 0)
        ).tolist():
            if buffer not in within:
                what = f"is at {offsets[buffer]}, not a multiple of {bank.alignment} ({bank.name})"
                yield "alignment", f"buffer {problem.name(buffer)!r} {what}"
        for rule, message in broken_rules(
            _only_members(problem, inside, bank), np.where(inside, offsets, 0), bank.capacity
        ):
            yield rule, f"{message} (in {bank.name})"


def _allowed_memories(problem: Problem, memory: Sequence[str], names: Sequence[str]) -> BrokenRules:
    """Yield buffers in a memory that does not exist or that they must not be in."""
    for buffer, name in enumerate(memory):
        if name not in names:
            yield "memory", f"buffer {problem.name(buffer)!r} is in {name!r}, which does not exist"
        elif problem.allowed is not None:
            pin = problem.allowed.memory[buffer]
            prefers = [known for known, _ in problem.allowed.prefers[buffer]]
            if (pin is not None and pin != name) or (prefers and name not in prefers):
                yield (
                    "memory",
                    f"buffer {problem.name(buffer)!r} is in {name!r}, where it must not live",
                )


def _only_members(problem: Problem, inside: Mask, bank: Bank) -> Problem:
    """Return the problem with only the buffers of one memory; the others have no bytes."""
    return replace(
        problem,
        size=np.where(inside, problem.size, 0),
        pin=np.where(inside, problem.pin, FREE),
        reserved=bank.reserved,
        aliases=tuple(
            tuple(member for member in group if inside[member[0]]) for group in problem.aliases
        ),
    )
