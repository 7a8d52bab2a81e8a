"""Results of running a plan, and the records that ``loadmaster verify --json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.core.errors import Violation
from loadmaster.core.json_object import ABSENT


@dataclass(frozen=True)
class OutputCheck:
    """Comparison of an output of a mini-batch with the whole model's."""

    network: str
    """Name of the network."""
    mini_batch: int
    """Number of the mini-batch."""
    output: str
    """Name of the output."""
    type: str
    """Type of the output's elements."""
    elements: int
    """Number of the output's elements."""
    difference: float
    """Largest difference of finite elements from the whole model's, in the last order."""
    tolerance: float
    """Largest allowed difference; 0 for integers."""


@dataclass(frozen=True)
class ExecutionJson:
    """What came of running a plan."""

    runtime: str
    """Runtime of the operators: `onnxruntime` or `onnx.reference`."""
    orders: int
    """Most orders in which jobs and copies are run; the first difference ends the check."""
    seed: int
    """Seed of inputs, orders, and weights that are missing in a file."""
    jobs: int
    """Number of jobs."""
    copies: int
    """Number of copies between memories."""
    width: int
    """Bytes of memory for each byte of the plan, more than 1 if the models compute in wider
    types."""
    drawn: int
    """Number of weights that are missing in the files and were replaced by random ones."""
    outputs: Sequence[OutputCheck]
    """Outputs of every mini-batch."""


@dataclass(frozen=True)
class Execution(ExecutionJson):
    """Results of running a plan, with the violations of the first order that has any."""

    violations: tuple[Violation, ...]


@dataclass(frozen=True)
class VerifyJson:
    """Result of an independent check."""

    VERSION = 1
    valid: bool
    """Whether no violation was found."""
    violations: Sequence[Violation]
    """Violations found by the independent verifier; empty if the plan or packing is valid."""
    run: ExecutionJson = ABSENT
    """Results of running the plan. Only with --run, for a valid plan."""
