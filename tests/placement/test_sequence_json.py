"""Files of kernel sequences: they come back as they were, and whatever else is in a file is refused
in one line."""

import gzip
import json
import math

import pytest
from hypothesis import given
from tests.support.fuzzing import fuzz, spoilt
from tests.support.hand_sequence import kernel, operand, sequence_of
from tests.support.sequences import sequence_from_text
from tests.support.tables import cases

from loadmaster.core.errors import LoadmasterError, OutputError, PlacementError
from loadmaster.core.provenance import Label, Provenance
from loadmaster.cost.kernels.work import (
    Amount,
    KernelWork,
    SequenceWork,
    UsedTensor,
    work_from_object,
    work_to_text,
    write_work,
)
from loadmaster.cost.read_sequence import read_sequence
from loadmaster.placement.sequence import Algorithm, CopyLink, Kernel
from loadmaster.placement.sequence_json import sequence_to_text, write_sequence
from loadmaster.targets.load import target
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Role

STEPS = sequence_of(
    f'w {2**61} weight, x" 0 input, y 7',
    Kernel(
        "k0",
        "mm",
        (operand(0, "r", math.inf, 0.1), operand(2, "w", 0.0, 0.0)),
        (Algorithm("a", 1e-300), Algorithm("b", 0, 9)),
    ),
    kernel("k1", operand(0, "rw", 1.0, 0.5), seconds=0.25, measured=((1.0, math.inf),)),
    name="ste€p",
    link=CopyLink(1e5, 2e5, 3e5, 4e5, True),
    alignment=64,
    notes=("a note",),
)


@pytest.mark.parametrize("name", ["steps.json", "steps.json.gz"])
def test_a_sequence_comes_back_as_it_was(tmp_path, name):
    file = write_sequence(STEPS, tmp_path / name)
    assert read_sequence(file) == STEPS
    again = file.read_bytes()
    assert write_sequence(STEPS, str(file)).read_bytes() == again


def test_where_costs_come_from_comes_back_as_it_was():
    text = edited(costs=[["estimated", "a guess", 2], ["published", "a paper", 1]])
    costs = (Provenance(Label.ESTIMATED, "a guess", 2), Provenance(Label.PUBLISHED, "a paper"))
    read = sequence_from_text(text, "steps.json")
    assert read.costs == costs
    assert sequence_from_text(sequence_to_text(read), "steps.json") == read


def edited(**changes):
    return json.dumps(json.loads(sequence_to_text(STEPS)) | changes)


def refuses(text, message):
    """Fail unless a text is no sequence, for this reason in one line."""
    with pytest.raises(PlacementError, match=rf"^file\.json: .*{message}.*\Z"):
        sequence_from_text(text, "file.json")


@pytest.mark.parametrize(
    ("text", "message"),
    cases("""
         | not JSON from line 1
        {} | is no kernel sequence
        {"a": NaN} | NaN is no JSON
    """),
)
def test_what_is_no_object_of_a_sequence_is_refused(text, message):
    refuses(text, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    cases("""
        {"version": 2} | reads version 1
        {"surprise": 1} | surprise: extra inputs
        {"link": {"to_fast": 1}} | link.to_slow: field required
        {"link": {"to_fast": 0, "to_slow": 1, "asynchronous_to_fast": 1, \
            "asynchronous_to_slow": 1, "shared": false}} | copy bandwidth to_fast is
        {"tensors": [["w", -1, "weight"]]} | tensors.0.1
        {"tensors": [["w", 1.5, "weight"]]} | tensors.0.1
        {"tensors": [["w", 1, "cat"]]} | tensors.0.2
        {"tensors": []} | uses a tensor twice or one that does not exist
        {"kernels": [{"name": "k", "kind": "k", "operands": [[2, "r", 0.0, 0.0]], \
            "algorithms": [["a", 0.0, 0]]}]} | reads 'y'
        {"kernels": [{"name": "k", "kind": "k", "operands": [[0, "x", 0.0, 0.0]], \
            "algorithms": []}]} | kernels.0.operands.0.1
        {"kernels": [{"name": "k", "kind": "k", "operands": [], "algorithms": []}]} | \
            has no algorithm
        {"alignment": 0} | alignment is 0
    """),
)
def test_what_is_no_sequence_is_refused(changes, message):
    refuses(edited(**json.loads(changes)), message)


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(PlacementError, match="cannot be read"):
        read_sequence(tmp_path / "missing.json")
    with pytest.raises(OutputError, match="cannot be written"):
        write_sequence(STEPS, tmp_path / "no" / "folder.json")
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(sequence_to_text(STEPS).encode())[:-20])
    with pytest.raises(PlacementError, match="not a complete gzip file"):
        read_sequence(cut)
    (tmp_path / "latin.json").write_bytes(b'{"\xff": 1}')
    with pytest.raises(PlacementError, match="byte 2 is not UTF-8"):
        read_sequence(tmp_path / "latin.json")


def test_a_file_that_grows_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("loadmaster.placement.sequence_json.LARGEST_FILE", 2**20)
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * 2**22))
    with pytest.raises(PlacementError, match="is larger than 1 MiB"):
        read_sequence(bomb)


WORK = SequenceWork(
    "ste€p",
    STEPS.tensors,
    (
        KernelWork(
            "k0",
            "conv",
            (
                UsedTensor(0, Amount(9, Role.WEIGHT, 0), None),
                UsedTensor(2, None, Amount(7, Role.OUTPUT, 0)),
            ),
            (LoopNest(64, 3, y=7, stride=(2, 2)),),
            0,
            32,
            448,
        ),
        KernelWork("k1", "add", (UsedTensor(0, Amount(0), Amount(5)),), (), 12, 8, 0),
    ),
    ("a note",),
)


RECORD = json.loads(work_to_text(WORK))
(FIRST, _) = RECORD["kernels"]


def test_work_comes_back_as_it_was(tmp_path):
    text = work_to_text(WORK)
    assert work_from_object(json.loads(text), "file.json") == WORK
    file = write_work(WORK, tmp_path / "work.json.gz")
    assert file.read_bytes() == gzip.compress(text.encode(), mtime=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "reads version 1"),
        ({"format": "another"}, "is no kernel sequence"),
        ({"tensors": RECORD["tensors"][:1]}, "'k0' names a tensor or a loop nest that does not"),
        ({"kernels": [FIRST | {"nests": []}]}, "names a tensor or a loop nest"),
        ({"kernels": []}, "kernels: list should have at least 1 item"),
        ({"kernels": [FIRST | {"nests": [{"k": 0, "c": 1}]}]}, "kernels.0.nests.0.k"),
        ({"kernels": [FIRST | {"bits": True}]}, "kernels.0.bits"),
    ],
)
def test_what_is_no_work_is_refused(changes, message):
    with pytest.raises(PlacementError, match=rf"^file\.json: .*{message}"):
        work_from_object(RECORD | changes, "file.json")


@fuzz(300)
@given(spoilt(json.loads(sequence_to_text(STEPS))) | spoilt(RECORD))
@pytest.mark.slow
def test_any_value_anywhere_is_read_or_refused(tmp_path_factory, document):
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(document))
    try:
        again = read_sequence(str(file), target("optane-server"))
    except LoadmasterError as error:
        refusal = str(error)
    else:
        assert sequence_from_text(sequence_to_text(again), "file.json") == again
        return
    assert refusal.startswith(str(file))
