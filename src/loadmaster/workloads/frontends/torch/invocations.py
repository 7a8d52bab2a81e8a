"""Calls of torch operators as JSON with all that their time depends on, and nothing that names
their origin.

``["aten.mm.default", positional, keyword]``, where a tensor is ``{"tensor": [dtype, shape,
strides]}``, a type ``{"dtype": name}``, a device ``{"device": name}``, a layout ``{"layout":
name}`` and a memory format ``{"format": name}``; numbers, texts, lists and null are themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from loadmaster.workloads.frontends.torch.calls import Value
from loadmaster.workloads.graph import Invocation


class _CannotSay(Exception):
    """An argument that has no JSON, such as a generator of random numbers."""


def invocation(
    target: Any, args: Any, kwargs: Mapping[str, Any], results: tuple[str, ...]
) -> Invocation | None:
    """Encode the call of an operator; None if an argument has no JSON."""
    tensors: list[str] = []
    try:
        text = _encode(
            [
                f"{target.namespace}.{target._schema.name.partition('::')[2]}.{target._overloadname}",
                args,
                dict(kwargs),
            ],
            tensors,
        )
    except _CannotSay:
        return None
    return Invocation(
        json.dumps(text, separators=(",", ":"), allow_nan=True), tuple(tensors), results
    )


def _encode(value: Any, tensors: list[str]) -> Any:
    """JSON data for a value; names of tensors are collected on the way."""
    if isinstance(value, Value):
        tensors.append(value.name)
        return {"tensor": [value.dtype, value.shape, value.strides]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, tuple | list):
        return [_encode(item, tensors) for item in value]
    if isinstance(value, dict):
        return {key: _encode(item, tensors) for key, item in value.items()}
    for kind, key in (
        (torch.dtype, "dtype"),
        (torch.device, "device"),
        (torch.layout, "layout"),
        (torch.memory_format, "format"),
    ):
        if isinstance(value, kind):
            return {key: str(value).removeprefix("torch.")}
    raise _CannotSay(type(value).__name__)
