"""Several memories: against brute force over all assignments, and what makes no sense."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.problems import among, attempt, buffers_of, crowd, every_offset, orderly, records
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.allocation.memories import allocate
from loadmaster.allocation.memories.integer_program import AssignmentProgram, prove
from loadmaster.allocation.memories.problem import FORBIDDEN
from loadmaster.allocation.memories.relaxation import CoverCut, relax
from loadmaster.allocation.rules import problem_of
from loadmaster.core.errors import AllocationError
from loadmaster.core.progress import Deadline

SRAM = lm.Bank("sram", 10)
DRAM = lm.Bank("dram")


def least_cost(buffers, banks, cost, **wanted):
    """By trying every assignment, and every offset of each memory."""
    best = None
    for homes in itertools.product(range(len(banks)), repeat=len(buffers)):
        spent = [int(cost[i, home]) for i, home in enumerate(homes)]
        if min(spent, default=0) < 0 or (best is not None and sum(spent) >= best):
            continue
        if any(len({homes[i] for i, _ in group}) > 1 for group in wanted.get("aliases", ())):
            continue
        if all(fits(buffers, homes, at, bank, wanted) for at, bank in enumerate(banks)):
            best = sum(spent)
    return best


def fits(buffers, homes, at, bank, wanted):
    inside = [i for i, home in enumerate(homes) if home == at]
    mine = [
        replace(buffers[i], alignment=int(np.lcm(buffers[i].alignment, bank.alignment)))
        for i in inside
    ]
    most = 60 if bank.capacity is None else bank.capacity
    demands = among(inside, **wanted)
    return every_offset(mine, most, reserved=bank.reserved, **demands) is not None


@st.composite
def assignments(draw):
    buffers = draw(records(most=5))
    count = draw(st.integers(1, 3))
    banks = []
    for at in range(count):
        low = draw(st.integers(0, 6))
        reserved = ((low, low + draw(st.integers(1, 2))),) if draw(st.integers(0, 3)) == 0 else ()
        capacity = None if at and draw(st.booleans()) else draw(st.integers(0, 16))
        banks.append(lm.Bank(f"m{at}", capacity, draw(st.sampled_from([1, 1, 4])), reserved))
    cost = np.array(
        [[draw(st.integers(-1, 6)) for _ in banks] for _ in buffers], dtype=np.int64
    ).reshape(len(buffers), count)
    cost[(cost < 0).all(axis=1)] = 0
    for i in range(len(buffers)):
        if buffers[i].offset is not None or draw(st.integers(0, 5)) == 0:
            home = draw(st.integers(0, count - 1))
            step = int(np.lcm(buffers[i].alignment, banks[home].alignment))
            buffers[i] = replace(buffers[i], offset=step * draw(st.integers(0, 12 // step)))
            cost[i] = np.where(np.arange(count) == home, np.maximum(cost[i], 0), -1)
    demands = {}
    if len(buffers) > 1:
        pairs = st.lists(
            st.sampled_from([(i, j) for j in range(len(buffers)) for i in range(j)]),
            unique=True,
            max_size=3,
        )
        kind = draw(st.sampled_from(["none", "aliases", "in_place", "conflicts"]))
        if kind == "aliases":
            # Together where a pinned one lives.
            cost[[0, 1]] = cost[0 if buffers[1].offset is None else 1]
            shift = draw(st.sampled_from([0, 0, 1, 3, 5]))
            demands = {"aliases": (((0, 0), (1, shift)),)}
            if shift:
                # The alignment of a memory is that of a group's address only, and brute force knows
                # buffers' alone.
                banks = [replace(bank, alignment=1) for bank in banks]
        elif kind != "none":
            demands = {kind: draw(pairs)}
    return buffers, tuple(banks), cost, demands


@given(assignments())
@fuzz(120)
@pytest.mark.slow
def test_the_cost_is_the_least_and_the_claims_are_true(case):
    buffers, banks, cost, demands = case
    best = least_cost(buffers, banks, cost, **demands)
    answer, refusal = attempt(lm.allocate_banks, buffers, banks, cost=cost, **demands)
    if answer is None:
        assert (
            best is None
            or "not a multiple" in refusal
            or "a group that begins at an aligned address" in refusal
        )
        return
    if best is None:
        assert answer.status in ("infeasible", "unknown")
        return
    assert answer.memory is not None or not orderly(buffers)
    assert answer.status != "infeasible"
    assert answer.lower_bound <= best
    if answer.memory is not None:
        # Pins of buffers that may live in several memories do not meet.
        anywhere = [
            replace(buffer, prefers=buffer.prefers or tuple(bank.name for bank in banks))
            for buffer in buffers
        ]
        problem = problem_of(anywhere, **demands)
        assert lm.verify_banks(problem, answer.memory, answer.offsets, banks) == ()
        assert answer.cost >= best
        assert (answer.status == "optimal") == (answer.cost == answer.lower_bound)


THREE = buffers_of("a 0 4 6, b 2 6 3, c 5 9 8")
CROWDED = crowd(300, 300, 40, 65, step=64), [lm.Bank("sram", 30_000), DRAM]


@pytest.mark.parametrize(
    ("changed", "memories"),
    cases("""
        b 2 6 3 accesses=100 | sram sram dram
        c 5 9 8 prefers=sram+dram:1 | sram sram dram
        b 2 6 3 prefers=dram+sram | sram dram sram
        b 2 6 3 memory=sram | sram sram dram
        a 0 4 6 memory=dram offset=64 | dram dram sram
    """),
)
def test_accesses_costs_preferences_and_pins_decide(changed, memories):
    (new,) = buffers_of(changed)
    buffers = [new if new.id == buffer.id else buffer for buffer in THREE]
    assert lm.allocate_banks(buffers, [SRAM, DRAM]).memory == tuple(memories.split())


def test_pins_to_different_memories_do_not_meet_beside_an_alias_or_with_costs():
    pinned = buffers_of("p 0 4 6 memory=sram offset=0, q 0 4 6 memory=dram offset=0")
    assert lm.allocate_banks([*pinned, *THREE], [SRAM, DRAM], aliases=((2, 4),)).offsets[
        :2
    ].tolist() == [0, 0]
    anywhere = [replace(buffer, memory=None) for buffer in pinned]
    assert lm.allocate_banks(anywhere, [SRAM, DRAM], cost=[[0, -1], [-1, 0]]).offsets.tolist() == [
        0,
        0,
    ]


def test_what_is_pinned_is_packed_before_others():
    buffers = buffers_of("b3 1 4 6, b5 1 2 2 memory=m1 offset=7")
    banks = [lm.Bank("m0", 4), lm.Bank("m1", 9, reserved=((1, 2),))]
    assert lm.allocate_banks(buffers, banks).status == "infeasible"
    answer = lm.allocate_banks(buffers, [*banks, DRAM])
    assert (answer.status, answer.memory) == ("optimal", ("dram", "m1"))


def test_aliases_without_bytes_share_a_memory():
    buffers = buffers_of("a 0 4 0 prefers=sram+dram, b 0 4 0 prefers=dram+sram")
    answer = lm.allocate_banks(buffers, [SRAM, DRAM], aliases=((0, 1),))
    assert answer.memory[0] == answer.memory[1]


def test_what_fits_nowhere_says_why():
    answer = lm.allocate_banks(buffers_of("a 0 4 60 memory=sram"), [SRAM, DRAM])
    assert (answer.status, answer.memory) == ("infeasible", None)
    assert answer.reason.required == 60
    both = lm.allocate_banks(THREE, [lm.Bank("x", 4), lm.Bank("y", 7)])
    assert both.status == "infeasible"


def test_bounds_hold_whatever_the_prices():
    problem = problem_of(THREE)
    cost = np.array([[0, 6], [0, 3], [0, 8]])
    relaxation = relax(problem, (SRAM, DRAM), cost)
    allowed = cost != FORBIDDEN
    prices, _ = AssignmentProgram(relaxation, None).linear(allowed)
    assert relaxation.bound(prices, allowed) > 0
    first = prices.capacity.copy()
    for factor in (0.0, 0.3, 1.0, 7.0, 1e6):
        prices.capacity[:] = factor * first
        assert relaxation.bound(prices, allowed) <= 3
    assert prove(AssignmentProgram(relaxation, None), relaxation, 3, 100).bound == 3
    relaxation.cuts.append(CoverCut(0, np.array([0]), 0))
    assert prove(AssignmentProgram(relaxation, None), relaxation, 9, 100).bound == 9


@pytest.mark.slow
def test_the_same_input_gives_the_same_answer_and_many_buffers_a_bound():
    for count in (40, 8_000):
        one, two = (
            lm.allocate_banks(crowd(count, count, 40, 65, step=64), CROWDED[1]) for _ in range(2)
        )
        assert one.memory == two.memory
        assert one.offsets.tolist() == two.offsets.tolist()
        assert 0 < one.lower_bound <= one.cost
        assert not one.interrupted


def test_a_time_limit_of_nothing_still_gives_a_packing():
    answer = lm.allocate_banks(*CROWDED, time_limit=0.0)
    assert answer.interrupted
    assert answer.memory is not None
    assert 0 < answer.lower_bound <= answer.cost


@pytest.mark.parametrize("where", ["solve", "spill"])
def test_an_interrupt_at_any_packing_ends_the_search_with_a_packing(where, monkeypatch):
    calls, real = [], getattr(allocate, where)

    def interrupted(*args):
        calls.append(args)
        if where == "spill" and len(calls) == 1:
            raise KeyboardInterrupt
        answer = real(*args)
        return answer if where == "spill" else replace(answer, interrupted=True)

    monkeypatch.setattr(allocate, where, interrupted)
    answer = lm.allocate_banks(*CROWDED, effort="thorough")
    assert answer.interrupted
    assert answer.memory is not None
    if where == "solve":
        assert all(args[5].passed() for args in calls[1:])


def test_an_assignment_that_the_memory_without_a_limit_cannot_pack_is_not_taken(monkeypatch):
    """A strategy may find nothing within its budget."""
    solve = allocate.solve

    def unlucky(part, capacity, *options):
        answer = solve(part, capacity, *options)
        failed = capacity is None and len(part)
        return replace(answer, offsets=None, peak=None) if failed else answer

    monkeypatch.setattr(allocate, "solve", unlucky)
    answer = lm.allocate_banks(*CROWDED)
    assert (answer.status, answer.memory) == ("unknown", None)


def test_a_round_that_a_time_limit_ends_is_interrupted(monkeypatch):
    def ended(task, nodes):
        task.deadline = Deadline.within(0.0)
        return False

    monkeypatch.setattr(allocate._Task, "_round", ended)
    assert lm.allocate_banks(*CROWDED, time_limit=60.0).interrupted


def test_a_time_limit_that_does_not_strike_changes_nothing():
    """Each packing once used all the time that was left."""
    buffers = crowd(200, 40, 40, 65, step=64)
    free, limited = (
        lm.allocate_banks(buffers, CROWDED[1], time_limit=limit) for limit in (None, 20.0)
    )
    assert limited.offsets.tolist() == free.offsets.tolist()
    assert not limited.interrupted


def test_nothing_at_all_costs_nothing():
    assert lm.allocate_banks([], [SRAM]).status == "optimal"
    answer = lm.allocate_banks(buffers_of("empty 3 3 50, nothing 0 9 0"), [lm.Bank("none", 0)])
    assert (answer.status, answer.cost, answer.memory) == ("optimal", 0, ("none", "none"))


def test_counters_are_plain_so_that_one_that_is_absent_is_not_zero():
    assert type(lm.allocate_banks(THREE, [SRAM, DRAM]).counters) is dict


@pytest.mark.parametrize(
    ("memory", "offsets", "rules"),
    cases("""
        sram dram sram | 0 0 0 |
        sram sram sram | 0 0 0 | overlap
        sram dram sram | 0 0 4 | capacity
        sram l2 sram | 0 0 0 | memory
        sram dram dram | 0 0 0 | memory overlap
        sram dram sram | 1 0 0 | alignment reserved
        sram dram sram | -1 0 0 | complete
        sram | 0 0 0 | complete
    """),
)
def test_the_verifier_finds_what_is_wrong(memory, offsets, rules):
    buffers = buffers_of("a 0 4 6, b 2 6 3, c 5 9 8 prefers=sram")
    banks = (lm.Bank("sram", 10, 2, ((6, 7),) if offsets[0] == "1" else ()), DRAM)
    found = lm.verify_banks(
        problem_of(buffers), tuple(memory.split()), np.array(offsets.split(), np.int64), banks
    )
    assert {violation.rule for violation in found} == set(rules.split())


def test_the_verifier_keeps_aliases_together():
    found = lm.verify_banks(
        problem_of(THREE, aliases=((0, 2),)),
        ("sram", "dram", "dram"),
        np.array([0, 10, 0]),
        (SRAM, DRAM),
    )
    assert {violation.rule for violation in found} == {"alias"}


@pytest.mark.parametrize(
    ("buffers", "banks", "words"),
    [
        (THREE, [], "memories: give at least one"),
        (THREE, [SRAM, SRAM], "memory 'sram' is there twice"),
        (THREE, [lm.Bank("a b")], "a name has at least one letter"),
        (THREE, [lm.Bank("m", -1)], "memory 'm': capacity is -1"),
        (THREE, [lm.Bank("m", 1.5)], "capacity is 1.5"),
        (THREE, [lm.Bank("m", alignment=0)], "memory 'm': alignment is 0"),
        (THREE, [lm.Bank("m", reserved=((5, 2),))], "reserved range 5-2"),
        (THREE, [lm.Bank("m", reserved=(1, 2))], "'m': reserved: give pairs"),
        ([lm.Buffer("a", 0, 1, 2**40, accesses=2**40)], [SRAM, DRAM], "2\\^62 or more"),
        *(
            (buffers_of(f"a 0 1 1 {fields}"), [SRAM, DRAM], words)
            for fields, words in cases("""
            memory=l2 | 'a': memory 'l2' does not exist
            prefers=l2 | 'a': memory 'l2' does not exist
            prefers=dram memory=sram | 'sram' is not among those it prefers
            prefers=sram+sram | names a memory twice
            accesses=-1 | accesses has -1
            prefers=sram:4611686018427387904 | prefers has 4611686018427387904
            offset=0 | offset is pinned, but not the memory
            """)
        ),
    ],
)
def test_malformed_memories_are_refused_by_name(buffers, banks, words):
    with pytest.raises(AllocationError, match=words):
        lm.allocate_banks(buffers, banks)


def test_one_memory_does_not_do_for_buffers_that_name_several():
    with pytest.raises(AllocationError, match="say what memories there are"):
        lm.allocate(buffers_of("a 0 1 1 memory=sram"))
    for cost in ([[0, 1]], [[0, 1], [0], [0]]):
        with pytest.raises(AllocationError, match="cost: give whole numbers"):
            lm.allocate_banks(THREE, [SRAM, DRAM], cost=cost)
    with pytest.raises(AllocationError, match="must share a memory"):
        lm.allocate_banks(THREE, [SRAM, DRAM], cost=[[0, -1], [-1, 0], [0, 0]], aliases=((0, 1),))


def test_aliases_at_an_offset_share_a_memory_and_keep_their_distance():
    buffers = buffers_of("whole 2 5 96, part 0 2 30, other 0 5 64")
    banks = [lm.Bank("sram", 128, alignment=64), lm.Bank("dram", alignment=64)]
    wanted = {"aliases": ((0, (1, 33)),)}
    answer = lm.allocate_banks(buffers, banks, **wanted)
    assert (answer.status, answer.cost, answer.memory[0]) == ("optimal", 64, answer.memory[1])
    assert answer.offsets[1] - answer.offsets[0] == 33
    problem = problem_of(buffers, **wanted)
    assert lm.verify_banks(problem, answer.memory, answer.offsets, banks) == ()
    odd = [buffers[0], replace(buffers[1], alignment=2), buffers[2]]
    with pytest.raises(AllocationError, match="a group that begins at an aligned address"):
        lm.allocate_banks(odd, banks, **wanted)


def test_members_of_an_alias_group_with_bytes_between_them_are_one_entry_of_the_program():
    # HiGHS never ended where an entry was there twice.
    buffers = buffers_of("low 0 1 3, other 0 1 5, high 0 1 3 prefers=m0+m2")
    banks = [lm.Bank("m0", 8), lm.Bank("m1", 6), lm.Bank("m2", 8)]
    answer = lm.allocate_banks(buffers, banks, aliases=((0, (2, 4)),), time_limit=10.0)
    assert (answer.status, answer.interrupted) == ("optimal", False)


def test_malformed_memories_are_refused_where_a_packing_is_checked():
    with pytest.raises(AllocationError, match="capacity is '64'"):
        lm.verify_banks(problem_of(THREE[:1]), ["x"], [0], [lm.Bank("x", "64")])
