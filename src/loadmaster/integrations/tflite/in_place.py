"""Which operators may write their result over an operand, by library of kernels.

TFLM calls a kernel with whatever addresses the plan says. A kernel that reads an element before it
writes the one at the same place can work in place. That is a property of the library, and not
promised by any; so it is asked for, never assumed.
"""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.core.arguments import instead
from loadmaster.core.errors import ModelError
from loadmaster.integrations.tflite.lifetimes import Lifetimes
from loadmaster.workloads.frontends.tflite.model import TfliteModel
from loadmaster.workloads.frontends.tflite.schema import OPERATORS

_REFERENCE = (
    "ABS ADD CEIL COS DIV ELU EXP EXPAND_DIMS FLOOR HARD_SWISH LEAKY_RELU LOG LOGICAL_NOT LOGISTIC"
    " MAXIMUM MINIMUM MUL NEG PRELU RELU RELU6 RESHAPE ROUND RSQRT SIN SQRT SQUARE"
    " SQUARED_DIFFERENCE SQUEEZE SUB TANH"
)
LIBRARIES = {"reference": frozenset(_REFERENCE.split())}
"""Operators whose kernels were run in place, with results equal to the last bit."""


def kernels_in_place(text: str) -> frozenset[str]:
    """Operators that a text names: a library, or operators with commas between them. Raises
    `ModelError` for an unknown one."""
    if text in LIBRARIES:
        return LIBRARIES[text]
    names = [name.strip().upper() for name in text.split(",")]
    for name in names:
        if name not in OPERATORS:
            known = (*LIBRARIES, *(operator.lower() for operator in OPERATORS))
            raise ModelError(
                f"--in-place {text!r}: there is no library and no operator {name!r}:"
                f" {_near(name, known)}"
            )
    return frozenset(names)


def _near(name: str, known: tuple[str, ...]) -> str:
    close = instead(name, known)
    return (
        close
        if close.startswith("did you mean")
        else f"write {', '.join(LIBRARIES)}, or operators such as ADD,RELU"
    )


def in_place_pairs(
    model: TfliteModel, found: Lifetimes, kernels: frozenset[str]
) -> Iterator[tuple[int, int]]:
    """Pairs of positions in ``found.tensors``: an operand, and the result that may take its place.

    The operand is used last by the operator, which makes the result; the file has no address for
    either. Both have as many elements and bytes, so that nothing is broadcast to the shared place.
    O(operands).
    """
    for visit in found.visits:
        subgraph = model.subgraphs[visit.subgraph]
        operator = subgraph.operators[visit.operator]
        if operator.kind not in kernels or len(operator.outputs) != 1:
            continue
        result = found.positions.get((visit.subgraph, operator.outputs[0]))
        for operand in dict.fromkeys(operator.inputs):
            source = found.positions.get((visit.subgraph, operand))
            if source is None or result is None or source == result:
                continue
            one, other = found.tensors[source], found.tensors[result]
            if (
                one.offset is None
                and other.offset is None
                and one.span[1] == visit.span[1]
                and other.span[0] == visit.span[0]
                and subgraph.tensors[operand].count == subgraph.tensors[operator.outputs[0]].count
                and one.bytes == other.bytes
            ):
                yield source, result
