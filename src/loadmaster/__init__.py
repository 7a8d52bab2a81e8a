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
    from loadmaster.mapper import map_jobs as map_jobs
    from loadmaster.mapper import pareto_front as pareto_front
    from loadmaster.planner import plan as plan
    from loadmaster.plans import Plan as Plan
    from loadmaster.targets import target as target
    from loadmaster.verification import Violation as Violation
    from loadmaster.verification import verify as verify
    from loadmaster.verification import verify_banks as verify_banks
    from loadmaster.verification import verify_buffers as verify_buffers

__version__ = "0.1.0"

_HOMES = {
    "Allocation": "loadmaster.allocations",
    "Bank": "loadmaster.banks",
    "BankAllocation": "loadmaster.banks",
    "Buffer": "loadmaster.buffers",
    "Graph": "loadmaster.graph",
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
    "plan": "loadmaster.planner",
    "read_buffers": "loadmaster.buffers_csv",
    "target": "loadmaster.targets",
    "verify": "loadmaster.verification",
    "verify_banks": "loadmaster.verification",
    "verify_buffers": "loadmaster.verification",
    "write_buffers": "loadmaster.buffers_csv",
}

__all__ = [
    "Allocation",
    "Bank",
    "BankAllocation",
    "Buffer",
    "Graph",
    "JobMapping",
    "LoadmasterError",
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
    "plan",
    "read_buffers",
    "target",
    "verify",
    "verify_banks",
    "verify_buffers",
    "write_buffers",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loadmaster' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
