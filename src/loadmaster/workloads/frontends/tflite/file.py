"""From a ``.tflite`` file to a network, with one-line errors that begin with the file's name."""

from __future__ import annotations

from pathlib import Path

from loadmaster.core.arguments import instead
from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.frontend import labelled
from loadmaster.workloads.frontends.onnx.types import PRECISIONS
from loadmaster.workloads.frontends.tflite.graph_builder import build_graph
from loadmaster.workloads.frontends.tflite.model import parse_model, read_file
from loadmaster.workloads.graph import Graph


def load_tflite(
    source: str, *, batch: int | None = None, precision: str | None = None, name: str | None = None
) -> Graph:
    """Read a network from a ``.tflite`` file; parameters and errors as in
    :func:`loadmaster.workloads.frontends.load.load`."""
    with labelled(source):
        if precision is not None and precision not in PRECISIONS:
            raise ModelError(
                f"there is no precision {precision!r}: {instead(precision, PRECISIONS)}"
            )
        return build_graph(
            parse_model(read_file(source)),
            name=name or Path(source).stem or "network",
            source=source,
            batch=batch,
            precision=precision,
        )
