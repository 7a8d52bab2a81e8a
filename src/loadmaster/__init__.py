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
    from loadmaster.allocations import Allocation as Allocation
    from loadmaster.allocator import allocate as allocate
    from loadmaster.bank_allocator import allocate_banks as allocate_banks
    from loadmaster.banks import Bank as Bank
    from loadmaster.banks import BankAllocation as BankAllocation
    from loadmaster.buffers import Buffer as Buffer
    from loadmaster.buffers import Problem as Problem
    from loadmaster.buffers_csv import read_buffers as read_buffers
    from loadmaster.buffers_csv import write_buffers as write_buffers
    from loadmaster.errors import LoadmasterError as LoadmasterError
    from loadmaster.frontends import load as load
    from loadmaster.graph import Graph as Graph
    from loadmaster.hardware import Target as Target
    from loadmaster.job_analyser import analyse as analyse
    from loadmaster.job_mapping import JobMapping as JobMapping
    from loadmaster.kernel_reader import read_sequence as read_sequence
    from loadmaster.kernel_sequence import KernelSequence as KernelSequence
    from loadmaster.mapper import map_jobs as map_jobs
    from loadmaster.mapper import pareto_front as pareto_front
    from loadmaster.memory_plan import MemoryPlan as MemoryPlan
    from loadmaster.placer import place as place
    from loadmaster.planner import plan as plan
    from loadmaster.plans import Plan as Plan
    from loadmaster.targets import target as target
    from loadmaster.verification import Violation as Violation
    from loadmaster.verification import verify as verify
    from loadmaster.verification import verify_banks as verify_banks
    from loadmaster.verification import verify_buffers as verify_buffers
    from loadmaster.verification import verify_placement as verify_placement

__version__ = "0.1.0"

_HOMES = {
    "Allocation": "loadmaster.allocations",
    "Bank": "loadmaster.banks",
    "BankAllocation": "loadmaster.banks",
    "Buffer": "loadmaster.buffers",
    "Graph": "loadmaster.graph",
    "KernelSequence": "loadmaster.kernel_sequence",
    "MemoryPlan": "loadmaster.memory_plan",
    "LoadmasterError": "loadmaster.errors",
    "Plan": "loadmaster.plans",
    "Problem": "loadmaster.buffers",
    "Target": "loadmaster.hardware",
    "Violation": "loadmaster.verification",
    "JobMapping": "loadmaster.job_mapping",
    "allocate": "loadmaster.allocator",
    "allocate_banks": "loadmaster.bank_allocator",
    "analyse": "loadmaster.job_analyser",
    "map_jobs": "loadmaster.mapper",
    "pareto_front": "loadmaster.mapper",
    "load": "loadmaster.frontends",
    "place": "loadmaster.placer",
    "plan": "loadmaster.planner",
    "read_buffers": "loadmaster.buffers_csv",
    "read_sequence": "loadmaster.kernel_reader",
    "target": "loadmaster.targets",
    "verify": "loadmaster.verification",
    "verify_banks": "loadmaster.verification",
    "verify_buffers": "loadmaster.verification",
    "verify_placement": "loadmaster.verification",
    "write_buffers": "loadmaster.buffers_csv",
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
