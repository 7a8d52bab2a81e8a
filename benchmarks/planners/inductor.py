"""What PyTorch's Inductor plans for a module, taken while it generates code: it writes no dump of
its plan.

``memory_planning`` with one pool for everything, outputs included, so that its plan is one arena;
inference only, because training falls back to reusing whole buffers. What libraries allocate for
themselves, such as convolutions on a processor, Inductor does not plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor import config
from torch._inductor.codegen.memory_planning import MemoryPlanner
from torch._inductor.virtualized import V

from loadmaster.integrations.dumps.arena import DumpedArena, DumpedBuffer, arena_of

ALIGNMENT = 64


def inductor(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[DumpedArena]:
    """The pools of a module; its lifetimes are half-open."""
    arenas: list[DumpedArena] = []
    original = MemoryPlanner.allocate_groups

    def watched(planner: Any) -> None:
        original(planner)
        for pools in planner.pools.device_to_pools.values():
            for pool in pools:
                blocks = [
                    group.allocation
                    for group in planner.buffer_groups
                    if group.allocation.pool is pool
                ]
                buffers = [
                    DumpedBuffer(
                        block.node.get_name(),
                        block.live_range.begin,
                        block.live_range.end - 1,
                        block.size_hint,
                        _bytes(block.offset),
                    )
                    for block in blocks
                ]
                arenas.append(
                    arena_of(
                        Path("inductor"),
                        pool.name,
                        buffers,
                        ALIGNMENT,
                        stated=int(pool.root.get_size_hint()),
                    )
                )

    MemoryPlanner.allocate_groups = watched  # type: ignore[method-assign]
    try:
        with (
            torch.no_grad(),
            config.patch(memory_planning=True, memory_pool="combined", force_disable_caches=True),
        ):
            torch.compile(module.eval())(*inputs)
    finally:
        MemoryPlanner.allocate_groups = original  # type: ignore[method-assign]
    return arenas


def _bytes(size: Any) -> int:
    return int(V.graph.sizevars.optimization_hint(size, fallback=ALIGNMENT))


class Steps(nn.Module):
    """Steps of an LSTM, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(128, 192), nn.Linear(192, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, results = None, []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            results.append(self.out(state[0]))
        return sum(results[1::3], results[0]), results[-1]


def modules() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """Networks of which Inductor plans much: matrix products, normalisation, attention."""
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(
        False
    )  # One kernel for a whole layer would leave nothing to plan.
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    widths = ((300, 512), (512, 384), (384, 640), (640, 256))
    perceptron = nn.Sequential(
        *(
            part
            for one, other in widths
            for part in (nn.Linear(one, other), nn.GELU(), nn.LayerNorm(other))
        )
    )
    return {
        "transformer, 4 layers (torch)": (
            nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
            (torch.rand(4, 128, 256),),
        ),
        "perceptron, 4 layers (torch)": (perceptron, (torch.rand(64, 300),)),
        "LSTM cells, 16 steps (torch)": (Steps(), (torch.rand(32, 16, 128),)),
    }
