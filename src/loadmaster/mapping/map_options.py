"""Checked options of a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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

    strategy: str
    allocator: str
    group_size: int | None
    samples: int | None
    time_limit: float | None
    warm_start: WarmStart | None
    settings: Mapping[str, float]
    seed: int
    threads: int
    effort: Effort
    progress: Progress | None

    def __post_init__(self) -> None:
        """Raise MappingError for options out of range."""
        for name, value in (
            ("group size", self.group_size),
            ("samples", self.samples),
            ("threads", self.threads),
        ):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1
            ):
                raise MappingError(f"{name} {value!r}: give a whole number of at least 1")
        if self.time_limit is not None and not self.time_limit >= 0:
            raise MappingError(
                f"time limit {self.time_limit!r}: give a number of seconds of at least 0"
            )
        if self.seed < 0:
            raise MappingError(f"seed {self.seed}: give a whole number of at least 0")


def require_objective(objective: str) -> None:
    """Raise `MappingError` for an unknown objective."""
    require_known("objective", objective, OBJECTIVES, MappingError)
