"""Packages that only parts of the program need, and the extra of Loadmaster's own that installs
each."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from loadmaster.core.errors import MissingPackageError

_EXTRAS = {
    "bokeh": "plan",
    "highspy": "plan",
    "onnx": "plan",
    "perfetto": "plan",
    "pydantic": "plan",
    "torch": "torch",
    "transformers": "torch",
    "onnxscript": "torch",
    "ortools": "rivals",
    "omnimalloc": "rivals",
    "accelerate": "torch",
    "sklearn": "learn",
    "cma": "optimisers",
    "pymoo": "optimisers",
    "optuna": "optimisers",
    "pandas": "notebook",
    "stable_baselines3": "search",
    "gymnasium": "search",
    "distributed": "cluster",
    "executorch": "executorch",
    "iree": "iree",
    "tflite_micro": "tflite",
}
"""The extra that brings a package, by the name under which the package is imported; the allocator
needs none of them."""


def package(name: str, purpose: str) -> ModuleType:
    """Import a module of a package that only ``purpose`` needs.

    Raises
    ------
    MissingPackageError
        If the package is not installed; the message says what needs it and how to install it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise missing(error, purpose) from None


def missing(error: ModuleNotFoundError, purpose: str) -> ModuleNotFoundError | MissingPackageError:
    """What to raise for an import that failed: an error that says what to install, or the same
    error if no extra brings the module."""
    root = (error.name or "").partition(".")[0]
    if root not in _EXTRAS:
        return error
    return MissingPackageError(
        f"{purpose} needs {root}, which is not installed: pip install 'loadmaster[{_EXTRAS[root]}]'"
    )
