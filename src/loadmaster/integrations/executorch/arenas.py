"""Memory planning with one arena for each ``mem_id``, of minimal size."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult, greedy

from loadmaster.allocation.allocate import allocate
from loadmaster.allocation.problem import Allocation, Buffer
from loadmaster.core.errors import AllocationError, CapacityError
from loadmaster.integrations.executorch.in_place import in_place_pairs
from loadmaster.integrations.executorch.requests import (
    Held,
    Request,
    held_by_subgraphs,
    requests_of,
)

LOG = logging.getLogger("loadmaster.executorch")


class Arenas:
    """Algorithm for ExecuTorch's ``MemoryPlanningAlgorithmSuite`` that packs each arena alone."""

    __name__ = "loadmaster"

    def __init__(self, in_place: bool, time_limit: float | None) -> None:
        self._in_place, self._time_limit = in_place, time_limit

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
        arenas = sorted(
            {arena_of(request) for request in requests}
            | {arena for node in held for arena in node.size}
        )
        result = MemoryAlgoResult({}, [0] * (max(arenas, default=1) + 1))
        proven = True
        for arena in arenas:
            members = [request for request in requests if arena_of(request) == arena]
            pairs = in_place_pairs(graph_module, members) if self._in_place else []
            answer = self._pack(members, held, arena, alignment, pairs)
            result.bufsizes[arena] = (answer.peak or 0) + (extra_padding if members else 0)
            place(result, members, held, answer, arena)
            LOG.info("arena %d: %s", arena, _result_text(answer, len(members)))
            proven &= answer.status == "optimal"
        if self._in_place:
            share_storage(result, graph_module, requests)
        elif not (proven or held):  # greedy has every subgraph begin at address 0
            return _smaller(
                result, greedy(alignment, tensors, graph_module, graph_signature, extra_padding)
            )
        return result

    def _pack(
        self,
        members: list[Request],
        held: list[Held],
        arena: int,
        alignment: int,
        pairs: list[tuple[int, int]],
    ) -> Allocation:
        """Return addresses for the tensors of one arena; raise CapacityError if none are found."""
        buffers = [*buffers_of(members), *held_in(held, arena)]
        answer = allocate(buffers, alignment=alignment, time_limit=self._time_limit, in_place=pairs)
        if answer.offsets is None:
            raise CapacityError(
                f"ExecuTorch's arena {arena} of {len(buffers)} tensors could not be packed:"
                f" {answer.certificate}"
            )
        return answer


def arena_of(request: Request) -> int:
    """Return the arena of a tensor that an earlier pass has chosen, else the first."""
    chosen = {tensor.mem_id for tensor, _ in request.tensors} - {None}
    if len(chosen) > 1:
        raise AllocationError(
            f"a tensor of shape {list(request.spec.shape)} and what lies in its storage are in"
            f" arenas {sorted(chosen)}"
        )
    return int(chosen.pop()) if chosen else 1


def buffers_of(requests: Iterable[Request]) -> list[Buffer]:
    """Return a buffer for every storage."""
    return [Buffer(f"{at}", *request.lifetime, request.size) for at, request in enumerate(requests)]


def held_in(held: Iterable[Held], arena: int) -> list[Buffer]:
    """Return the memory of subgraphs in one arena, as a buffer for each entry of ``held``."""
    return [Buffer(f"subgraph at {h.lower}", h.lower, h.upper, h.size[arena]) for h in held]


def place(
    result: MemoryAlgoResult,
    requests: Sequence[Request],
    held: Sequence[Held],
    packing: Allocation,
    arena: int,
) -> None:
    """Write the addresses of storages in an arena, and of all tensors in them, into ExecuTorch's
    result, and move the tensors of subgraphs to theirs. Its verifier requires one object per
    storage."""
    addresses = [] if packing.offsets is None else packing.offsets.tolist()
    for request, address in zip(requests, addresses, strict=False):
        for tensor, offset in request.tensors:
            result.spec_dict[tensor] = SpecAllocResult(arena, 0, address + offset)
    for each, address in zip(held, addresses[len(requests) :], strict=True):
        each.move(arena, address)


def share_storage(
    result: MemoryAlgoResult, graph_module: torch.fx.GraphModule, requests: list[Request]
) -> None:
    """Set the operand as the storage of every result at its address, because ExecuTorch's verifier
    requires this of overlapping tensors."""
    for operand, output in in_place_pairs(graph_module, requests):
        one, other = requests[operand].spec, requests[output].spec
        at, there = result.spec_dict[one], result.spec_dict[other]
        if (at.mem_id, at.mem_offset) == (there.mem_id, there.mem_offset):
            if hasattr(other, "storage_base"):
                other.storage_base, other.storage_base_offset = one, 0
            else:
                other.inplace_base = one


def _smaller(one: MemoryAlgoResult, other: MemoryAlgoResult) -> MemoryAlgoResult:
    """Return the result with fewer bytes; the first if equal or if they have different arenas."""
    return (
        other
        if sum(other.bufsizes) < sum(one.bufsizes) and len(one.bufsizes) == len(other.bufsizes)
        else one
    )


def _result_text(answer: Allocation, tensors: int) -> str:
    """Describe a packing: its bytes, its tensors, and how close it is proven to be."""
    proof = (
        "proven to be the least"
        if answer.status == "optimal"
        else f"at least {answer.lower_bound} are needed"
    )
    return (
        f"{answer.peak} bytes for {tensors} tensors,"
        f" {proof}{', time limit reached' if answer.interrupted else ''}"
    )
