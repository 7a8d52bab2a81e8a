"""What came of running a plan, and what ``loadmaster verify --json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.core.errors import Violation
from loadmaster.core.json_object import ABSENT


@dataclass(frozen=True)
class OutputCheck:
    """An output of a mini-batch: the largest difference from the whole model's in the last order,
    and the most that it may be."""

    network: str
    """Name of the network."""
    mini_batch: int
    """Number of the mini-batch."""
    output: str
    """Name of the output."""
    type: str
    """Type of its elements."""
    elements: int
    """Number of its elements."""
    difference: float
    """Largest difference from the model run in one go, of elements that are numbers, in any
    order."""
    tolerance: float
    """Largest difference that is allowed; 0 for integers."""


@dataclass(frozen=True)
class ExecutionJson:
    """What came of running a plan."""

    runtime: str
    """What ran the operators: `onnxruntime`, or `onnx.reference`."""
    orders: int
    """In how many orders jobs and copies are run, at most."""
    seed: int
    """Seed of inputs, orders, and weights that a file lacks."""
    jobs: int
    """Number of jobs."""
    copies: int
    """Number of copies between memories."""
    width: int
    """Bytes that stood for each byte of the plan, more than 1 if the models compute in wider
    types."""
    drawn: int
    """Number of weights that the files lack; random values stood for them."""
    outputs: Sequence[OutputCheck]
    """Outputs of every mini-batch."""


@dataclass(frozen=True)
class Execution(ExecutionJson):
    """What came of running a plan, and what differs in the first order in which anything does."""

    violations: tuple[Violation, ...]


@dataclass(frozen=True)
class VerifyJson:
    """What an independent check found."""

    VERSION = 1
    valid: bool
    """Whether everything holds."""
    violations: Sequence[Violation]
    """What an independent check found wrong; empty if everything holds."""
    run: ExecutionJson = ABSENT
    """What came of running the plan. Only with --run, of a plan that holds."""
