"""What the graphs of a model know of each other: what a planned graph shows, and what its plan must
leave free."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from loadmaster.core.provenance import Provenance
from loadmaster.integrations.torch_compile.executor import Times
from loadmaster.integrations.torch_compile.placing import TooSmall
from loadmaster.integrations.torch_compile.program import Program


class Surroundings(NamedTuple):
    """What a graph's plan must leave free: bytes that other graphs of the model take, and the
    budget, both of fast memory.

    ``persistent`` counts other graphs' parameters, buffers and optimizer state; ``gradients`` those
    that are there when the backward part begins, and ``results`` what earlier graphs and steps have
    returned and somebody still holds, while the forward and while the backward part runs. With
    ``offload_idle`` no graph keeps parameters in the fast memory while others run. ``budget`` is
    None if there is no limit.
    """

    persistent: int
    gradients: int
    results: tuple[int, int]
    offload_idle: bool
    budget: int | None


class Planned(Protocol):
    """The part of a planned graph that its model and the reports on it use."""

    name: str
    times: Times

    @property
    def program(self) -> Program | None:
        """The plan made ready to run; None before the first step."""

    @property
    def changes(self) -> frozenset[int]:
        """Parameters (by ``id``) that the graph's runs update."""

    @property
    def refused(self) -> TooSmall | None:
        """Why the plan takes more than its budget, if the step was not known in full when the plan
        was made; else None."""

    @property
    def budget(self) -> int | None:
        """Bytes of fast memory that a step may take; None if there is no limit."""

    @property
    def unmoved_peak(self) -> int:
        """Most bytes of fast memory in use at once when nothing moves."""

    @property
    def placed_peak(self) -> int:
        """Most bytes of fast memory in use at once under the plan."""

    @property
    def kernels_in_blocks(self) -> tuple[str, ...]:
        """Operators of the kernels that run block by block."""

    @property
    def has_backward(self) -> bool:
        """Whether the graph has a backward part."""

    @property
    def moved_bytes(self) -> int:
        """Bytes that a step copies, both ways."""

    def gradients_left(self, at_least: bool) -> int:
        """Bytes of gradients that a step leaves in the fast memory; with ``at_least``, if all that
        may move do."""

    @property
    def predicted_seconds(self) -> float:
        """Seconds that a step should take."""

    @property
    def costs(self) -> tuple[Provenance, ...]:
        """What the times of kernels come from with which the plan was made."""

    def place_parameters(self) -> None:
        """Offload or reload parameters, buffers and optimizer state so that each is where the plan
        expects it."""

    def refresh_prediction(self) -> None:
        """Predict the time of a step again, from the steps measured so far; the plan stays."""

    def forget_times(self) -> None:
        """Predict from the steps that follow: those so far ran under other conditions."""

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kernel with its predicted and measured seconds."""
