"""What ``loadmaster run --json`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from loadmaster.core.json_object import ABSENT
from loadmaster.core.provenance import CostBasis, Label


@dataclass(frozen=True)
class Ratio:
    """The median of the ratios, and an interval that holds the true median with a probability of at
    least 90 %."""

    ratio: float
    """Median of the ratios."""
    low: float | None
    """Low end of the interval, a ratio; null for too few steps."""
    high: float | None
    """High end of the interval, a ratio; null for too few steps."""


@dataclass(frozen=True)
class DifferenceJson(Ratio):
    """Seconds of the plan's steps relative to the rival's."""

    verdict: Literal["faster", "slower", "no difference"]
    """``faster`` or ``slower`` if the whole interval is on one side of 1, else ``no
    difference``."""


@dataclass(frozen=True)
class FallbackJson:
    """A graph that runs without a plan."""

    graph: str
    """Name of the graph."""
    reason: str
    """Why it has no plan."""


@dataclass(frozen=True)
class StepJson:
    """Measurements of the steps of one variant."""

    step_seconds: float | None
    """Seconds of a step, the median; null if it could not run."""
    step_cpu_seconds: float | None
    """Seconds of processor time of a step, the median; null if it could not run."""
    measured_peak: int | None
    """Measured bytes of memory at the peak; null if it could not be measured."""


@dataclass(frozen=True)
class VariantJson(StepJson):
    """One variant of a step."""

    failed: str = ABSENT
    """Why the variant could not run. Absent if it could."""


@dataclass(frozen=True)
class RivalJson(VariantJson):
    """Another method that saves memory, and the plan at its peak."""

    loadmaster_at_its_peak: VariantJson = ABSENT
    """The plan whose budget is the rival's peak."""
    difference: DifferenceJson | None = ABSENT
    """Seconds of the plan's steps relative to the rival's; null if the plan could not run."""
    beaten: bool = ABSENT
    """Whether the plan keeps the rival's peak, and the verdict of the difference is ``faster``."""
    peak_kept: bool = ABSENT
    """Whether the plan keeps the rival's peak."""


@dataclass(frozen=True)
class PlannedSteps(StepJson):
    """Steps by a plan."""

    budget: int | None
    """Bytes of fast memory that may be used; null without a limit."""
    planned_peak: int
    """Planned peak of fast memory in bytes."""
    predicted_step_seconds: float
    """Predicted seconds of a step, the median of the predictions made before each timed step."""
    measured_over_predicted: Ratio | None
    """Measured seconds of steps relative to the seconds predicted from earlier steps; null if none
    were timed."""
    moved_bytes: int
    """Bytes copied between the memories, in both directions."""


@dataclass(frozen=True)
class BudgetJson(VariantJson, PlannedSteps):
    """A plan under a budget."""


@dataclass(frozen=True)
class RunJson(PlannedSteps):
    """Steps of a PyTorch module under a budget of fast memory, measured."""

    VERSION = 1
    unmoved_peak: int
    """Peak in bytes by lifetimes if no tensor moves."""
    unmoved_measured_peak: int | None
    """Measured peak in bytes if no tensor moves; null if it could not be measured."""
    resident: int
    """Bytes of parameters, buffers and inputs."""
    unmoved_step_seconds: float | None
    """Median seconds of a step if no tensor moves."""
    unmoved_step_cpu_seconds: float | None
    """Median processor seconds of a step if no tensor moves."""
    costs: CostBasis
    """What the costs rest on."""
    label: Literal[Label.MEASURED]
    """How far the measured figures can be trusted."""
    waiting_seconds: float
    """Seconds that kernels waited for copies."""
    graphs: int
    """Number of graphs of the compiled module that have a plan."""
    fallbacks: Sequence[FallbackJson]
    """Graphs that run without a plan."""
    results_copied: int
    """Number of results that were copied to their planned addresses because operators wrote them
    elsewhere."""
    gradients_equal: bool
    """Whether results are equal bit for bit to those of the unmoved graphs."""
    kernels_in_blocks: Mapping[str, int]
    """By operator, the number of kernels that run block by block, because their operands exceed the
    budget."""
    error: float
    """Largest norm of a difference from the unmoved graphs, relative to the norm of the tensor."""
    results_close: bool
    """Whether ``error`` is within the tolerance: 0, or 1e-4 on a GPU or if kernels run in blocks
    (updated parameters: 1e-3)."""
    max_difference_eager: float
    """Largest difference from eager mode, relative to the largest value of its tensor."""
    device: str
    """Device that torch used."""
    steps: int
    """Number of steps that were timed."""
    interrupted: bool
    """Whether a time limit or Ctrl-C ended the work early."""
    rivals: Mapping[str, RivalJson]
    """With --compare: by name, other methods that save memory."""
    budget_kept: bool
    """Whether the measured peak exceeds the budget by at most 8 MiB, which Python objects and
    libraries may take."""
    executor_step_seconds: float | None = ABSENT
    """With --compare: seconds of a step of a plan under which no tensor moves."""
    executor_step_cpu_seconds: float | None = ABSENT
    """With --compare: seconds of processor time of such a step."""
    budgets: Sequence[BudgetJson] = ABSENT
    """With --compare: plans under several budgets."""


@dataclass(frozen=True)
class WayJson:
    """Measurements of one method of generating tokens."""

    token_cpu_seconds: float
    """Seconds of processor time of a token, the median."""
    first_token_seconds: float
    """Seconds to the first token, which include compiling and reading the prompt."""
    tokens_per_second: float | None
    """Tokens per second, by the median of the later tokens; null if none were timed."""
    measured_peak: int | None
    """Measured bytes of memory at the peak; null if it could not be measured."""


@dataclass(frozen=True)
class FailedWay:
    """A method of generating tokens that failed."""

    failed: str
    """Why the method could not run."""


@dataclass(frozen=True)
class GenerationJson(WayJson):
    """Tokens that a language model generates under a budget of fast memory, measured."""

    VERSION = 1
    budget: int | None
    """Bytes of fast memory that may be used; null without a limit."""
    planned_peak: int
    """Planned peak of fast memory in bytes."""
    moved_bytes: int
    """Bytes read from the slow memory for each token."""
    fallbacks: Sequence[str]
    """Graphs that run without a plan, each with its reason."""
    kernel_seconds: float
    """Median seconds of kernels for a token."""
    copy_seconds: float
    """Median seconds of copies for a token."""
    waiting_seconds: float
    """Median seconds for a token in which kernels waited for copies."""
    weights: int
    """Bytes of the weights."""
    disk_bytes_per_second: float
    """Measured bandwidth of the disk in bytes per second."""
    disk_tokens_per_second: float | None
    """Tokens per second that this bandwidth allows; null if nothing moves."""
    share_of_disk_bandwidth: float
    """Used share of the disk's bandwidth."""
    limited_by: Literal["processor", "disk", "copies"]
    """What takes most of a token's time: ``processor``, or waiting for copies with the disk busy
    (``disk``) or not (``copies``)."""
    tokens_equal: bool | None
    """Whether all methods generate the same tokens; null without another that has worked."""
    rivals: Mapping[str, WayJson | FailedWay]
    """With --compare: by name, other methods of generating."""
    budget_kept: bool
    """Whether the measured peak exceeds the budget by at most 8 MiB, which Python objects and
    libraries may take."""
    label: Literal[Label.MEASURED]
    """How far the measured figures can be trusted."""
