"""One way in for networks of every kind: ONNX files, and torch modules by the name of their factory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral
from os import PathLike

from loadmaster.core.arguments import takes
from loadmaster.core.errors import ModelError
from loadmaster.workloads.graph import Graph

TORCH = "torch:"


@takes(ModelError, source=(str, PathLike), batch=Integral, dims=Mapping, precision=str, name=str, training=bool)
def load(
    source: str | os.PathLike[str],
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    precision: str | None = None,
    name: str | None = None,
    training: bool = False,
) -> Graph:
    """Read a network; only shapes matter, so weights may be missing.

    Parameters
    ----------
    source
        Path of an ``.onnx`` or gzipped file; ``onnx:NAME`` for one of the weightless networks that the onnx package ships; or
        ``torch:module.path:factory`` for a torch module (see :mod:`loadmaster.workloads.frontends.torch.factory`).
    batch
        Leading dimension of the inputs. In ONNX files, where the first input's is symbolic, its symbol is set; unnamed unknown leading
        dimensions are set too. Where it is a number, it is replaced in every input that leads with the same number, and constant
        ``Reshape`` targets that then miss the element count by exactly that factor have their leading dimension scaled. A torch factory
        is called with it.
    dims
        Sizes of an ONNX file's unknown dimensions: by symbol, or as ``TENSOR.AXIS`` for those without one.
    precision
        ``int8``, ``fp16`` or ``fp32``: plan all floating tensors (16 bits and wider) of an ONNX file at that width. ``None`` keeps the
        file's types.
    name
        Name of the network; from the file's or the factory's by default.
    training
        Capture a whole training step of a torch module: forward, backward, and the optimiser if the factory returns one.

    Raises
    ------
    ModelError
        The network cannot be read or planned; the message says why and what to do.

    Notes
    -----
    O((V + E) log V) in nodes and edges, apart from the file's size. External weight files are never opened.
    """
    label = " ".join(os.fspath(source).split())
    if label.startswith(TORCH):
        from loadmaster.workloads.frontends.torch.factory import load_factory

        if precision is not None or dims:
            raise ModelError(f"{label}: --precision and --dim are for ONNX files: let the factory choose types and sizes")
        return load_factory(label.removeprefix(TORCH), batch=batch, name=name, training=training)
    if training:
        raise ModelError(f"{label}: an ONNX file holds no training step: give torch:module.path:factory")
    from loadmaster.workloads.frontends.onnx.file import load_onnx

    return load_onnx(label, batch=batch, dims=dims, precision=precision, name=name)
