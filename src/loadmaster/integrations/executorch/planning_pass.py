"""The memory planning pass for ExecuTorch's export, with this package's allocator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from loadmaster.core.errors import AllocationError, CapacityError, missing

try:
    from executorch.exir.memory_planning import (
        MemoryAlgoResult,
        MemoryPlanningAlgorithmSuite,
        get_node_tensor_specs,
    )
    from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
except ModuleNotFoundError as error:
    raise missing(error, "loadmaster.integrations.executorch") from error

from loadmaster.allocation.memories.allocate import allocate_banks
from loadmaster.allocation.memories.problem import Bank, BankAllocation
from loadmaster.core.arguments import validate_arguments
from loadmaster.integrations.executorch.arenas import (
    LOG,
    Arenas,
    buffers_of,
    held_in,
    place,
    share_storage,
)
from loadmaster.integrations.executorch.in_place import in_place_pairs
from loadmaster.integrations.executorch.requests import Request, held_by_subgraphs, requests_of


@dataclass(frozen=True)
class MemoryBank:
    """A memory for tensors: its bytes for this model, and its arena (``mem_id``, from 1) in the
    runtime.

    ``alignment`` is a multiple of the pass's alignment; None: the same.
    """

    name: str
    size: int
    mem_id: int
    alignment: int | None = None


class Banks:
    """Algorithm for ExecuTorch's ``MemoryPlanningAlgorithmSuite`` that spreads tensors over
    memories. It must be the only one in the suite, which adds up all arenas."""

    __name__ = "loadmaster"

    def __init__(
        self, banks: Sequence[MemoryBank], in_place: bool, time_limit: float | None
    ) -> None:
        self._banks = banks
        self._in_place = in_place
        self._time_limit = time_limit

    @staticmethod
    def of(banks: Any, in_place: bool, time_limit: float | None) -> Banks:
        """Make the algorithm from a sequence of banks, or a ``TargetMemoryMap`` of ExecuTorch.

        Raises
        ------
        AllocationError
            If two have the same name or arena, or one has no bytes.
        """
        given = list(getattr(banks, "banks", banks))
        found = [MemoryBank(bank.name, bank.size, bank.mem_id, bank.alignment) for bank in given]
        arenas = [bank.mem_id for bank in found]
        if (
            not found
            or len(set(arenas)) < len(found)
            or min(arenas) < 1
            or min(bank.size for bank in found) < 1
        ):
            raise AllocationError(
                "banks: give at least one, each with bytes and a mem_id of its own from 1 on"
                " (ExecuTorch keeps 0 for constants)"
            )
        return Banks(found, in_place, time_limit)

    def __call__(
        self,
        alignment: int,
        specs: Iterable[Any],
        graph_module: torch.fx.GraphModule,
        graph_signature: Any = None,
        extra_padding: int = 0,
    ) -> MemoryAlgoResult:
        """Plan one graph. ExecuTorch calls this and stores the result in the tensors."""
        requests = requests_of(list(specs), alignment)
        held = held_by_subgraphs(graph_module)
        names = {bank.mem_id: bank.name for bank in self._banks}
        uses = uses_of(graph_module)
        buffers = [
            replace(
                buffer,
                memory=self._required_bank(request, names),
                accesses=max(1, sum(uses[id(tensor)] for tensor, _ in request.tensors)),
            )
            for buffer, request in zip(buffers_of(requests), requests, strict=True)
        ]
        traffic = [buffer.size * buffer.accesses for buffer in buffers]
        for arena, name in names.items():
            buffers += [
                replace(buffer, id=f"{buffer.id} in {name}", memory=name)
                for buffer in held_in(held, arena)
            ]
        pairs = in_place_pairs(graph_module, requests) if self._in_place else []
        memories = [
            Bank(bank.name, bank.size - extra_padding, bank.alignment or alignment)
            for bank in self._banks
        ]
        answer = allocate_banks(
            buffers, memories, alignment=alignment, time_limit=self._time_limit, in_place=pairs
        )
        if answer.memory is None:
            raise CapacityError(self._refusal(answer, requests))
        result = MemoryAlgoResult({}, [0] * (max(names) + 1))
        for arena, name in names.items():
            pairs_here = zip(requests, answer.memory, strict=False)
            members = [request for request, memory in pairs_here if memory == name]
            packing = answer.packings[name]
            place(result, members, held, packing, arena)
            result.bufsizes[arena] = (packing.peak or 0) + (extra_padding if members else 0)
        if self._in_place:
            share_storage(result, graph_module, requests)
        self._log(answer, traffic)
        return result

    def _required_bank(self, request: Request, names: dict[int, str]) -> str | None:
        """Return the bank whose arena an earlier pass has chosen for a tensor; None if none was
        chosen. Raise AllocationError if it is none of the banks."""
        chosen = {tensor.mem_id for tensor, _ in request.tensors} - {None}
        if chosen - names.keys():
            raise AllocationError(
                f"a tensor of shape {list(request.spec.shape)} is in arena {chosen.pop()}, which is"
                " none of the banks: add it to them"
            )
        return names[chosen.pop()] if chosen else None

    def _refusal(self, answer: BankAllocation, requests: list[Request]) -> str:
        """Return the error message for tensors that do not fit into the banks."""
        proof = (
            "no packing exists, which is proven"
            if answer.status == "infeasible"
            else "none was found within the limits"
        )
        room = ", ".join(f"{bank.name} {bank.size}" for bank in self._banks)
        return (
            f"ExecuTorch's {len(requests)} tensors do not fit into the banks ({room} bytes):"
            f" {proof}. {answer.reason or ''}".strip()
        )

    def _log(self, answer: BankAllocation, traffic: list[int]) -> None:
        """Log the ``traffic``, in bytes by tensor, outside the fastest bank, the cost and its
        proof."""
        pairs = zip(traffic, answer.memory or (), strict=False)
        slow = sum(bytes for bytes, memory in pairs if memory != self._banks[0].name)
        proof = (
            "proven to be the least"
            if answer.status == "optimal"
            else f"at least {answer.lower_bound} by the bound"
        )
        LOG.info(
            "%d of %d bytes of traffic are outside %s: cost %s, %s",
            slow,
            sum(traffic),
            self._banks[0].name,
            answer.cost,
            proof,
        )


def uses_of(graph_module: torch.fx.GraphModule) -> Counter[int]:
    """Return the number of nodes that use each tensor, by the tensor's ``id``."""
    uses: Counter[int] = Counter()
    for node in graph_module.graph.nodes:
        if node.op == "call_function":
            touched = [
                spec
                for other in (node, *node.all_input_nodes)
                for spec in get_node_tensor_specs(other)
            ]
            uses.update(map(id, touched))
    return uses


@validate_arguments(AllocationError)
def memory_planning(
    banks: Sequence[MemoryBank] | Any = None,
    *,
    in_place: bool = False,
    alignment: int = 16,
    time_limit: float | None = None,
    **options: Any,
) -> MemoryPlanningPass:
    """Return a pass for ``ExecutorchBackendConfig(memory_planning_pass=...)``.

    Every arena is packed by :func:`loadmaster.allocate`, and checked by independent code. Sizes of
    arenas, and whether they are proven to be the least, go to the logger ``loadmaster.executorch``.

    Parameters
    ----------
    banks : sequence of MemoryBank, or a TargetMemoryMap of ExecuTorch, optional
        Memories, fastest first, each with its bytes and the ``mem_id`` of its arena. Tensors are
        spread over them so that the fewest bytes are read and written outside of the first. None:
        all tensors are in the arena of their ``mem_id``, 1 by default, of the size that they need.
    in_place : bool
        Let element-wise kernels overwrite an operand of the same type and shape after its last use.
        Valid for kernels that read an element before they write its result, such as ExecuTorch's
        portable kernels.
    alignment : int
        Bytes; every offset and every size is a multiple of it.
    time_limit : float, optional
        Seconds for each graph, after which the best packing so far is taken and logged so.
    **options
        Passed on to ExecuTorch's ``MemoryPlanningPass``: ``alloc_graph_input``,
        ``alloc_graph_output``, ``alloc_mutable_buffers``.

    Raises
    ------
    AllocationError
        If the arguments are invalid.
    CapacityError
        Raised by the pass if the banks cannot hold a graph's tensors.
    """
    if options.get("share_mutable_buffers") and banks is not None:
        raise AllocationError(
            "share_mutable_buffers: ExecuTorch keeps arena 2 for it, so that it does not go with"
            " banks: leave one out"
        )
    planner = (
        Arenas(in_place, time_limit) if banks is None else Banks.of(banks, in_place, time_limit)
    )
    return MemoryPlanningPass(
        MemoryPlanningAlgorithmSuite([planner]), alignment=alignment, **options
    )
