"""`torch:module.path:factory` for a torch module, by the function that makes it."""

from __future__ import annotations

import sys
from typing import Any

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.frontend import Frontend, LoadOptions
from loadmaster.workloads.graph import Graph


def read(source: str, options: LoadOptions) -> Graph:
    """Call the factory and capture what it makes."""
    from loadmaster.workloads.frontends.torch.factory import as_made, load_factory

    as_made(source, options.precision)
    return load_factory(source.partition(":")[2], options)


def holds(value: object) -> bool:
    """Whether a value is a torch module, or one with what it is called with; there is none where
    torch was not imported."""
    torch: Any = sys.modules.get("torch")
    module = value[0] if isinstance(value, tuple) and value else value
    return torch is not None and isinstance(module, torch.nn.Module)


def read_held(source: Any, options: LoadOptions) -> Graph:
    """Capture a module with its example inputs; the module stays as it is."""
    label = type(source[0] if isinstance(source, tuple) else source).__name__
    if not isinstance(source, tuple):
        raise ModelError(
            f"{label}: a torch module has shapes only with inputs: give (module, inputs)"
        )
    if options.precision is not None or options.dims or options.batch is not None:
        raise ModelError(
            f"{label}: precision, dims and batch are those of the module and its example inputs:"
            " change these"
        )
    from loadmaster.workloads.frontends.torch.factory import load_module

    return load_module(source, label, options)


NAME = "torch"
FRONTEND = Frontend(read, holds=holds, read_held=read_held)
