"""Remembers what is worked out of a graph: ways to cut a network are lowered one after the other,
all from the same graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from loadmaster.workloads.graph import Graph

Result = TypeVar("Result")


def remembered_by(owner: object, name: str, work: Callable[[], Result]) -> Result:
    """What ``work`` finds. The owner keeps it under this name; nobody may change it. It goes with
    the owner, whose copies have none."""
    known = vars(owner)
    if name not in known:
        known[name] = work()
    found: Result = known[name]
    return found


def once_per_graph(function: Callable[[Graph], Result]) -> Callable[[Graph], Result]:
    """Have a graph keep what a function finds for it; a graph that it makes stays as it is when the
    function is asked again."""
    name = f"_{function.__module__}.{function.__name__}"

    @wraps(function)
    def remembered(graph: Graph) -> Result:
        found = remembered_by(graph, name, lambda: function(graph))
        return remembered_by(found, name, lambda: found) if isinstance(found, Graph) else found

    return remembered
