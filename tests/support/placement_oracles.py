"""Slow and simple answers about placements between kernels, which share no code with the engine."""

import itertools
import math

from hypothesis import strategies as st
from tests.support.sequences import random_sequence

from loadmaster.placement.sequence import StoredKind

GONE, DIRTY, CLEAN, SLOW = range(4)
"""Where a tensor's bytes are: nowhere, only in the fast memory, in both, only in the slow one."""


def optimum(sequence, limits, moves):
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


def _placed(sequence, limits, fast):
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


def sequences(kernels=5, tensors=4):
    """Small sequences with everything in them."""
    sizes = {"kernels": st.integers(1, kernels), "tensors": st.integers(1, tensors)}
    return st.builds(random_sequence, st.integers(0, 10**9), **sizes, hard=st.just(True))
