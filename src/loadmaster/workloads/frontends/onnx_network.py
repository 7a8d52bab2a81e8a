"""`.onnx` and `.onnx.gz` files, and `onnx:NAME` (resnet50, vgg19, ...) for the networks that the
onnx package ships."""

from __future__ import annotations

import sys
from typing import Any

from loadmaster.workloads.frontends.frontend import Frontend, LoadOptions
from loadmaster.workloads.graph import Graph


def read(source: str, options: LoadOptions) -> Graph:
    """Read a file, or a network of the onnx package."""
    from loadmaster.workloads.frontends.onnx.file import load_onnx

    return load_onnx(source, options)


def holds(value: object) -> bool:
    """Whether a value is an ``onnx.ModelProto``; there is none where onnx was not imported."""
    onnx: Any = sys.modules.get("onnx")
    return onnx is not None and isinstance(value, onnx.ModelProto)


def read_held(source: Any, options: LoadOptions) -> Graph:
    """Read an ``onnx.ModelProto``, which stays as it is."""
    from loadmaster.workloads.frontends.onnx.file import load_model

    return load_model(source, options)


NAME = "onnx"
FRONTEND = Frontend(read, (".onnx", ".onnx.gz"), holds, read_held)
