"""Slow and simple answers about placements between kernels, which share no code with the engine."""

from __future__ import annotations

import itertools
import math

from hypothesis import strategies as st

from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelSequence,
    Operand,
    StoredKind,
    StoredTensor,
)

GONE, DIRTY, CLEAN, SLOW = range(4)
"""Where a tensor's bytes are: nowhere, only in the fast memory, in both, only in the slow one."""


def optimum(sequence, limits, moves: bool) -> float:
    """Least seconds of all placements, by trying every state of all tensors at every kernel;
    infinite if there is none."""
    weights = [t for t, tensor in enumerate(sequence.tensors) if tensor.kind is StoredKind.WEIGHT]
    if not moves:
        return min(
            (
                _placed(sequence, limits, places)
                for places in itertools.product((False, True), repeat=len(sequence.tensors))
            ),
            default=0.0,
        )
    best = math.inf
    for ends in itertools.product((DIRTY, CLEAN, SLOW), repeat=len(weights)):
        begin = [GONE] * len(sequence.tensors)
        for t, state in zip(weights, ends, strict=True):
            begin[t] = state
        inputs = [t for t, tensor in enumerate(sequence.tensors) if tensor.kind is StoredKind.INPUT]
        costs = {}
        for places in itertools.product((DIRTY, SLOW), repeat=len(inputs)):
            start = list(begin)
            for t, state in zip(inputs, places, strict=True):
                start[t] = state
            costs[tuple(start)] = 0.0
        for k in range(len(sequence.kernels)):
            # At position 0 a weight stays where it ended the last step: a stay takes at least a
            # kernel.
            costs = _after(sequence, limits, k, _moved(sequence, costs, weights if k == 0 else []))
        for state, cost in _moved(sequence, costs).items():
            kept = all(state[t] == end for t, end in zip(weights, ends, strict=True))
            lost = any(
                x.kind is StoredKind.OUTPUT and sequence.uses[t] and state[t] == GONE
                for t, x in enumerate(sequence.tensors)
            )
            if kept and not lost:
                best = min(best, cost)
    return best


def _placed(sequence, limits, fast) -> float:
    seconds = 0.0
    for k, kernel in enumerate(sequence.kernels):
        live = sum(
            int(sequence.sizes[t])
            for t in range(len(fast))
            if fast[t] and sequence.lifetimes[t][0] <= k < sequence.lifetimes[t][1]
        )
        times = [
            kernel.seconds([not fast[o.tensor] for o in kernel.operands], a)
            for a, algorithm in enumerate(kernel.algorithms)
            if live + algorithm.workspace <= limits[k]
        ]
        seconds += min(times, default=math.inf)
    return seconds


def _moved(sequence, costs, bound=()):
    """All states after any copies and drops between two kernels; tensors that are ``bound`` may
    arrive but not leave."""
    found = dict(costs)
    for t, tensor in enumerate(sequence.tensors):
        out, back = tensor.bytes / sequence.link.to_slow, tensor.bytes / sequence.link.to_fast
        ways = {
            DIRTY: [(CLEAN, out), (SLOW, out), (GONE, 0.0)],
            CLEAN: [(SLOW, 0.0), (GONE, 0.0)],
            SLOW: [(CLEAN, back), (GONE, 0.0)],
            GONE: [],
        }
        for state, cost in list(found.items()):
            if t in bound and state[t] in (DIRTY, CLEAN):
                continue
            for to, price in ways[state[t]]:
                other = (*state[:t], to, *state[t + 1 :])
                if cost + price < found.get(other, math.inf):
                    found[other] = cost + price
    return found


def _after(sequence, limits, k, costs):
    """States after kernel k."""
    kernel, found = sequence.kernels[k], {}
    for state, cost in costs.items():
        # What is written without being read may be put anywhere.
        ways = []
        for operand in kernel.operands:
            place = state[operand.tensor]
            if not operand.read:
                ways.append(
                    [(False, DIRTY), (True, SLOW)] if place in (GONE, CLEAN, DIRTY, SLOW) else []
                )
            elif place == GONE:
                ways.append([])
            else:
                slow = place == SLOW
                ways.append([(slow, (SLOW if slow else DIRTY) if operand.write else place)])
        for choice in itertools.product(*ways):
            fast = {t for t, place in enumerate(state) if place in (DIRTY, CLEAN)} - {
                o.tensor for o in kernel.operands
            }
            fast |= {
                o.tensor for o, (slow, _) in zip(kernel.operands, choice, strict=True) if not slow
            }
            used = sum(int(sequence.sizes[t]) for t in fast)
            in_slow = [slow for slow, _ in choice]
            times = [
                kernel.seconds(in_slow, a)
                for a, x in enumerate(kernel.algorithms)
                if used + x.workspace <= limits[k]
            ]
            total = cost + min(times, default=math.inf)
            after = list(state)
            for operand, (_, place) in zip(kernel.operands, choice, strict=True):
                after[operand.tensor] = place
            if total < found.get(tuple(after), math.inf):
                found[tuple(after)] = total
    return found


@st.composite
def sequences(draw, kernels: int = 5, tensors: int = 4):
    """Small sequences with everything in them, and limits that may be too small."""
    kinds = draw(st.lists(st.sampled_from(list(StoredKind)), min_size=1, max_size=tensors))
    stored = tuple(
        StoredTensor(f"t{i}", draw(st.integers(0, 6)), kind) for i, kind in enumerate(kinds)
    )
    written = {i for i, kind in enumerate(kinds) if kind in (StoredKind.WEIGHT, StoredKind.INPUT)}
    seconds = st.integers(0, 8).map(lambda n: n / 4)
    steps, used = [], set()
    for k in range(draw(st.integers(1, kernels))):
        operands = []
        for t in draw(st.lists(st.integers(0, len(kinds) - 1), unique=True, max_size=3)):
            read, write = (
                draw(st.sampled_from([(True, False), (False, True), (True, True)]))
                if t in written
                else (False, True)
            )
            # What is overwritten before it is read is no weight.
            read |= kinds[t] is StoredKind.WEIGHT and t not in used
            used.add(t)
            slow = draw(st.one_of(seconds, seconds, st.just(math.inf)))
            operands.append(Operand(t, read, write, draw(seconds), slow))
        written |= {operand.tensor for operand in operands}
        algorithms = tuple(
            Algorithm(f"a{a}", draw(seconds), draw(st.integers(0, 4)))
            for a in range(draw(st.integers(1, 2)))
        )
        measured = None
        if draw(st.integers(0, 3)) == 0:
            size = 2 ** len(operands)
            entry = st.one_of(seconds, seconds, st.just(math.inf))
            measured = tuple(
                (draw(seconds), *(draw(entry) for _ in range(size - 1))) for _ in algorithms
            )
        steps.append(Kernel(f"k{k}", "any", tuple(operands), algorithms, measured))
    link = CopyLink(
        draw(st.sampled_from([1.0, 4.0, 16.0])), draw(st.sampled_from([1.0, 4.0, 16.0])), 1.0, 1.0
    )
    return KernelSequence("random", stored, tuple(steps), link, draw(st.sampled_from([1, 1, 2])))
