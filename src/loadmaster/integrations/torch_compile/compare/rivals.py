"""Other methods that save memory, with which plans are compared on the same module and slow
memory."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from loadmaster.integrations.torch_compile.backend import compiled_by, unplanned
from loadmaster.integrations.torch_compile.captured import view_of
from loadmaster.integrations.torch_compile.cpu_memory import SlowFile, pages
from loadmaster.integrations.torch_compile.persistent import SMALLEST
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor, compact, fast


def saved_to_file(
    file: SlowFile, kept: Callable[[torch.Tensor], bool]
) -> torch.autograd.graph.saved_tensors_hooks:
    """Return a context in which every tensor that autograd saves is written to a file and read
    back, unless ``kept(tensor)`` (parameters): `torch.autograd.graph.save_on_cpu` with a file."""

    def pack(tensor: torch.Tensor) -> Any:
        """Move a saved tensor to the file, without gaps, unless it is small or kept."""
        if tensor.nbytes < SMALLEST or kept(tensor):
            return tensor
        view = view_of(tensor)
        view = view._replace(stride=compact(view), offset=0)
        slow = SlowTensor(view, file, file.reserve(pages(view.bytes)))
        # A pass backward may read it several times, or not at all.
        weakref.finalize(slow, file.release, slow.start, pages(view.bytes))
        slow.write(tensor.detach().resolve_conj().resolve_neg())
        return slow

    return torch.autograd.graph.saved_tensors_hooks(pack, fast)


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of a network: the outermost modules of the most frequent class
    with children; none if it occurs less than three times."""
    counts = Counter(
        type(m)
        for m in module.modules()
        if [*m.children()] and not isinstance(m, nn.ModuleList | nn.ModuleDict)
    )
    repeated = [cls for cls, count in counts.most_common() if count >= 3]
    if not repeated:
        return []

    def inside(m: nn.Module) -> Iterator[nn.Module]:
        """Yield the outermost modules of the repeated class."""
        for child in m.children():
            yield from [child] if type(child) is repeated[0] else inside(child)

    return [*dict.fromkeys(inside(module))]


@contextmanager
def checkpointed(module: nn.Module) -> Iterator[None]:
    """Recompute each repeated block of the module in the backward pass
    (`torch.utils.checkpoint`)."""
    blocks = [(block, vars(block).get("forward")) for block in blocks_of(module)]
    for block, _ in blocks:
        block.forward = lambda *given, forward=block.forward, **named: checkpoint(
            forward, *given, use_reentrant=False, **named
        )
    try:
        yield
    finally:
        for block, own in blocks:
            del block.forward
            if own is not None:
                block.forward = own


def unmoved_backend(share: float | None = None) -> Callable[..., Any]:
    """Return a backend that runs the same kernels as ours without a plan. With a ``share`` it
    recomputes activations by PyTorch's ``activation_memory_budget``."""
    from functorch.compile import default_partition, min_cut_rematerialization_partition

    if share is None:
        return compiled_by(unplanned, unplanned, default_partition)
    partition = min_cut_rematerialization_partition
    return compiled_by(unplanned, unplanned, partition, activation_memory_budget=share)


def exported(module: nn.Module) -> Callable[..., Any]:
    """Return a function that runs the module's exported graph (`torch.export`) and frees each value
    after its last use."""
    runs: list[torch.fx.Interpreter] = []

    def run(*given: Any, **named: Any) -> Any:
        """Run the exported graph, which the first call exports."""
        if not runs:
            graph = torch.export.export(module, given, named).module()
            runs.append(torch.fx.Interpreter(graph, garbage_collect_values=True))
        return runs[0].run(*given, *named.values())

    return run
