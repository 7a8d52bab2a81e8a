"""Errors a user can act on: each message is one line that names what is at fault and what to do.

And what verifiers say of an answer that does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from types import ModuleType


class LoadmasterError(Exception):
    """Base of every error that Loadmaster raises on purpose."""


class UnitError(LoadmasterError):
    """A quantity could not be read: no number, or a unit of the wrong kind."""


class ModelError(LoadmasterError):
    """A network file could not be understood."""


class TargetError(LoadmasterError):
    """A hardware description is missing, malformed or contradictory."""


class CapacityError(LoadmasterError):
    """Something cannot fit in a memory that has to hold it."""


class PackingError(CapacityError):
    """No way was found to fit something into a memory, which proves nothing."""


class PlanError(LoadmasterError):
    """A plan file is not a plan, or a plan cannot be built."""


class JobError(LoadmasterError):
    """A job list or a table of job costs is malformed, or a cost model cannot say what a job
    costs."""


class MissingPackageError(LoadmasterError):
    """A package that only parts of the program need is not installed."""


class OutputError(LoadmasterError):
    """A result could not be written."""


class AllocationError(LoadmasterError):
    """A set of buffers is malformed or contradictory, or a strategy cannot honour what it asks
    for."""


class MappingError(LoadmasterError):
    """Jobs cannot be mapped: costs are malformed, or a strategy cannot do what is asked for."""


class PlacementError(LoadmasterError):
    """Tensors cannot be placed: kernels, tensors or times are malformed, or a strategy cannot do
    what is asked for."""


class RuntimeUnavailable(LoadmasterError):
    """The runtime cannot work with this build of PyTorch, or on this device."""


class BudgetError(LoadmasterError):
    """A budget of fast memory that cannot be kept."""


class SlowMemoryError(LoadmasterError):
    """The slow memory of the runtime cannot be had, or failed."""


def defect(where: str, error: Exception) -> str:
    """Return what is said of an exception that nobody raised on purpose: it is never blamed on the
    user's file."""
    reason = f"{type(error).__name__}: {str(error)[:300]}"
    return f"{where}: a defect of Loadmaster ({reason}): please report it with the file"


_EXTRAS = {
    "bokeh": "plan",
    "highspy": "plan",
    "onnx": "plan",
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


SHOWN = 20
"""Violations of one rule that are told; then only how many more there are."""


@dataclass(frozen=True)
class Violation:
    """A rule that an answer breaks, and in one line who breaks it, where and when."""

    rule: str
    """Name of the rule."""
    message: str
    """What breaks it, in words."""


def first_violations(broken: Iterable[tuple[str, str]]) -> tuple[Violation, ...]:
    """The first 20 of (rule, message) pairs, as records."""
    return tuple(Violation(rule, message) for rule, message in islice(broken, SHOWN))
