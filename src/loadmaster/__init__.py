"""Loadmaster plans neural networks onto accelerators: which core runs each layer, which memory
holds each tensor, and at which address.

>>> import loadmaster as lm
>>> plan = lm.plan([lm.load("onnx:squeezenet")], lm.target("edge-npu"))
>>> lm.verify(plan)
()

Names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadmaster.core.errors import package

if TYPE_CHECKING:
    from loadmaster.allocation.allocate import allocate as allocate
    from loadmaster.allocation.backtracking.learning import bundled as backtrack_trees  # noqa: F401
    from loadmaster.allocation.buffers_csv import read_buffers as read_buffers
    from loadmaster.allocation.buffers_csv import write_buffers as write_buffers
    from loadmaster.allocation.memories.allocate import allocate_banks as allocate_banks
    from loadmaster.allocation.memories.problem import Bank as Bank
    from loadmaster.allocation.memories.problem import BankAllocation as BankAllocation
    from loadmaster.allocation.memories.verify import verify_banks as verify_banks
    from loadmaster.allocation.problem import Allocation as Allocation
    from loadmaster.allocation.problem import Buffer as Buffer
    from loadmaster.allocation.problem import Problem as Problem
    from loadmaster.allocation.rules import conflicts_of_order as conflicts_of_order
    from loadmaster.allocation.rules import problem_of as problem_of
    from loadmaster.allocation.strategies.telamalloc import TelaMalloc as TelaMalloc
    from loadmaster.allocation.strategies.telamalloc import TelaMallocOptions as TelaMallocOptions
    from loadmaster.allocation.verify import verify_buffers as verify_buffers
    from loadmaster.core.errors import AllocationError as AllocationError
    from loadmaster.core.errors import BudgetError as BudgetError
    from loadmaster.core.errors import CapacityError as CapacityError
    from loadmaster.core.errors import JobError as JobError
    from loadmaster.core.errors import LoadmasterError as LoadmasterError
    from loadmaster.core.errors import MappingError as MappingError
    from loadmaster.core.errors import MissingPackageError as MissingPackageError
    from loadmaster.core.errors import ModelError as ModelError
    from loadmaster.core.errors import OutputError as OutputError
    from loadmaster.core.errors import PackingError as PackingError
    from loadmaster.core.errors import PlacementError as PlacementError
    from loadmaster.core.errors import PlanError as PlanError
    from loadmaster.core.errors import RuntimeUnavailable as RuntimeUnavailable
    from loadmaster.core.errors import SlowMemoryError as SlowMemoryError
    from loadmaster.core.errors import TargetError as TargetError
    from loadmaster.core.errors import UnitError as UnitError
    from loadmaster.core.errors import Violation as Violation
    from loadmaster.cost.analyse import analyse as analyse
    from loadmaster.cost.analyse import read_job_analysis as read_job_analysis
    from loadmaster.cost.analytical.energy import area as area
    from loadmaster.cost.analytical.energy import peak_power as peak_power
    from loadmaster.cost.base import JobAnalysis as JobAnalysis
    from loadmaster.cost.calibration.answer import Calibration as Calibration
    from loadmaster.cost.calibration.calibrate import calibrate as calibrate
    from loadmaster.cost.divided_jobs import divide_jobs as divide_jobs
    from loadmaster.cost.kernels.kernel_costs import kernel_work as kernel_work
    from loadmaster.cost.kernels.work import write_work as write_work
    from loadmaster.cost.read_sequence import read_sequence as read_sequence
    from loadmaster.integrations.torch_compile.backend import summary as summary
    from loadmaster.mapping.answer import JobMapping as JobMapping
    from loadmaster.mapping.divided_jobs import map_divided_jobs as map_divided_jobs
    from loadmaster.mapping.map_dependent_jobs import map_dependent_jobs as map_dependent_jobs
    from loadmaster.mapping.map_jobs import map_jobs as map_jobs
    from loadmaster.mapping.map_jobs import pareto_front as pareto_front
    from loadmaster.placement.answer import MemoryPlan as MemoryPlan
    from loadmaster.placement.place import place as place
    from loadmaster.placement.sequence import KernelSequence as KernelSequence
    from loadmaster.placement.sequence_json import write_sequence as write_sequence
    from loadmaster.placement.sizing import slowdown_curve as slowdown_curve
    from loadmaster.placement.sizing import smallest_fast as smallest_fast
    from loadmaster.placement.verify import verify_placement as verify_placement
    from loadmaster.planning.plan import Plan as Plan
    from loadmaster.planning.planner import plan as plan
    from loadmaster.planning.sweep.axes import parse_axes as parse_axes
    from loadmaster.planning.sweep.axes import parse_axis as parse_axis
    from loadmaster.planning.sweep.design_space import Sweep as Sweep
    from loadmaster.planning.sweep.limits import Limits as Limits
    from loadmaster.planning.sweep.size import Sizing as Sizing
    from loadmaster.planning.sweep.size import size as size
    from loadmaster.planning.sweep.sweep import sweep as sweep
    from loadmaster.planning.verify.plan import verify as verify
    from loadmaster.planning.verify_against import verify_against as verify_against
    from loadmaster.planning.what_if import what_if as what_if
    from loadmaster.report.strategies import strategies as strategies
    from loadmaster.targets.hardware import Target as Target
    from loadmaster.targets.load import target as target
    from loadmaster.workloads.frontends.job_list import read_job_list as read_job_list
    from loadmaster.workloads.frontends.load import load as load
    from loadmaster.workloads.graph import Graph as Graph
    from loadmaster.workloads.job import Workload as Workload
    from loadmaster.workloads.lowering.instantiate import lower as lower

__version__ = "0.1.0"

_ERRORS = (
    "CapacityError",
    "AllocationError",
    "BudgetError",
    "JobError",
    "MappingError",
    "MissingPackageError",
    "ModelError",
    "OutputError",
    "PackingError",
    "PlacementError",
    "PlanError",
    "RuntimeUnavailable",
    "SlowMemoryError",
    "TargetError",
    "UnitError",
    "LoadmasterError",
)

_HOMES = {
    **dict.fromkeys(_ERRORS, "loadmaster.core.errors"),
    "Allocation": "loadmaster.allocation.problem",
    "Bank": "loadmaster.allocation.memories.problem",
    "BankAllocation": "loadmaster.allocation.memories.problem",
    "Buffer": "loadmaster.allocation.problem",
    "Calibration": "loadmaster.cost.calibration.answer",
    "Graph": "loadmaster.workloads.graph",
    "JobAnalysis": "loadmaster.cost.base",
    "JobMapping": "loadmaster.mapping.answer",
    "KernelSequence": "loadmaster.placement.sequence",
    "Limits": "loadmaster.planning.sweep.limits",
    "MemoryPlan": "loadmaster.placement.answer",
    "Plan": "loadmaster.planning.plan",
    "Problem": "loadmaster.allocation.problem",
    "Sizing": "loadmaster.planning.sweep.size",
    "Sweep": "loadmaster.planning.sweep.design_space",
    "Target": "loadmaster.targets.hardware",
    "TelaMalloc": "loadmaster.allocation.strategies.telamalloc",
    "TelaMallocOptions": "loadmaster.allocation.strategies.telamalloc",
    "Violation": "loadmaster.core.errors",
    "Workload": "loadmaster.workloads.job",
    "allocate": "loadmaster.allocation.allocate",
    "allocate_banks": "loadmaster.allocation.memories.allocate",
    "analyse": "loadmaster.cost.analyse",
    "area": "loadmaster.cost.analytical.energy",
    "backtrack_trees": "loadmaster.allocation.backtracking.learning:bundled",
    "calibrate": "loadmaster.cost.calibration.calibrate",
    "conflicts_of_order": "loadmaster.allocation.rules",
    "load": "loadmaster.workloads.frontends.load",
    "lower": "loadmaster.workloads.lowering.instantiate",
    "divide_jobs": "loadmaster.cost.divided_jobs",
    "map_dependent_jobs": "loadmaster.mapping.map_dependent_jobs",
    "map_divided_jobs": "loadmaster.mapping.divided_jobs",
    "map_jobs": "loadmaster.mapping.map_jobs",
    "pareto_front": "loadmaster.mapping.map_jobs",
    "parse_axes": "loadmaster.planning.sweep.axes",
    "parse_axis": "loadmaster.planning.sweep.axes",
    "peak_power": "loadmaster.cost.analytical.energy",
    "place": "loadmaster.placement.place",
    "plan": "loadmaster.planning.planner",
    "problem_of": "loadmaster.allocation.rules",
    "read_buffers": "loadmaster.allocation.buffers_csv",
    "read_job_analysis": "loadmaster.cost.analyse",
    "read_job_list": "loadmaster.workloads.frontends.job_list",
    "kernel_work": "loadmaster.cost.kernels.kernel_costs",
    "read_sequence": "loadmaster.cost.read_sequence",
    "size": "loadmaster.planning.sweep.size",
    "slowdown_curve": "loadmaster.placement.sizing",
    "smallest_fast": "loadmaster.placement.sizing",
    "strategies": "loadmaster.report.strategies",
    "summary": "loadmaster.integrations.torch_compile.backend",
    "sweep": "loadmaster.planning.sweep.sweep",
    "target": "loadmaster.targets.load",
    "verify": "loadmaster.planning.verify.plan",
    "verify_against": "loadmaster.planning.verify_against",
    "what_if": "loadmaster.planning.what_if",
    "verify_banks": "loadmaster.allocation.memories.verify",
    "verify_buffers": "loadmaster.allocation.verify",
    "verify_placement": "loadmaster.placement.verify",
    "write_buffers": "loadmaster.allocation.buffers_csv",
    "write_sequence": "loadmaster.placement.sequence_json",
    "write_work": "loadmaster.cost.kernels.work",
}
"""Where each public name lives: its module and, where it has another name there, that one after a
colon."""

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loadmaster' has no attribute {name!r}")
    module, _, own_name = _HOMES[name].partition(":")
    return getattr(package(module, f"loadmaster.{name}"), own_name or name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
