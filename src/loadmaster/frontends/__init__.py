"""From network files to graphs, and from job lists to workloads; format details stop here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.frontends.loading import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    # Reading a CSV file must not wait for onnx to be imported.
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from loadmaster.frontends.loading import load

    return load
