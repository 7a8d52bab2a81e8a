"""The check of rewritten files: what is right passes, and each class of harmful change is found."""

import itertools
import random
import struct
from dataclasses import replace
from functools import cache

import pytest
from tests.integrations.tflite.test_bands import aligned_bands, planned
from tests.support.fuzzing import FUZZ
from tests.support.tflite_bands import convolutional
from tests.support.tflite_models import Model

from loadmaster.core.errors import AllocationError, LoadmasterError
from loadmaster.integrations.tflite.interpreter import differing
from loadmaster.integrations.tflite.planned_file import planned_offsets, with_plan
from loadmaster.integrations.tflite.rewritten import check_rewritten
from loadmaster.workloads.frontends.tflite.model import parse_model

pytest.importorskip("tflite_micro")


@cache
def example():
    """A network of bytes with a region that has a convolution, in three bands or more."""
    for seed in range(200):
        old = convolutional(seed)
        main = parse_model(old).subgraphs[0]
        for bands in aligned_bands(old) if main.tensors[0].dtype == "int8" else ():
            kinds = [op.kind for op in main.operators[bands.region.first : bands.region.last]]
            if bands.count >= 3 and len(kinds) > 1 and "CONV_2D" in kinds and bands.starts[1] > 0:
                return old, bands
    raise AssertionError


def vector(table, field):
    """Position of the first element of a vector of a table."""
    at = table.at(field)
    return table.file.follow(at) + 4


def operators(model, kind):
    """Where operators of a kind have their operands, and these."""
    return [
        (vector(op.table, 1), op.inputs)
        for subgraph in model.subgraphs
        for op in subgraph.operators
        if op.kind == kind
    ]


def band_twice(model):
    at, operands = operators(model, "CONCATENATION")[0]
    return at, operands[1]


def swapped_bands(model):
    """Two bands of equal height, one in the place of the other."""
    at, operands = operators(model, "CONCATENATION")[0]
    return at, operands[1], operands[0]


def rows_of_another_band(model):
    (_, one), (at, other) = operators(model, "SLICE")[:2]
    assert one[1] != other[1]
    return at + 4, one[1]


def another_operand_of_a_body(model):
    at, operands = operators(model, "IF")[0]
    return at + 4, operators(model, "IF")[1][1][1] if operands else 0


def another_result_of_the_body(model):
    (table,) = list(model.root.tables(2))[1:]
    return vector(table, 2), model.subgraphs[1].inputs[0]


def another_output(model):
    table = next(model.root.tables(2))
    return vector(table, 2), model.subgraphs[0].inputs[0]


def another_scale(model):
    """The scales of a band are those of the convolution's weights."""
    body = model.subgraphs[1]
    weights = next(op for op in body.operators if op.kind == "CONV_2D").inputs[1]
    source, target = (body.tensors[tensor].table for tensor in (weights, body.inputs[0]))
    (at, field) = (target.at(4), source.at(4))
    return at, source.file.follow(field) - at


def another_buffer(model):
    """A slice begins where another does: its constant is in another buffer."""
    main = model.subgraphs[0]
    (_, one), (_, other) = operators(model, "SLICE")[:2]
    place = main.tensors[other[1]].table.at(2)
    return place, main.tensors[one[1]].table.number(2, "I")


@pytest.mark.parametrize(
    "change",
    [
        band_twice,
        swapped_bands,
        rows_of_another_band,
        another_operand_of_a_body,
        another_result_of_the_body,
        another_output,
        another_scale,
        another_buffer,
    ],
)
def test_each_class_of_harmful_change_is_found(change):
    old, bands = example()
    new, head = planned(old, [bands])
    assert check_rewritten(old, new) == head
    at, *values = change(parse_model(new))
    wrong = bytearray(new)
    struct.pack_into(f"<{len(values)}i", wrong, at, *values)
    assert wrong != new
    with pytest.raises(AllocationError, match="the check of the rewritten file found a fault"):
        check_rewritten(old, bytes(wrong))


@pytest.mark.slow
def test_a_wrong_padding_option_is_found():
    """A convolution of a band with the options of another one of the file, which pads otherwise;
    for windows of 1 x 1 that is the same."""
    found = 0
    for seed in (20, 25, 26, 32, 44):
        old = convolutional(seed)
        for bands in aligned_bands(old)[:9]:
            new, _ = planned(old, [bands])
            model = parse_model(new)
            main, body = model.subgraphs
            inside, others = (
                [op for op in each.operators if op.kind == "CONV_2D"] for each in (body, main)
            )
            for op, other in itertools.product(inside, others):
                if padding(op) != padding(other):
                    place = op.table.at(4)
                    wrong = bytearray(new)
                    struct.pack_into("<i", wrong, place, other.options.position - place)
                    try:
                        check_rewritten(old, bytes(wrong))
                    except AllocationError:
                        found += 1
                    else:
                        assert differing(old, bytes(wrong), 2**16) is None
    assert found > 30


def padding(op):
    return op.options.number(0, "b")


def test_wrong_rows_are_found_in_every_band():
    old, bands = example()
    for band in range(bands.count):
        for shift in (-1, 1):
            starts = list(bands.starts)
            starts[band] += shift
            if starts[band] >= 0:
                with pytest.raises(AllocationError, match="the rewritten file found a fault"):
                    check_rewritten(old, planned(old, [replace(bands, starts=tuple(starts))])[0])


@pytest.mark.slow
def test_addresses_over_what_is_still_needed_are_found():
    """Every tensor at the address of every other: what passes gives the same bits."""
    old, bands = example()
    model = parse_model(planned(old, [bands])[0])
    entries = planned_offsets(model)
    found = 0
    for place, offset in enumerate(entries):
        for other in {*entries} - {offset, -1}:
            moved = [other if at == place else each for at, each in enumerate(entries)]
            new = with_plan(model, moved)
            try:
                check_rewritten(old, new)
            except AllocationError:
                found += 1
                continue
            assert differing(old, new, 2**16) is None, (place, other)
    assert found > 20


def test_weights_and_options_are_those_of_the_old_file():
    old, bands = example()
    new, _ = planned(old, [bands])
    wrong = bytearray(new)
    wrong[-20] ^= 1
    with pytest.raises(AllocationError, match="does not end with the old one"):
        check_rewritten(old, bytes(wrong))


@pytest.mark.slow
def test_words_changed_at_random_are_found_or_give_the_same_bits():
    """Any word of what was written; what the interpreter refuses is found when it is run."""
    found, count = 0, round(40 * FUZZ)
    for seed in range(count):
        old, rng = convolutional(seed), random.Random(seed)
        every = aligned_bands(old)
        if not every:
            continue
        new, _ = planned(old, [rng.choice(every)])
        for _ in range(12):
            wrong = bytearray(new)
            at = 4 * rng.randrange(2, (len(new) - len(old)) // 4)
            (value,) = struct.unpack_from("<i", wrong, at)
            changed = rng.choice((value ^ 1, value ^ 16, value ^ 256, value ^ 65536, value >> 1))
            struct.pack_into("<i", wrong, at, changed)
            try:
                check_rewritten(old, bytes(wrong))
            except LoadmasterError:
                found += 1
                continue
            difference = differing(old, bytes(wrong), 2**16)
            assert difference is None or "interpreter" in difference, (seed, at, difference)
    assert found > 4 * count


def test_a_body_that_runs_itself_is_a_fault():
    model = Model()
    for _ in range(2):
        graph = model.subgraph()
        operands = [graph.tensor("1", "bool", [True]), graph.input("1x4x4x1")]
        graph.outputs = [graph.out("IF", operands, "1x4x4x1", {0: 1, 1: 1})]
    data = model.bytes()
    with pytest.raises(AllocationError, match="recursion"):
        check_rewritten(data, data)
