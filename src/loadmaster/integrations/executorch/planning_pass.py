"""The memory planning pass that ExecuTorch's export calls, with this package's allocator in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass

from loadmaster.core.arguments import takes
from loadmaster.core.errors import AllocationError
from loadmaster.integrations.executorch.arenas import Arenas
from loadmaster.integrations.executorch.banks import Banks, MemoryBank


@takes(AllocationError, in_place=bool, alignment=int)
def memory_planning(
    banks: Sequence[MemoryBank] | Any = None,
    *,
    in_place: bool = False,
    alignment: int = 16,
    time_limit: float | None = None,
    **options: Any,
) -> MemoryPlanningPass:
    """Make a pass for ``ExecutorchBackendConfig(memory_planning_pass=...)``.

    Every arena is packed by :func:`loadmaster.allocate`, and checked by code that shares nothing
    with it before ExecuTorch sees it. What was found, and whether it is proven to be the least,
    goes to the logger ``loadmaster.executorch``.

    Parameters
    ----------
    banks : sequence of MemoryBank, or a TargetMemoryMap of ExecuTorch, optional
        Memories, the fastest first, each with its bytes and the ``mem_id`` of its arena. Tensors
        are spread over them so that as few bytes as possible are read and written outside the
        first. Without it, all tensors lie in the arena that their ``mem_id`` names, 1 by default,
        which has the size that they need.
    in_place : bool
        Let element-wise kernels write over an operand of the same type and shape that nothing reads
        any more. Right for kernels that read an element before they write its result, as
        ExecuTorch's portable ones do.
    alignment : int
        Bytes; every offset and every size is a multiple of it.
    time_limit : float, optional
        Seconds for each graph; then the best packing so far is taken, and the log says so.
    **options
        Passed on to ExecuTorch's ``MemoryPlanningPass``: ``alloc_graph_input``,
        ``alloc_graph_output``, ``alloc_mutable_buffers``.

    Raises
    ------
    AllocationError
        If the arguments make no sense.
    CapacityError
        By the pass, if the banks cannot hold a graph's tensors.
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
