"""`torch:module.path:factory` for a torch module, by the function that makes it."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.frontend import Frontend
from loadmaster.workloads.graph import Graph


def read(source: str, *, batch: int | None, dims: Mapping[str, int], precision: str | None, name: str | None, training: bool) -> Graph:
    """Call the factory and capture what it makes."""
    if precision is not None or dims:
        raise ModelError(f"{source}: --precision and --dim are for ONNX files: let the factory choose types and sizes")
    from loadmaster.workloads.frontends.torch.factory import load_factory

    return load_factory(source.partition(":")[2], batch=batch, name=name, training=training)


NAME = "torch"
FRONTEND = Frontend(read)
