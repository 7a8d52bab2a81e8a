"""Errors that a user can act on, and violations found by verifiers.

Every message is one line that names the fault and says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from types import ModuleType


class LoadmasterError(Exception):
    """Base of every error that Loadmaster raises on purpose."""


class UnitError(LoadmasterError):
    """A quantity is malformed: not a number, or with a unit of the wrong kind."""


class ModelError(LoadmasterError):
    """A network file could not be understood."""


class TargetError(LoadmasterError):
    """A hardware description is missing, malformed or contradictory."""


class CapacityError(LoadmasterError):
    """Tensors or buffers cannot fit into a memory."""


class PackingError(CapacityError):
    """No packing into a memory was found; infeasibility is not proven."""


class PlanError(LoadmasterError):
    """A plan file is not a plan, or a plan cannot be built."""


class JobError(LoadmasterError):
    """A job list or a table of job costs is malformed, or a cost model cannot say what a job
    costs."""


class MissingPackageError(LoadmasterError):
    """An optional package is not installed."""


class OutputError(LoadmasterError):
    """A result could not be written."""


class AllocationError(LoadmasterError):
    """A set of buffers is malformed or contradictory, or a strategy does not support a demand."""


class MappingError(LoadmasterError):
    """Jobs cannot be mapped: costs are malformed, or a strategy does not support an option."""


class PlacementError(LoadmasterError):
    """Tensors cannot be placed: kernels, tensors or times are malformed, or a strategy does not
    support an option."""


class RuntimeUnavailable(LoadmasterError):
    """The runtime cannot work with this build of PyTorch, or on this device."""


class BudgetError(LoadmasterError):
    """A budget of fast memory that cannot be kept."""


class SlowMemoryError(LoadmasterError):
    """The runtime's slow memory is not available, or failed."""


def error_text(error: BaseException) -> str:
    """Return type and message of an error, shortened."""
    return f"{type(error).__name__}: {str(error)[:300]}"


def defect(where: str, error: Exception) -> str:
    """Return the message for an unexpected exception: a defect of Loadmaster, not of the user's
    file."""
    return f"{where}: a defect of Loadmaster ({error_text(error)}): please report it with the file"


_EXTRAS = {
    name: extra
    for extra, names in {
        "plan": "bokeh highspy onnx pydantic",
        "torch": "torch transformers onnxscript accelerate",
        "rivals": "ortools omnimalloc",
        "learn": "sklearn",
        "optimisers": "cma pymoo optuna",
        "notebook": "pandas",
        "search": "stable_baselines3 gymnasium",
        "cluster": "distributed",
        "executorch": "executorch",
        "iree": "iree",
        "tflite": "tflite_micro",
    }.items()
    for name in names.split()
}
"""The extra that installs a package, by import name."""


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
    """Return the error to raise for a failed import: one that says what to install, or the same
    error if no extra installs the module."""
    root = (error.name or "").partition(".")[0]
    if root not in _EXTRAS:
        return error
    return MissingPackageError(
        f"{purpose} needs {root}, which is not installed: pip install 'loadmaster[{_EXTRAS[root]}]'"
    )


_ERRORS_SHOWN = 3
"""Most mistakes in a file that an error names."""


def first_errors(errors: Sequence[str]) -> str:
    """Join the first few errors of a file on one line, and count the others."""
    more = len(errors) - _ERRORS_SHOWN
    return "; ".join(errors[:_ERRORS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


SHOWN = 20
"""Most violations of one rule that are listed; the rest is counted."""


@dataclass(frozen=True)
class Violation:
    """A violated rule, and a line that says what violates it, where and when."""

    rule: str
    """Name of the rule."""
    message: str
    """What breaks it, in words."""


def first_violations(broken: Iterable[tuple[str, str]]) -> tuple[Violation, ...]:
    """Return the first 20 (rule, message) pairs as records."""
    return tuple(Violation(rule, message) for rule, message in islice(broken, SHOWN))
