"""Checked options of a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadmaster.core.arguments import require_known
from loadmaster.core.effort import Effort
from loadmaster.core.errors import MappingError
from loadmaster.core.progress import Progress
from loadmaster.mapping.answer import WarmStart
from loadmaster.mapping.group import OBJECTIVES


@dataclass(frozen=True)
class MapOptions:
    """The options of :func:`~loadmaster.mapping.map_jobs.map_jobs`; raises `MappingError` for one
    that is out of range."""

    strategy: str = "auto"
    allocator: str = "demand"
    group_size: int | None = None
    samples: int | None = None
    time_limit: float | None = None
    warm_start: WarmStart | None = None
    settings: Mapping[str, float] | None = None
    seed: int = 0
    threads: int = 1
    effort: Effort | str = Effort.NORMAL
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Raise MappingError for options out of range."""
        _ = self.budget
        counts = {"group size": self.group_size, "samples": self.samples, "threads": self.threads}
        for name, value in counts.items():
            if value is not None and value < 1:
                raise MappingError(f"{name} {value}: give a whole number of at least 1")
        if not (self.time_limit or 0) >= 0:
            raise MappingError(
                f"time limit {self.time_limit!r}: give a number of seconds of at least 0"
            )

    @property
    def budget(self) -> Effort:
        """The budgets that the effort stands for."""
        return Effort.of(self.effort, MappingError)


def weights_of(objective: str) -> tuple[float, float]:
    """Return the exponents of makespan and energy; raise `MappingError` for an unknown
    objective."""
    require_known("objective", objective, OBJECTIVES, MappingError)
    return OBJECTIVES[objective]
