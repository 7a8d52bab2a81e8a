"""Errors a user can act on: each message is one line that names what is at fault and what to do."""


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
