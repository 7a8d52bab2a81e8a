"""The memory planning pass for ExecuTorch's export, with this package's allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.core.errors import AllocationError, missing

try:
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
    from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
except ModuleNotFoundError as error:
    raise missing(error, "loadmaster.integrations.executorch") from error

from loadmaster.allocation.memories.problem import Bank
from loadmaster.core.arguments import validate_arguments
from loadmaster.integrations.executorch.arenas import ArenaPlanner


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


def _banks_of(given: Any, alignment: int) -> dict[int, Bank]:
    """Return banks by arena, given as a sequence or a ``TargetMemoryMap`` of ExecuTorch. Raises
    `AllocationError` if two have the same arena, or one has no bytes."""
    listed = list(getattr(given, "banks", given))
    banks = {
        each.mem_id: Bank(each.name, each.size, each.alignment or alignment) for each in listed
    }
    if len(banks) < max(1, len(listed)) or min(banks) < 1 or min(each.size for each in listed) < 1:
        raise AllocationError(
            "banks: give at least one, each with bytes and a mem_id of its own from 1 on"
            " (ExecuTorch keeps 0 for constants)"
        )
    return banks


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
    planner = ArenaPlanner(
        {} if banks is None else _banks_of(banks, alignment), in_place, time_limit
    )
    return MemoryPlanningPass(
        MemoryPlanningAlgorithmSuite([planner]), alignment=alignment, **options
    )
