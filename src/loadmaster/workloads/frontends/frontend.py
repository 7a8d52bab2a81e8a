"""What a frontend offers: networks from sources of one kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from loadmaster.core.errors import ModelError
from loadmaster.core.registry import Registry

if TYPE_CHECKING:
    from loadmaster.workloads.graph import Graph


class Reader(Protocol):
    """Reads a network, with parameters and errors as in :func:`loadmaster.workloads.frontends.load.load`."""

    def __call__(
        self, source: str, *, batch: int | None, dims: Mapping[str, int], precision: str | None, name: str | None, training: bool
    ) -> Graph:
        """Read the network that ``source`` names."""


@dataclass(frozen=True)
class Frontend:
    """Reads sources ``NAME:...``, where ``NAME`` is what the frontend is called, and files that end in one of the ``suffixes``."""

    read: Reader
    suffixes: tuple[str, ...] = ()


FRONTENDS: Registry[Frontend] = Registry("loadmaster.workloads.frontends", "FRONTEND", "frontend", ModelError)
