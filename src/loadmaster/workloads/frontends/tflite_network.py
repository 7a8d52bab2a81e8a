"""`.tflite` files, as the converters of TensorFlow Lite write them."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.frontend import Frontend
from loadmaster.workloads.graph import Graph


def read(
    source: str,
    *,
    batch: int | None,
    dims: Mapping[str, int],
    precision: str | None,
    name: str | None,
    training: bool,
) -> Graph:
    """Read a file."""
    if training:
        raise ModelError(
            f"{source}: a .tflite file holds no training step: give torch:module.path:factory"
        )
    if dims:
        raise ModelError(
            f"{source}: the shapes in a .tflite file are fixed: convert the model with the sizes"
            " that --dim would give"
        )
    from loadmaster.workloads.frontends.tflite.graph_builder import load_tflite

    return load_tflite(source.removeprefix("tflite:"), batch=batch, precision=precision, name=name)


NAME = "tflite"
FRONTEND = Frontend(read, (".tflite",))
