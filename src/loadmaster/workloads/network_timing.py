"""When the mini-batches of networks come and are due, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadmaster.core.arguments import instead
from loadmaster.core.errors import LoadmasterError


@dataclass(frozen=True, slots=True)
class NetworkTiming:
    """Mini-batch ``k`` of a network is released at ``k`` times its period, and due ``deadline``
    later (seconds); None: never."""

    network: str
    period: float
    deadline: float | None


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """What becomes of a mini-batch: none of its jobs starts before its release; ``latency`` later
    all have ended and outputs are there."""

    network: str
    number: int
    release: float
    end: float
    latency: float
    missed: bool


def network_timings(
    networks: Iterable[str],
    periods: Mapping[str, float],
    deadlines: Mapping[str, float],
    error: type[LoadmasterError],
) -> dict[str, NetworkTiming]:
    """The timing of every network, by its name; without a period it is there from the start,
    without a deadline never late.

    Raises ``error`` if a period or a deadline (seconds, by network) is of a network that there is
    not, or not more than zero and finite.
    """
    names = tuple(dict.fromkeys(networks))
    for what, given in (("deadline", deadlines), ("period", periods)):
        for name, seconds in given.items():
            require_network(what, name, names, error)
            if not 0 < seconds < float("inf"):
                raise error(f"{what} of {name!r}: {seconds} s must be more than zero, and finite")
    return {
        name: NetworkTiming(name, periods.get(name, 0.0), deadlines.get(name)) for name in names
    }


def require_network(
    what: str, name: str, networks: Iterable[str], error: type[LoadmasterError]
) -> None:
    """Raise ``error`` unless there is a network of that name; ``what`` is said of it."""
    names = tuple(networks)
    if name not in names:
        raise error(f"{what} of {name!r}: there is no such network: {instead(name, names)}")
