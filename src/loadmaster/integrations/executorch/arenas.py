"""Packs a graph's tensors into the arenas of ExecuTorch's runtime, one for each ``mem_id``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from executorch.exir.memory_planning import (
    MemoryAlgoResult,
    SpecAllocResult,
    get_node_tensor_specs,
    greedy,
)

from loadmaster.allocation.allocate import allocate
from loadmaster.allocation.memories.allocate import allocate_banks
from loadmaster.allocation.memories.problem import Bank, BankAllocation
from loadmaster.allocation.problem import Allocation, Buffer
from loadmaster.allocation.rules import problem_of
from loadmaster.core.errors import AllocationError, CapacityError
from loadmaster.integrations.executorch.in_place import in_place_pairs
from loadmaster.integrations.executorch.requests import (
    Held,
    Request,
    held_by_subgraphs,
    requests_of,
)

LOG = logging.getLogger("loadmaster.executorch")

Pairs = Sequence[tuple[int, int]]
Packings = dict[int, tuple[Sequence[int], Allocation]]
"""By arena the indices of the buffers in it, and their packing."""


class ArenaPlanner:
    """Algorithm for ExecuTorch's ``MemoryPlanningAlgorithmSuite``. Without banks it packs each
    arena alone; with banks (by arena) it spreads tensors over them, and must be the only one in the
    suite, which adds up all arenas."""

    __name__ = "loadmaster"

    def __init__(self, banks: Mapping[int, Bank], in_place: bool, time_limit: float | None) -> None:
        self._banks, self._in_place, self._time_limit = banks, in_place, time_limit

    def __call__(
        self,
        alignment: int,
        specs: Iterable[Any],
        graph_module: torch.fx.GraphModule,
        graph_signature: Any = None,
        extra_padding: int = 0,
    ) -> MemoryAlgoResult:
        """Plan one graph. ExecuTorch calls this and stores the result in the tensors."""
        tensors = list(specs)
        requests = requests_of(tensors, alignment)
        held = held_by_subgraphs(graph_module)
        pairs = in_place_pairs(graph_module, requests) if self._in_place else []
        names = {arena: bank.name for arena, bank in self._banks.items()}
        if not names:
            used = {1 if each.arena is None else each.arena for each in requests}
            names = {each: f"arena {each}" for each in sorted(used.union(*(h.size for h in held)))}
        buffers = _buffers_of(requests, held, names, uses_of(graph_module))
        if self._banks:
            packings = self._spread(buffers, pairs, len(requests), alignment, extra_padding)
        else:
            packings = self._each_alone(buffers, pairs, names, len(requests), alignment)
        result = MemoryAlgoResult({}, [0] * (max(names, default=1) + 1))
        # Of every arena there is a buffer for each entry of ``held``.
        owners: list[Request | Held] = [*requests, *held * len(names)]
        for arena, (members, packing) in packings.items():
            padding = extra_padding if len(members) > len(held) else 0
            result.bufsizes[arena] = (packing.peak or 0) + padding
            addresses = [] if packing.offsets is None else packing.offsets.tolist()
            for member, address in zip(members, addresses, strict=True):
                owner = owners[member]
                if isinstance(owner, Held):
                    owner.move(arena, address)
                    continue
                # ExecuTorch's verifier requires one object per storage.
                for tensor, offset in owner.tensors:
                    result.spec_dict[tensor] = SpecAllocResult(arena, 0, address + offset)
        _share_storage(result, requests, pairs)
        proven = all(packing.status == "optimal" for _, packing in packings.values())
        if not (self._banks or self._in_place or proven or held):
            # With subgraphs, greedy has every one begin at address 0.
            theirs = greedy(alignment, tensors, graph_module, graph_signature, extra_padding)
            if len(theirs.bufsizes) == len(result.bufsizes):
                return min(result, theirs, key=lambda each: sum(each.bufsizes))
        return result

    def _each_alone(
        self,
        buffers: Sequence[Buffer],
        pairs: Pairs,
        names: Mapping[int, str],
        tensors: int,
        alignment: int,
    ) -> Packings:
        """Pack each arena alone. Raises `CapacityError` if no addresses are found."""
        problem, packings = problem_of(buffers, in_place=pairs), Packings()
        for arena, name in names.items():
            members = [n for n, each in enumerate(buffers) if (each.memory or "arena 1") == name]
            answer = allocate(
                problem.only(np.array(members)), alignment=alignment, time_limit=self._time_limit
            )
            if answer.offsets is None:
                raise CapacityError(
                    f"ExecuTorch's {name} of {len(members)} tensors could not be packed:"
                    f" {answer.certificate}"
                )
            packings[arena] = members, answer
            LOG.info(
                "%s: %s bytes for %d tensors, %s%s",
                name,
                answer.peak,
                sum(member < tensors for member in members),
                _proof(answer),
                ", time limit reached" if answer.interrupted else "",
            )
        return packings

    def _spread(
        self,
        buffers: Sequence[Buffer],
        pairs: Pairs,
        tensors: int,
        alignment: int,
        extra_padding: int,
    ) -> Packings:
        """Spread buffers over the banks. Raises `CapacityError` if they do not fit."""
        given = self._banks.values()
        banks = [replace(bank, capacity=(bank.capacity or 0) - extra_padding) for bank in given]
        answer = allocate_banks(
            buffers, banks, alignment=alignment, time_limit=self._time_limit, in_place=pairs
        )
        if answer.memory is None:
            proof = (
                "no packing exists, which is proven"
                if answer.status == "infeasible"
                else "none was found within the limits"
            )
            room = ", ".join(f"{bank.name} {bank.capacity}" for bank in given)
            raise CapacityError(
                f"ExecuTorch's {tensors} tensors do not fit into the banks ({room} bytes):"
                f" {proof}. {answer.reason or ''}".strip()
            )
        traffic = [each.size * each.accesses for each in buffers[:tensors]]
        fastest = banks[0].name
        places = zip(traffic, answer.memory, strict=False)
        LOG.info(
            "%d of %d bytes of traffic are outside %s: cost %s, %s",
            sum(bytes for bytes, memory in places if memory != fastest),
            sum(traffic),
            fastest,
            answer.cost,
            _proof(answer),
        )
        return {
            arena: (
                [n for n, memory in enumerate(answer.memory) if memory == bank.name],
                answer.packings[bank.name],
            )
            for arena, bank in self._banks.items()
        }


def _buffers_of(
    requests: Sequence[Request],
    held: Sequence[Held],
    names: Mapping[int, str],
    uses: Mapping[int, int],
) -> list[Buffer]:
    """Return a buffer for every storage, then for every arena the memory of subgraphs. Raises
    `AllocationError` for a tensor in an arena without a name."""
    buffers = []
    for at, request in enumerate(requests):
        if request.arena is not None and request.arena not in names:
            raise AllocationError(
                f"a tensor of shape {list(request.spec.shape)} is in arena {request.arena}, which"
                " is none of the banks: add it to them"
            )
        memory = None if request.arena is None else names[request.arena]
        accesses = max(1, sum(uses.get(id(tensor), 0) for tensor, _ in request.tensors))
        buffers.append(
            Buffer(f"{at}", *request.lifetime, request.size, memory=memory, accesses=accesses)
        )
    for arena, name in names.items():
        for h in held:
            own = f"subgraph at {h.lower} in {name}"
            buffers.append(Buffer(own, h.lower, h.upper, h.size[arena], memory=name))
    return buffers


def _share_storage(result: MemoryAlgoResult, requests: Sequence[Request], pairs: Pairs) -> None:
    """Set the operand as the storage of every result at its address, because ExecuTorch's verifier
    requires this of overlapping tensors."""
    for operand, output in pairs:
        one, other = requests[operand].spec, requests[output].spec
        if result.spec_dict[one] == result.spec_dict[other]:
            if hasattr(other, "storage_base"):
                other.storage_base, other.storage_base_offset = one, 0
            else:
                other.inplace_base = one


def uses_of(graph_module: torch.fx.GraphModule) -> Counter[int]:
    """Return the number of nodes that use each tensor, by the tensor's ``id``."""
    return Counter(
        id(spec)
        for node in graph_module.graph.nodes
        if node.op == "call_function"
        for other in (node, *node.all_input_nodes)
        for spec in get_node_tensor_specs(other)
    )


def _proof(answer: Allocation | BankAllocation) -> str:
    """Describe how close a packing is proven to be to the best."""
    if answer.status == "optimal":
        return "proven to be the least"
    return f"at least {answer.lower_bound} are needed"
