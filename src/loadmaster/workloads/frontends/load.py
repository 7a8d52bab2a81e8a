"""One way in for networks of every kind: a frontend is chosen by what the source begins or ends
with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral
from os import PathLike
from typing import Any

from loadmaster.core.arguments import require_type, validate_arguments
from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.frontend import FRONTENDS, Frontend, LoadOptions
from loadmaster.workloads.graph import Graph

_USUAL = "onnx"
"""The frontend of what no other is for: its errors say what can be given."""
_GIVE = (
    "give text or a path, an onnx.ModelProto, or a torch module and its example inputs as (module,"
    " inputs)"
)


@validate_arguments(ModelError)
def load(
    source: Any,
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
        A file or a name of a kind that ``loadmaster.strategies("load")`` lists: an ``.onnx`` file,
        gzipped or not; ``onnx:NAME``, one of the weightless networks that the onnx package ships; a
        ``.tflite`` file; ``torch:module.path:factory`` (see
        :mod:`loadmaster.workloads.frontends.torch.factory`). Or what one has at hand: an
        ``onnx.ModelProto``, or a torch module and its example inputs ``(module, inputs)``; inputs
        are a tensor, a tuple, or a dict of keyword arguments.
    batch
        Leading dimension of the inputs. In ONNX files, where the first input's is symbolic, its
        symbol is set; unnamed unknown leading dimensions are set too. Where it is a number, it is
        replaced in every input that leads with the same number, and constant ``Reshape`` targets
        that then miss the element count by exactly that factor have their leading dimension scaled.
        A torch factory is called with it.
    dims
        Sizes of an ONNX file's unknown dimensions: by symbol, or as ``TENSOR.AXIS`` for those
        without one. An input of one element may be given its value by its name.
    precision
        ``int8``, ``fp16`` or ``fp32``: plan all floating tensors (16 bits and wider) of a file at
        that width. What is quantised in the file stays, and ``Graph.precision`` says so where most
        of the arithmetic is. ``None`` keeps the file's types.
    name
        Name of the network; from the file's or the factory's by default.
    training
        Capture a whole training step of a torch module: forward, backward, and the optimiser if the
        factory returns one.

    Raises
    ------
    ModelError
        The network cannot be read or planned; the message says why and what to do.

    Notes
    -----
    O((V + E) log V) in nodes and edges, apart from the file's size. External weight files are never
    opened.
    """
    sizes = {}
    for key, size in (dims or {}).items():
        require_type(size, Integral, f"load: {key!r} in dims", ModelError)
        sizes[str(key)] = int(size)
    options = LoadOptions(batch, sizes, precision, name, training)
    if not isinstance(source, str | PathLike):
        held = next((each.read_held for each in _frontends() if each.holds(source)), None)
        if held is None:
            raise ModelError(f"load: source is of type {type(source).__name__}: {_GIVE}")
        return held(source, options)
    text = os.fspath(source)
    return _frontend_of(text).read(text, options)


def is_source(value: object) -> bool:
    """Whether :func:`load` takes a value: text, a path, or a network that a frontend can read as it
    is."""
    return isinstance(value, str | PathLike) or any(each.holds(value) for each in _frontends())


def _frontends() -> list[Frontend]:
    """Return all frontends."""
    return [FRONTENDS.find(name) for name in FRONTENDS.names]


def _frontend_of(source: str) -> Frontend:
    """Return the frontend that a source names by its scheme or its suffix; without either the usual
    one."""
    scheme, colon, _ = source.partition(":")
    if colon and scheme in FRONTENDS.names:
        return FRONTENDS.find(scheme)
    return next(
        (each for each in _frontends() if source.lower().endswith(each.suffixes)),
        FRONTENDS.find(_USUAL),
    )
