"""MiniMalloc's CSV: all columns in any order, errors that name their place, files that appear
whole."""

import numpy as np
import pytest
from hypothesis import given
from tests.support.fuzzing import fuzz
from tests.support.problems import buffers_of, records
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.allocation.buffers_csv import format_buffers, parse_buffers, read_solution
from loadmaster.allocation.rules import problem_of
from loadmaster.core.errors import AllocationError, OutputError


def same(one, other):
    names = ("lower", "upper", "size", "alignment", "pin", "hint")
    numbers = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
    return numbers and one.ids == other.ids and all(map(np.array_equal, one.gaps, other.gaps))


@given(records())
@fuzz(100)
def test_what_is_written_is_read_again(buffers):
    if buffers:
        problem = problem_of(buffers)
        assert same(parse_buffers(format_buffers(problem)), problem)


def test_columns_come_in_any_order_under_all_their_names():
    text = (
        "size, gaps,end,hint,begin,alignment,offset,buffer_id\n8,2-3"
        " 5-5@0:4,9,16,1,4,,x\n4,,3,,2,,8,y\n"
    )
    meant = "x 1 10 8 alignment=4 hint=16 gaps=2-4+5-6@0:4, y 2 4 4 offset=8"
    assert same(parse_buffers(text), problem_of(buffers_of(meant)))


def test_quotes_blank_lines_and_line_ends_change_nothing():
    rows = [f"b{i},{i},{i + 3},{i * 7 + 1}" for i in range(50)]
    plain = parse_buffers("id,lower,upper,size\n" + "\n".join(rows))
    quoted = parse_buffers(
        "id,lower,upper,size\r\n"
        + "\r\n\r\n".join(f'"{row.split(",")[0]}",' + row.split(",", 1)[1] for row in rows)
    )
    assert same(plain, quoted)


def test_what_is_said_of_memories_is_read_and_written():
    buffers = buffers_of("a 0 4 8 prefers=sram+dram:500 accesses=3, b 2 6 8 memory=dram")
    problem = problem_of(buffers)
    text = format_buffers(problem)
    assert "sram dram:500" in text
    assert parse_buffers(text).allowed == problem.allowed
    assert (
        parse_buffers("id,lower,upper,size,memory,prefers,accesses\na,0,4,8,,,\n").allowed is None
    )


@pytest.mark.parametrize(
    ("text", "words"),
    cases(r"""
         | f.csv:1: is empty
        id,lower,upper\n | f.csv:1: column 'size' is missing
        id,lower,upper,end,size\n | f.csv:1: give either 'upper'
        id,lower,size\n | f.csv:1: give either 'upper'
        id,lower,upper,size,colour\n | f.csv:1:5: column 'colour' is not known
        id,lower,upper,size,size\n | f.csv:1:5: column 'size' is there twice
        id,lower,upper,size\na,0,1\n | f.csv:2: has 3 cells
        id,lower,upper,size\na,0,1,4,5\n | f.csv:2: has 5 cells
        id,lower,upper,size\n\na,0,1,nan\n | f.csv:3:4: size is 'nan'
        id,lower,upper,size\na,0,1,1.0\n | f.csv:2:4: size is '1.0'
        id,lower,upper,size\na,0,1,\n | f.csv:2:4: size is ''
        id,lower,upper,size\na,0,1,99999999999999999999\n | \
            f.csv:2:4: size is 99999999999999999999, which is 2\^62
        id,lower,upper,size\na,0,1,4\na,0,1,4\n | f.csv:3:1: id of buffer 'a' is taken already
        id,lower,upper,size\na,0,1,4\nb,7,1,4\n | f.csv:3:3: upper of buffer 'b' is 1, before lower
        id,lower,end,size\na,0,1,4\nb,7,1,4\n | f.csv:3:3: end of buffer 'b'
        id,lower,upper,size,gaps\na,0,9,4,2:3\n | f.csv:2:5: gaps of buffer 'a' has '2:3'
        id,lower,upper,size,gaps\na,0,9,4,2-12\n | f.csv:2:5: gaps of buffer 'a' has 2-12
        id,lower,upper,size,prefers\na,0,9,4,sram:x\n | \
            f.csv:2:5: prefers of buffer 'a' has 'sram:x'
        id,lower,upper,size,prefers\na,0,9,4,m m\n | \
            f.csv:2:5: prefers of buffer 'a' names a memory twice
        id,lower,upper,size,accesses\na,0,9,4,-1\n | f.csv:2:5: accesses of buffer 'a' has -1
        id,lower,upper,size,alignment\na,0,9,4,0\n | f.csv:2:5: alignment of buffer 'a' is 0
        id,lower,upper,size,alias,shift\na,0,1,9,x,0\n | \
            f.csv:2:5: alias of buffer 'a' is 'x', and there is no buffer of that id
        id,lower,upper,size,alias,shift\na,0,1,9,b,2\nb,0,1,9,a,2\n | \
            f.csv:3:5: alias of buffer 'b' contradicts what other rows say of its distance to 'a'
        id,lower,upper,size,alias,shift\na,0,1,9,b,x\nb,0,1,9,,\n | \
            f.csv:2:6: shift is 'x': write a whole number
        id,lower,upper,size,alias,shift\na,0,1,9,,3\n | \
            f.csv:2:6: shift of buffer 'a' is of no alias
    """),
)
def test_errors_name_line_and_column(text, words):
    with pytest.raises(AllocationError, match=words):
        parse_buffers(text, "f.csv")


def test_a_solution_is_read_apart_from_its_offsets(tmp_path):
    problem = problem_of(buffers_of("a 0 4 8, b 2 6 8"))
    file = lm.write_buffers(tmp_path / "out.csv", problem, np.array([0, 4]))
    read, offsets = read_solution(file)
    assert offsets.tolist() == [0, 4]
    assert [v.rule for v in lm.verify_buffers(read, offsets)] == ["overlap"]
    with pytest.raises(AllocationError, match="column 'offset' is missing"):
        read_solution(lm.write_buffers(tmp_path / "problem.csv", problem))


def test_a_file_that_cannot_be_written_or_read_is_named(tmp_path):
    problem = problem_of(buffers_of("a 0 4 8"))
    with pytest.raises(OutputError, match="gone"):
        lm.write_buffers(tmp_path / "gone" / "out.csv", problem)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AllocationError, match=r"none\.csv: cannot be read"):
        lm.read_buffers(tmp_path / "none.csv")


@pytest.mark.parametrize("row", ["a,0,1,{}", "a,0,1,1,{}", "a,0,1,1,1,2-{}"])
def test_numbers_of_thousands_of_digits_are_refused(row):
    with pytest.raises(AllocationError, match="buffers:2:"):
        parse_buffers("id,lower,upper,size,alignment,gaps\n" + row.format("9" * 5000) + "\n")


def test_aliases_are_written_and_read_again():
    buffers = buffers_of("whole 3 5 96, first 0 3 64, second 2 3 32, other 0 2 32")
    problem = problem_of(buffers, aliases=((0, 1, (2, 64)),))
    text = format_buffers(problem)
    assert text.splitlines()[0] == "id,lower,upper,size,alias,shift"
    assert text.splitlines()[3] == "second,2,3,32,whole,64"
    assert parse_buffers(text).aliases == problem.aliases
    chain = "id,lower,upper,size,alias,shift\na,0,1,9,,\nb,0,1,4,a,2\nc,0,1,4,b,3\n"
    assert parse_buffers(chain).aliases == (((0, 0), (1, 2), (2, 5)),)


def test_a_quoted_line_break_belongs_to_the_id():
    text = 'id,lower,upper,size\n"line\nbreak",1,2,3\n\n"say ""it""",0,3,4\n'
    problem = parse_buffers(text)
    assert [problem.name(i) for i in range(2)] == ["line\nbreak", 'say "it"']
    assert parse_buffers(format_buffers(problem)).ids == problem.ids
    with pytest.raises(AllocationError, match=r"f\.csv:6:2: lower is"):
        parse_buffers(text + "c,x,3,4\n", "f.csv")


@pytest.mark.parametrize("cell", ["a" * 140_000, '"a'])
def test_what_is_no_csv_is_refused_with_its_line(cell):
    with pytest.raises(AllocationError, match=r"f\.csv:2: is not CSV"):
        parse_buffers(f"id,lower,upper,size,alias\n{cell},0,1,2,\n", "f.csv")
