"""Operators that may write their result over an operand, by kernel library.

TFLM calls kernels with the addresses of the plan. A kernel that reads every element before it
writes the element at the same place can run in place. No library documents this property, so users
must ask for it; it is never assumed.
"""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.core.arguments import instead
from loadmaster.core.errors import ModelError
from loadmaster.integrations.tflite.lifetimes import Lifetimes, element_bytes
from loadmaster.workloads.frontends.tflite.model import TfliteModel
from loadmaster.workloads.frontends.tflite.schema import OPERATORS

_REFERENCE = (
    "ABS ADD CEIL COS DIV ELU EXP EXPAND_DIMS FLOOR HARD_SWISH LEAKY_RELU LOG LOGICAL_NOT LOGISTIC"
    " MAXIMUM MINIMUM MUL NEG PRELU RELU RELU6 RESHAPE ROUND RSQRT SIN SQRT SQUARE"
    " SQUARED_DIFFERENCE SQUEEZE SUB TANH"
)
LIBRARIES = {"reference": frozenset(_REFERENCE.split())}
"""Operators by library whose kernels were run in place with results equal bit for bit."""


def kernels_in_place(text: str) -> frozenset[str]:
    """Return the operators of a library, or of a list separated by commas. Raises `ModelError` for
    an unknown name."""
    if text in LIBRARIES:
        return LIBRARIES[text]
    names = [name.strip().upper() for name in text.split(",")]
    for name in names:
        if name not in OPERATORS:
            hint = instead(name, (*LIBRARIES, *map(str.lower, OPERATORS)))
            if not hint.startswith("did you mean"):
                hint = f"write {', '.join(LIBRARIES)}, or operators such as ADD,RELU"
            raise ModelError(
                f"--in-place {text!r}: there is no library and no operator {name!r}: {hint}"
            )
    return frozenset(names)


def in_place_pairs(
    model: TfliteModel, found: Lifetimes, kernels: frozenset[str]
) -> Iterator[tuple[int, int]]:
    """Yield in-place pairs of indices in ``found.tensors``: an operand, and the result that may
    overwrite it.

    The operator is the last use of the operand, no output of its subgraph, and neither has an
    address in the file. Both have the same number of elements and bytes, so the operand is not
    broadcast. O(operands).
    """
    for visit in found.visits:
        subgraph = model.subgraphs[visit.subgraph]
        operator = subgraph.operators[visit.operator]
        if operator.kind not in kernels or len(operator.outputs) != 1:
            continue
        (made,) = operator.outputs
        result = found.positions.get((visit.subgraph, made))
        for operand in dict.fromkeys(operator.inputs):
            source = found.positions.get((visit.subgraph, operand))
            if source is None or result is None or operand in subgraph.outputs:
                continue
            one, other = found.tensors[source], found.tensors[result]
            read, written = subgraph.tensors[operand], subgraph.tensors[made]
            if (
                operand != made
                and one.offset is None
                and other.offset is None
                and one.span[1] == visit.span[1]
                and other.span[0] == visit.span[0]
                and read.count == written.count
                and element_bytes(read) == element_bytes(written)
            ):
                yield source, result
