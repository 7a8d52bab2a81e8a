"""A cut: the dimension of every operand and result along which a kernel runs in blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.integrations.torch_compile.captured import Call, View, views

WHOLE = -1
"""Every block needs, or makes, all of the tensor."""
SUM = -2
"""Every block makes a part of a sum: those of all blocks, added up, are the result."""


@dataclass(frozen=True)
class Cut:
    """A dimension for every tensor among the operands, in order, and for every result; ``unread``
    operands give only their shape.

    ``lengths`` are the positions of arguments that say how long the dimension is, each with the
    place in a list of sizes (None for a plain number).
    """

    operands: tuple[int, ...]
    results: tuple[int, ...]
    unread: frozenset[int] = frozenset()
    lengths: frozenset[tuple[int, int | None]] = frozenset()

    @property
    def sums(self) -> bool:
        """Whether results add up in another order than in the whole kernel."""
        return SUM in self.results

    def length(self, call: Call) -> int:
        """Elements of the dimension that is cut."""
        tensors = zip(
            (*call.results, *views((call.arguments, call.keywords))),
            (*self.results, *self.operands),
            strict=True,
        )
        return next(view.size[dim] for view, dim in tensors if isinstance(view, View) and dim >= 0)

    def sized(self, arguments: Sequence[Any], length: int) -> list[Any]:
        """The arguments with a block's length in the place of the whole one."""
        given = list(arguments)
        for position, place in self.lengths:
            if place is None:
                given[position] = length
            elif given[position] is not None:
                given[position] = [
                    length if i == place else size for i, size in enumerate(given[position])
                ]
        return given


def along(
    call: Call,
    operands: Sequence[int],
    results: Sequence[int],
    keywords: Mapping[str, int] | None = None,
    **more: Any,
) -> Cut:
    """Make a cut from dimensions by the position of arguments, of which some may be no tensors;
    those not named are `WHOLE`."""
    dims = []
    for i, argument in enumerate(call.arguments):
        dims += [operands[i] if i < len(operands) else WHOLE for _ in views(argument)]
    for name, argument in call.keywords.items():
        dims += [(keywords or {}).get(name, WHOLE) for _ in views(argument)]
    return Cut(tuple(dims), tuple(results), **more)
