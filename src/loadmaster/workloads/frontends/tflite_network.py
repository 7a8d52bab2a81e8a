"""`.tflite` files, as the converters of TensorFlow Lite write them."""

from __future__ import annotations

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.frontend import Frontend, LoadOptions
from loadmaster.workloads.graph import Graph


def read(source: str, options: LoadOptions) -> Graph:
    """Read a file."""
    if options.training:
        raise ModelError(
            f"{source}: a .tflite file holds no training step: give torch:module.path:factory"
        )
    if options.dims:
        raise ModelError(
            f"{source}: the shapes in a .tflite file are fixed: convert the model with the sizes"
            " that --dim would give"
        )
    from loadmaster.workloads.frontends.tflite.graph_builder import load_tflite

    return load_tflite(source.removeprefix("tflite:"), options)


NAME = "tflite"
FRONTEND = Frontend(read, (".tflite",))
