"""Several memories: against brute force over all assignments, and what makes no sense."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import every_offset, records

import loadmaster as lm
from loadmaster.allocation.bank_program import Program, prove
from loadmaster.allocation.relaxation import Cut, relax
from loadmaster.banks import FORBIDDEN
from loadmaster.buffer_rules import problem_of
from loadmaster.errors import AllocationError
from loadmaster.verification.banks import broken_bank_rules

slow = settings(deadline=None, suppress_health_check=list(HealthCheck))
SRAM = lm.Bank("sram", 10)
DRAM = lm.Bank("dram")


def least_cost(buffers, banks, cost, aliases=(), in_place=(), conflicts=None) -> int | None:
    """By trying every assignment, and every offset of each memory."""
    best = None
    for homes in itertools.product(range(len(banks)), repeat=len(buffers)):
        spent = [int(cost[i, home]) for i, home in enumerate(homes)]
        if min(spent, default=0) < 0 or (best is not None and sum(spent) >= best):
            continue
        if any(len({homes[i] for i in group}) > 1 for group in aliases):
            continue
        if all(fits(buffers, homes, at, bank, aliases, in_place, conflicts) for at, bank in enumerate(banks)):
            best = sum(spent)
    return best


def fits(buffers, homes, at, bank, aliases, in_place, conflicts) -> bool:
    inside = [i for i, home in enumerate(homes) if home == at]
    place = {i: k for k, i in enumerate(inside)}
    mine = [
        lm.Buffer(b.id, b.lower, b.upper, b.size, int(np.lcm(b.alignment, bank.alignment)), b.offset, gaps=b.gaps)
        for b in (buffers[i] for i in inside)
    ]
    most = 60 if bank.capacity is None else bank.capacity
    groups = tuple(tuple(place[i] for i in group) for group in aliases if group[0] in place)
    pairs, apart = ([(place[i], place[j]) for i, j in found or () if i in place and j in place] for found in (in_place, conflicts))
    found = every_offset(mine, most, reserved=bank.reserved, aliases=groups, in_place=pairs, conflicts=None if conflicts is None else apart)
    return found is not None


@st.composite
def cases(draw):
    buffers = draw(records(most=5).filter(lambda found: all(b.offset is None for b in found)))
    count = draw(st.integers(1, 3))
    banks = []
    for at in range(count):
        reserved = ((2, 4),) if draw(st.integers(0, 3)) == 0 else ()
        capacity = None if at and draw(st.booleans()) else draw(st.integers(0, 16))
        banks.append(lm.Bank(f"m{at}", capacity, draw(st.sampled_from([1, 1, 4])), reserved))
    cost = np.array([[draw(st.integers(-1, 6)) for _ in banks] for _ in buffers], dtype=np.int64).reshape(len(buffers), count)
    cost[(cost < 0).all(axis=1)] = 0
    demands = {}
    if len(buffers) > 1:
        pairs = st.lists(st.sampled_from([(i, j) for j in range(len(buffers)) for i in range(j)]), unique=True, max_size=3)
        kind = draw(st.sampled_from(["none", "aliases", "in_place", "conflicts"]))
        if kind == "aliases":
            cost[1] = cost[0]
            demands = {"aliases": ((0, 1),)}
        elif kind != "none":
            demands = {kind: draw(pairs)}
    return buffers, tuple(banks), cost, demands


@given(cases())
@settings(slow, max_examples=120)
def test_the_cost_is_the_least_and_the_claims_are_true(case) -> None:
    buffers, banks, cost, demands = case
    best = least_cost(buffers, banks, cost, **demands)
    answer = lm.allocate_banks(buffers, banks, cost=cost, **demands)
    if best is None:
        assert answer.status in ("infeasible", "unknown")
        return
    assert answer.status != "infeasible"
    assert answer.lower_bound <= best
    if answer.memory is not None:
        assert list(broken_bank_rules(problem_of(buffers, **demands), answer.memory, answer.offsets, banks)) == []
        assert answer.cost >= best
        assert (answer.status == "optimal") == (answer.cost == answer.lower_bound)
