"""Loadmaster plans neural networks onto accelerators: which core runs each layer, which memory holds each tensor, and at which address.

>>> import loadmaster as lm
>>> plan = lm.plan([lm.load("onnx:squeezenet")], lm.target("edge-npu"))
>>> lm.verify(plan)
()

Names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.allocation.allocate import allocate as allocate
    from loadmaster.allocation.answer import Allocation as Allocation
    from loadmaster.allocation.buffers_csv import read_buffers as read_buffers
    from loadmaster.allocation.buffers_csv import write_buffers as write_buffers
    from loadmaster.allocation.memories.allocate import allocate_banks as allocate_banks
    from loadmaster.allocation.memories.problem import Bank as Bank
    from loadmaster.allocation.memories.problem import BankAllocation as BankAllocation
    from loadmaster.allocation.memories.verify import verify_banks as verify_banks
    from loadmaster.allocation.problem import Buffer as Buffer
    from loadmaster.allocation.problem import Problem as Problem
    from loadmaster.allocation.verify import verify_buffers as verify_buffers
    from loadmaster.core.errors import LoadmasterError as LoadmasterError
    from loadmaster.core.violation import Violation as Violation
    from loadmaster.cost.analyse import analyse as analyse
    from loadmaster.cost.read_sequence import read_sequence as read_sequence
    from loadmaster.mapping.answer import JobMapping as JobMapping
    from loadmaster.mapping.map_jobs import map_jobs as map_jobs
    from loadmaster.mapping.map_jobs import pareto_front as pareto_front
    from loadmaster.placement.answer import MemoryPlan as MemoryPlan
    from loadmaster.placement.place import place as place
    from loadmaster.placement.sequence import KernelSequence as KernelSequence
    from loadmaster.placement.verify import verify_placement as verify_placement
    from loadmaster.planning.plan import Plan as Plan
    from loadmaster.planning.planner import plan as plan
    from loadmaster.planning.verify.plan import verify as verify
    from loadmaster.report.strategies import strategies as strategies
    from loadmaster.targets.hardware import Target as Target
    from loadmaster.targets.load import target as target
    from loadmaster.workloads.frontends.load import load as load
    from loadmaster.workloads.graph import Graph as Graph

__version__ = "0.1.0"

_HOMES = {
    "Allocation": "loadmaster.allocation.answer",
    "Bank": "loadmaster.allocation.memories.problem",
    "BankAllocation": "loadmaster.allocation.memories.problem",
    "Buffer": "loadmaster.allocation.problem",
    "Graph": "loadmaster.workloads.graph",
    "KernelSequence": "loadmaster.placement.sequence",
    "MemoryPlan": "loadmaster.placement.answer",
    "LoadmasterError": "loadmaster.core.errors",
    "Plan": "loadmaster.planning.plan",
    "Problem": "loadmaster.allocation.problem",
    "Target": "loadmaster.targets.hardware",
    "Violation": "loadmaster.core.violation",
    "JobMapping": "loadmaster.mapping.answer",
    "allocate": "loadmaster.allocation.allocate",
    "allocate_banks": "loadmaster.allocation.memories.allocate",
    "analyse": "loadmaster.cost.analyse",
    "map_jobs": "loadmaster.mapping.map_jobs",
    "pareto_front": "loadmaster.mapping.map_jobs",
    "load": "loadmaster.workloads.frontends.load",
    "place": "loadmaster.placement.place",
    "plan": "loadmaster.planning.planner",
    "read_buffers": "loadmaster.allocation.buffers_csv",
    "read_sequence": "loadmaster.cost.read_sequence",
    "strategies": "loadmaster.report.strategies",
    "target": "loadmaster.targets.load",
    "verify": "loadmaster.planning.verify.plan",
    "verify_banks": "loadmaster.allocation.memories.verify",
    "verify_buffers": "loadmaster.allocation.verify",
    "verify_placement": "loadmaster.placement.verify",
    "write_buffers": "loadmaster.allocation.buffers_csv",
}

__all__ = [
    "Allocation",
    "Bank",
    "BankAllocation",
    "Buffer",
    "Graph",
    "JobMapping",
    "KernelSequence",
    "LoadmasterError",
    "MemoryPlan",
    "Plan",
    "Problem",
    "Target",
    "Violation",
    "allocate",
    "allocate_banks",
    "analyse",
    "load",
    "map_jobs",
    "pareto_front",
    "place",
    "plan",
    "read_buffers",
    "read_sequence",
    "strategies",
    "target",
    "verify",
    "verify_banks",
    "verify_buffers",
    "verify_placement",
    "write_buffers",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loadmaster' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
