"""A program as the text of plan.c: tables of jobs, copies, cores, and of what operators compute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.integrations.c_program.addresses import Part
from loadmaster.integrations.c_program.model import C_TYPES
from loadmaster.integrations.c_program.operators import KernelStep, Operators
from loadmaster.integrations.c_program.program import (
    Place,
    Port,
    Program,
    ProgramCopy,
    ProgramJob,
    Terms,
)

_HEAD = """/* Made by `loadmaster export c`: the tables of one plan. */
#include <math.h>

#include "kernels.h"
#include "plan.h"
"""
_NONE = "NULL"


def plan_source(program: Program) -> str:
    """Text of plan.c. Linear in operands, waits, and elements of known operands."""
    memories = {name: number for number, name in enumerate(program.memories)}
    parts = [_HEAD]
    for number, operators in enumerate(program.operators):
        parts += _operators_tables(number, operators)
    parts += [
        _table(
            "struct memory",
            "memories",
            [f"{{{_text(name)}, {size}}}" for name, size in program.memories.items()],
        ),
        _table(
            "struct operators",
            "operators",
            [_operators(number, each) for number, each in enumerate(program.operators)],
        ),
        _table("struct job", "jobs", [_job(job, memories) for job in program.jobs]),
        _table("struct copy", "copies", [_copy(copy, memories) for copy in program.copies]),
        _table("struct core", "cores", [_core(name, jobs) for name, jobs in program.cores.items()]),
        _table(
            "struct weight",
            "weights",
            [
                f"{{{memories[m]}, {address}, {data.nbytes}}}"
                for m, address, data in program.weights
            ],
        ),
        _table("struct port", "inputs", [_port(port, memories) for port in program.inputs]),
        _table("struct port", "outputs", [_port(port, memories) for port in program.outputs]),
        _plan(program),
    ]
    return "\n".join(parts)


def _plan(program: Program) -> str:
    tables: dict[str, Sequence[object] | Mapping[str, object]] = {
        "memories": program.memories,
        "cores": program.cores,
        "jobs": program.jobs,
        "copies": program.copies,
        "weights": program.weights,
        "inputs": program.inputs,
        "outputs": program.outputs,
    }
    return (
        "const struct plan plan ="
        f" {{{', '.join(f'{len(rows)}, {name if rows else _NONE}' for name, rows in tables.items())}}};\n"
    )


def _operators_tables(number: int, operators: Operators) -> Iterator[str]:
    """Tables that those of all operators refer to."""
    arrays = [
        f"{{{each.type}, {len(each.shape)}, {{{', '.join(map(str, each.shape)) or 0}}}, NULL}}"
        for each in operators.arrays
    ]
    yield _table("struct array", f"arrays_{number}", arrays)
    yield _table("size_t", f"addresses_{number}", [str(each.address) for each in operators.arrays])
    for array, data in operators.constants.items():
        yield (
            f"static const {_c_type(data)} constant_{number}_{array}[] ="
            f" {{{', '.join(_elements(data))}}};\n"
        )
    yield _table(
        "struct constant",
        f"constants_{number}",
        [f"{{{array}, constant_{number}_{array}}}" for array in operators.constants],
    )
    yield _table("struct step", f"steps_{number}", [_step(step) for step in operators.steps])


def _operators(number: int, operators: Operators) -> str:
    arrays = f"{len(operators.arrays)}, arrays_{number}, addresses_{number}"
    constants = (
        f"{len(operators.constants)}, {f'constants_{number}' if operators.constants else _NONE}"
    )
    return (
        f"{{{operators.workspace}, {arrays}, {constants}, {len(operators.steps)}, steps_{number},"
        f" {operators.main}}}"
    )


def _step(step: KernelStep) -> str:
    operands = _numbers("int", [-1 if each is None else each for each in step.operands])
    attributes = f"{_numbers('int64_t', step.kernel.integers)}, {_reals(step.kernel.reals)}"
    return (
        f"{{{step.kernel.name}, {len(step.operands)}, {operands}, {step.result},"
        f" {int(step.divided)}, {attributes}}}"
    )


def _core(name: str, jobs: Sequence[int]) -> str:
    return f"{{{_text(name)}, {len(jobs)}, {_numbers('int', jobs)}}}"


def _job(job: ProgramJob, memories: Mapping[str, int]) -> str:
    waits = f"{{{len(job.after)}, {_numbers('int', job.after)}}}"
    reads, writes = (
        f"{len(places)}, {_places(places, memories)}" for places in (job.reads, job.writes)
    )
    own = f"{_text(job.name)}, &operators[{job.operators}], {_part(job.part)}, {_terms(job.terms)}"
    return f"{{{own},\n     {reads},\n     {writes},\n     {waits}}}"


def _terms(terms: Terms) -> str:
    return f"{{{terms.first}, {terms.last}, {int(terms.leaves)}}}"


def _copy(copy: ProgramCopy, memories: Mapping[str, int]) -> str:
    ends = ", ".join(
        f"{memories[memory]}, {address}" for memory, address in (copy.source, copy.destination)
    )
    return (
        f"{{{_text(copy.name)}, {ends}, {copy.bytes}, {{{len(copy.after)},"
        f" {_numbers('int', copy.after)}}}}}"
    )


def _port(port: Port, memories: Mapping[str, int]) -> str:
    shape = port.value.shape
    array = (
        f"{{{C_TYPES[port.value.stored]}, {len(shape)}, {{{', '.join(map(str, shape)) or 0}}},"
        " NULL}"
    )
    return f"{{{_text(port.name)}, {array}, {len(port.places)}, {_places(port.places, memories)}}}"


def _places(places: Sequence[Place], memories: Mapping[str, int]) -> str:
    rows = [
        f"{{{memories[each.memory]}, {each.address}, {each.array}, {_part(each.part)}}}"
        for each in places
    ]
    return f"(const struct place[]){{{', '.join(rows)}}}" if rows else _NONE


def _part(part: Part) -> str:
    columns = (part.shape, [first for first, _ in part.ranges], [last for _, last in part.ranges])
    return f"{{{len(part.shape)}, {', '.join(_numbers('int64_t', column) for column in columns)}}}"


def _table(kind: str, name: str, rows: Sequence[str]) -> str:
    if not rows:
        return ""
    return (
        f"static const {kind} {name}[] = {{\n" + "".join(f"    {row},\n" for row in rows) + "};\n"
    )


def _numbers(kind: str, numbers: Sequence[int]) -> str:
    return f"(const {kind}[]){{{', '.join(map(str, numbers))}}}" if numbers else _NONE


def _reals(numbers: Sequence[float]) -> str:
    return f"(const double[]){{{', '.join(map(_real, numbers))}}}" if numbers else _NONE


def _real(number: float) -> str:
    if math.isinf(number) or math.isnan(number):
        return "NAN" if math.isnan(number) else "INFINITY" if number > 0 else "-INFINITY"
    return repr(number)


def _c_type(data: NDArray[Any]) -> str:
    return {"float32": "float", "bool": "uint8_t"}.get(data.dtype.name, f"{data.dtype.name}_t")


def _elements(data: NDArray[Any]) -> Iterable[str]:
    if data.dtype == np.float32:
        return (_real(float(each)) for each in data.ravel())
    if data.dtype == np.int64:
        # The least number has no literal of its own.
        return (
            f"INT64_C({each})" if each > -(2**63) else "INT64_MIN" for each in data.ravel().tolist()
        )
    return (str(int(each)) for each in data.ravel())


def _text(name: str) -> str:
    """A string literal; what is not plain ASCII is written byte by byte, in octal, which ends after
    three digits."""
    plain = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in name.encode()
    )
    return f'"{"".join(plain)}"'
