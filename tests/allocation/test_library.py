"""The library for C and the package: the same demands get the same answer."""

import ctypes

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.problems import demands, records

import loadmaster as lm
from loadmaster import _native
from loadmaster.allocation.problem import EXHAUSTED, Load

STATUS = ("optimal", "feasible", "infeasible", "unknown", "invalid", "out of memory", "error")


n, pointer = ctypes.c_int64, ctypes.POINTER
KINDS = {
    "": n,
    "size_t": ctypes.c_size_t,
    "uint64_t": ctypes.c_uint64,
    "int32_t": ctypes.c_int32,
    "int": ctypes.c_int,
    "double": ctypes.c_double,
    "void*": ctypes.c_void_p,
    "char[160]": ctypes.c_char * 160,
}
"""Types of fields, by their names in C; those without one are whole numbers of 64 bits."""


def structure(name, fields):
    """A structure with fields such as ``low high count:size_t``; pointers to it are types of
    fields, too."""
    rows = [field.partition(":") for field in fields.split()]
    own = {"_fields_": [(field, KINDS[kind]) for field, _, kind in rows]}
    made = type(name, (ctypes.Structure,), own)
    KINDS[f"{name}*"] = pointer(made)
    return made


Buffer = structure("Buffer", "size alignment start end pinned offset group shift")
Gap = structure("Gap", "buffer:size_t start end low high")
Range = structure("Range", "low high")
Pair = structure("Pair", "one:size_t other:size_t shift")
Problem = structure(
    "Problem",
    "buffers:Buffer* buffer_count:size_t gaps:Gap* gap_count:size_t reserved:Range*"
    " reserved_count:size_t alignment capacity in_place:Pair* in_place_count:size_t without_clock"
    " conflicts:Pair* conflict_count:size_t",
)
Limits = structure("Limits", "seconds:double work seed:uint64_t threads cancel:void* context:void*")
Result = structure(
    "Result",
    "status:int proof:int peak bound instant nodes interrupted:int32_t message:char[160]",
)
library = ctypes.CFUNCTYPE(
    ctypes.c_int,
    pointer(Problem),
    pointer(Limits),
    pointer(n),
    ctypes.c_char_p,
    pointer(Result),
)(_native.LOADMASTER_ALLOCATE)


def from_c(problem, capacity, alignment, seed):
    """Result, offsets, and the buffers of the proof. Every other buffer without a group is in one
    of its own, which asks for nothing."""
    group = {
        member: (number, shift)
        for number, members in enumerate(problem.aliases, 1)
        for member, shift in members
    }
    columns = (
        problem.size,
        problem.alignment,
        problem.lower,
        problem.upper,
        problem.pin >= 0,
        problem.pin,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    alone = len(group) + 1
    buffers = [Buffer(*row, *group.get(i, (i % 2 * (alone + i), 5))) for i, row in enumerate(rows)]
    gaps = [Gap(*row) for row in zip(*(column.tolist() for column in problem.gaps), strict=True)]
    ranges = [Range(*span) for span in problem.reserved]
    sharing = [Pair(*row) for row in problem.in_place.tolist()]
    clockless = problem.conflicts is not None
    apart = [Pair(*row, 0) for row in problem.conflicts.tolist()] if clockless else []
    kinds = (Buffer, buffers), (Gap, gaps), (Range, ranges), (Pair, sharing), (Pair, apart)
    arrays = [((kind * len(items))(*items), len(items)) for kind, items in kinds]
    stated = Problem(*sum(arrays[:3], ()), alignment, capacity, *arrays[3], clockless, *arrays[4])
    offsets, result = (n * len(buffers))(), Result()
    named = ctypes.create_string_buffer(len(buffers) + 1)
    assert library(stated, Limits(0.0, 0, seed, 1), offsets, named, result) == result.status
    return (
        result,
        list(offsets),
        tuple(problem.name(i) for i in range(len(buffers)) if named.raw[i]),
    )


@pytest.mark.slow
@given(records(), st.data())
@fuzz(150)
def test_the_library_answers_as_the_package_does(buffers, data):
    wanted = data.draw(demands(len(buffers)))
    if "aliases" in wanted:
        # The library meets groups in the order of their first buffers.
        wanted["aliases"] = tuple(sorted(wanted["aliases"], key=min))
    numbers = st.integers(0, 30), st.sampled_from([1, 1, 2, 8]), st.integers(0, 3)
    capacity, alignment, seed = map(data.draw, numbers)
    try:
        problem = lm.problem_of(buffers, **wanted)
        answer = lm.allocate(problem, capacity or None, alignment=alignment, seed=seed)
    except lm.AllocationError as error:
        assume("problem" not in locals() or "alias" in str(error) or "offset" in str(error))
        if "problem" in locals():
            # A group that is pinned into a reserved range is refused by the package; the library
            # may find that it fits nowhere.
            assert STATUS[from_c(problem, capacity, alignment, seed)[0].status] in (
                "invalid",
                "infeasible",
            )
        return
    event(answer.status)
    result, offsets, named = from_c(problem, capacity, alignment, seed)
    assert (STATUS[result.status], result.message) == (answer.status, b"")
    assert result.nodes == answer.counters.get("nodes", 0)
    if answer.offsets is not None:
        assert (offsets, result.peak, result.bound) == (
            answer.offsets.tolist(),
            answer.peak,
            answer.lower_bound,
        )
    if answer.status == "optimal":
        proof = answer.certificate
        assert result.proof == (2 if proof == EXHAUSTED else 1)
        assert not isinstance(proof, Load) or (result.instant, named) == (
            proof.instant,
            tuple(name for name in proof.buffers if not name.startswith("(reserved")),
        )
    elif answer.status == "infeasible":
        assert capacity < result.bound <= answer.lower_bound
