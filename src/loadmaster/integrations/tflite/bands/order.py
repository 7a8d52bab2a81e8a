"""Finds the order of operators with the least peak of tensor bytes.

Minimise over topological orders the maximum, over operators, of

    bytes of the tensors alive before it + bytes of its results.

The tensors alive depend only on the set of operators that have run. So this is a bottleneck
shortest path through sets of operators, found by Dijkstra's algorithm. An operator that does not
raise the peak and does not increase the bytes alive is run at once, because moving it to the front
of any order increases no other set's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from loadmaster.integrations.tflite.lifetimes import arena_bytes
from loadmaster.workloads.frontends.tflite.model import SubgraphEntry

_MOST_STEPS = 500_000
"""Number of expanded operators after which the search continues from the largest set only; the
order found then need not be the best."""

_State = tuple[int, int, int, tuple[Any, ...]]
"""Peak so far and bytes alive, bit set of operators that have run, and their order as nested pairs
(last operator, order before it)."""


@dataclass(frozen=True)
class Order:
    """Operators in the order in which they run, and the peak in bytes."""

    operators: tuple[int, ...]
    load: int


def least_order(subgraph: SubgraphEntry) -> Order | None:
    """Return the order with the least peak; None if no better one than the file's was found, or
    operators have state or subgraphs, which fixes their order."""
    for op in subgraph.operators:
        state = any(t >= 0 and subgraph.tensors[t].is_variable for t in op.inputs)
        if state or op.bodies or not op.outputs or op.kind.startswith(("CUSTOM", "RANDOM")):
            return None
    return _OrderSearch(subgraph).run()


class _OrderSearch:
    """Finds the order of operators with the least peak. Sets of operators are bit masks."""

    def __init__(self, subgraph: SubgraphEntry) -> None:
        operators = subgraph.operators
        self.count, self.steps, self.inputs = len(operators), 0, subgraph.inputs
        makers = {t: number for number, op in enumerate(operators) for t in op.outputs}
        # In a damaged file nothing makes some tensors.
        self.size = {t: arena_bytes(subgraph.tensors[t]) for t in (*subgraph.inputs, *makers)}
        self.made = [sum(self.size[t] for t in op.outputs) for op in operators]
        self.used = [{*op.inputs, *op.outputs} & self.size.keys() for op in operators]
        self.needs = [
            sum({1 << makers[t] for t in {*op.inputs} & makers.keys()}) for op in operators
        ]
        # The end of the network reads its outputs.
        readers = [*(op.inputs for op in operators), subgraph.outputs]
        self.reads = dict.fromkeys(self.size, 0)
        for number, read in enumerate(readers):
            for tensor in {*read} & self.size.keys():
                self.reads[tensor] |= 1 << number

    def run(self) -> Order | None:
        """Run Dijkstra's algorithm, limited by `_MOST_STEPS`."""
        all_done = (1 << self.count) - 1
        alive = sum(self.size[tensor] for tensor in self.inputs if self.reads[tensor])
        # Every operator needs its own tensors.
        least = (sum(self.size[tensor] for tensor in used) for used in self.used)
        start: _State = (max([alive, *least]), alive, 0, ())
        own = start
        for number in range(self.count):
            own = self._state_after(own, number)
        waiting, seen = [self._run_free_operators(start)], set[int]()
        while waiting:
            if self.steps > _MOST_STEPS:
                waiting = [min(waiting, key=lambda state: (-state[2].bit_count(), state))]
            load, alive, done, path = heappop(waiting)
            if load >= own[0]:
                return None
            if done == all_done:
                return Order(_flatten(path), load)
            if done in seen:
                continue
            seen.add(done)
            for number in range(self.count):
                if self._is_ready(number, done):
                    state = self._run_free_operators(
                        self._state_after((load, alive, done, path), number)
                    )
                    if state[2] not in seen:
                        heappush(waiting, state)
        return None

    def _run_free_operators(self, state: _State) -> _State:
        """Return the state after running all operators that can be run at once."""
        number = 0
        while number < self.count:
            after = self._state_after(state, number) if self._is_ready(number, state[2]) else None
            if after is not None and after[0] == state[0] and after[1] <= state[1]:
                state, number = after, 0
            else:
                number += 1
        return state

    def _is_ready(self, number: int, done: int) -> bool:
        """Whether an operator has not run and all producers of its operands have."""
        return not done >> number & 1 and not self.needs[number] & ~done

    def _state_after(self, state: _State, number: int) -> _State:
        """Return the state after operator ``number``: peak, bytes alive, operators done, path."""
        self.steps += 1
        load, alive, done, path = state
        done |= 1 << number
        alive += self.made[number]
        freed = sum(self.size[t] for t in self.used[number] if not self.reads[t] & ~done)
        return max(load, alive), alive - freed, done, (number, path)


def _flatten(path: tuple[Any, ...]) -> tuple[int, ...]:
    """Return nested pairs (last, all before it) as a tuple in order."""
    found = []
    while path:
        number, path = path
        found.append(number)
    return tuple(reversed(found))
