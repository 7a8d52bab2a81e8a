"""What a frontend offers: networks from sources of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loadmaster.core.errors import ModelError, defect
from loadmaster.core.registry import Registry

if TYPE_CHECKING:
    from loadmaster.workloads.graph import Graph


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Parameters of :func:`loadmaster.workloads.frontends.load.load` besides the source."""

    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    precision: str | None = None
    name: str | None = None
    training: bool = False


Reader = Callable[[Any, LoadOptions], "Graph"]
"""Reads the network that a source names; errors as in
:func:`loadmaster.workloads.frontends.load.load`."""


@dataclass(frozen=True)
class Frontend:
    """Reads sources ``NAME:...``, where ``NAME`` is what the frontend is called, and files that end
    in one of the ``suffixes``.

    ``holds`` says of a value that is no text whether it is a network of this kind; ``read_held``
    reads it. Neither imports a package that the value cannot come from unless it is imported
    already.
    """

    read: Reader
    suffixes: tuple[str, ...] = ()
    holds: Callable[[object], bool] = lambda _: False
    read_held: Reader | None = None


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Errors are one line that begins with the source's name."""
    try:
        yield
    except ModelError as error:
        raise ModelError(" ".join(f"{label}: {error}".split())) from error.__cause__
    except Exception as error:
        raise ModelError(" ".join(defect(label, error).split())) from error


def require_trained(loss: Any) -> Any:
    """Return a loss; raise `ModelError` if no gradient follows from it."""
    if not loss.requires_grad:
        raise ModelError(
            "the loss depends on no parameter that is trained: leave out --training, or set"
            " requires_grad"
        )
    return loss


FRONTENDS: Registry[Frontend] = Registry(
    "loadmaster.workloads.frontends", "FRONTEND", "frontend", ModelError
)
