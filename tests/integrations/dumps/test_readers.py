"""Dumps of other planners: real ones, lifetimes counted by hand, addresses that overlap, and damage
of every kind."""

import os
import pickle
import random
import re
import time
from pathlib import Path

import pytest
from tests.support.planner_dumps import (
    FIXTURES,
    MIB,
    REAL,
    TORCH,
    dump_of,
    event,
    snapshot,
    tflm_log,
)
from tests.support.tables import cases

from loadmaster.core.errors import AllocationError
from loadmaster.integrations.dumps.arena import DumpedBuffer, arena_of
from loadmaster.integrations.dumps.compare import compare
from loadmaster.integrations.dumps.readers.registry import READERS
from loadmaster.integrations.tflite.export import export_model

ALL = READERS.names


def read(planner, path):
    return READERS.find(planner)(path)


def lifetimes(arena):
    """Name, first and last instant (inclusive) and bytes."""
    problem = arena.problem
    return [
        (problem.name(i), int(problem.lower[i]), int(problem.upper[i]) - 1, int(problem.size[i]))
        for i in range(len(problem))
    ]


def test_every_planner_of_the_issue_has_a_reader():
    assert set(ALL) == {"xla", "iree", "vela", "tflm-log", "onnxruntime", "torch-snapshot"}


FIGURES = {
    # Buffers, what they take, what anything must take: bytes.
    "xla": (6, 13_824, 13_824),
    "iree": (5, 38_976, 35_072),
    "vela": (34, 74_464, 74_464),
    "onnxruntime": (7, 24_576, 24_576),
    "tflm-log": (14, 73_728, 55_296),
    "torch-snapshot": (3, 4 * MIB, 2 * MIB),
}


@pytest.mark.parametrize("planner", ALL)
def test_dumps_are_read_checked_and_compared(planner, tmp_path):
    arena, *others = read(planner, dump_of(planner, tmp_path))
    if planner in ("xla", "iree", "vela"):
        assert all(each.taken == each.stated for each in (arena, *others))
    found = compare(arena)
    assert found.violations == ()
    assert (len(arena.problem), arena.taken, found.answer.lower_bound) == FIGURES[planner]
    assert (found.answer.status, found.answer.peak) == ("optimal", FIGURES[planner][2])
    assert arena.taken is not None
    assert found.verdict == (
        "at the floor"
        if arena.taken == found.answer.peak
        else f"{1 - found.answer.lower_bound / arena.taken:.1%} could be saved"
    )


def test_what_tflm_logs_is_what_its_interpreter_takes(tmp_path):
    exported = export_model(FIXTURES / "wake-words.tflite", scratch="none")
    path = tmp_path / "log.txt"
    path.write_text(tflm_log(FIXTURES / "wake-words.tflite") * 2)
    arenas = read("tflm-log", path)
    assert [arena.name for arena in arenas] == ["plan 1", "plan 2"]
    assert [arena.taken for arena in arenas] == [exported.plan.head_before] * 2


# Lifetimes and aliases, counted by hand


def xla_files(folder, values, lives):
    """XLA's two files of a module with one parameter and one packed allocation."""
    path = folder / "m-buffer-assignment.txt"
    parameter = (
        "allocation 0: size 64, parameter 0:\n value: <1 p @0> (size=64,offset=0): f32[16]\n"
    )
    path.write_text(
        f"BufferAssignment:\n{parameter}allocation 1: size 640, preallocated-temp:\n{values}"
    )
    sequence = "  InstructionSequence:\n    0:p\n"
    peak = "  Live ranges at 3 (peak):\n    p{}: 64 bytes\n"
    (folder / "m-live-range.txt").write_text(
        f"HloLiveRange (max 9):\n{sequence}  BufferLiveRange:\n    p{{}}:0-9\n{lives}{peak}"
    )
    return path


def test_values_of_xla_that_share_an_address_while_alive_are_one_storage(tmp_path):
    values = (
        " value: <2 a @0> (size=256,offset=0): f32[64]\n"
        " value: <3 PHI while{1} @0> (size=256,offset=0): f32[64]\n"
        " value: <4 c @0> (size=384,offset=256): f32[96]\n"
        " value: <5 d{} @0> (size=128,offset=0): (f32[32])\n"
    )
    path = xla_files(tmp_path, values, "    a{}:1-3\n    while{1}:3-5\n    c{}:2-6\n    d{}:6-7\n")
    (arena,) = read("xla", path)
    assert lifetimes(arena) == [
        ("a{}", 1, 3, 256),
        ("while{1}", 3, 5, 256),
        ("c{}", 2, 6, 384),
        ("d{}", 6, 7, 128),
    ]
    assert arena.problem.aliases == (((0, 0), (1, 0)),)
    assert (arena.taken, arena.stated, compare(arena).violations) == (640, 640, ())


@pytest.mark.parametrize("mark", ["PHI {}", "{} (phi)"], ids=["before", "after"])
def test_what_loops_of_xla_hand_on_keeps_its_address(mark, tmp_path):
    """The state of a loop, with an instant at which none of its values is alive, beside others of
    its size and of its address."""
    rows = cases("""
        init{} | 256 | 0 | 1-2
        root{} | 256 | 0 | 5-6
        other{} | 128 | 0 | 4-4
        apart{} | 256 | 256 | 1-2
        later{} | 256 | 256 | 4-5
        arg_tuple.3{} | 256 | 0 | 2-3
        while.5{} | 256 | 0 | 6-8
    """)
    marked = {name: mark.format(name) for name in ("arg_tuple.3{}", "while.5{}")}
    values = "".join(
        f" value: <{at} {marked.get(name, name)} @0> (size={size},offset={offset}): f32\n"
        for at, (name, size, offset, _) in enumerate(rows, 2)
    )
    lives = "".join(f"    {name}:{span}\n" for name, *_, span in rows)
    (arena,) = read("xla", xla_files(tmp_path, values, lives))
    names = [name for name, *_ in lifetimes(arena)]
    found = {name: f"{first}-{last}" for name, first, last, _ in lifetimes(arena)}
    assert found == {name: span for name, *_, span in rows}
    groups = {frozenset(names[at] for at, _ in group) for group in arena.problem.aliases}
    assert groups == {frozenset({"init{}", "arg_tuple.3{}", "root{}", "while.5{}"})}
    assert compare(arena).violations == ()


def test_values_of_xla_that_overlap_in_part_are_reported(tmp_path):
    values = (
        " value: <2 a @0> (size=256,offset=0): f32[64]\n value: <3 b @0> (size=256,offset=128):"
        " f32[64]\n"
    )
    (arena,) = read("xla", xla_files(tmp_path, values, "    a{}:1-3\n    b{}:3-5\n"))
    found = compare(arena)
    assert [violation.rule for violation in found.violations] == ["overlap"]
    assert found.verdict == "their plan does not hold"


def test_addresses_of_iree_need_the_text_after_the_pass(tmp_path):
    path = tmp_path / "before.txt"
    text = REAL["iree"].read_text()
    path.write_text(
        re.sub(r"// -----// IR Dump After.*?(?=// -----//|\Z)", "", text, flags=re.DOTALL)
    )
    (arena,) = read("iree", path)
    assert (arena.offsets, arena.taken, compare(arena).answer.peak) == (None, None, 35_072)
    assert compare(arena).verdict == "the dump does not say what is taken"


def test_slices_of_iree_may_be_aligned_to_less_than_its_default(tmp_path):
    """With --iree-stream-resource-min-offset-alignment=16; the file begins with a byte order
    mark."""
    body = """// -----// IR Dump {0} LayoutSlicesPass: iree-stream-layout-slices //----- //
util.func public @f(%arg0: index) {{
  %c16 = arith.constant 16 : index
  %c48 = arith.constant 48 : index
{1}  util.return
}}

"""
    pack = """  %0:3 = stream.resource.pack slices({
    [0, 2] = %c16,
    [1, 3] = %c48
  }) : index
  "use"(%0#0, %0#1, %0#2) : (index, index, index) -> ()
"""
    constants = "".join(f"  %c{n}_0 = arith.constant {n} : index\n" for n in (0, 16, 64))
    placed = f'{constants}  "use"(%c64_0, %c0_0, %c16_0) : (index, index, index) -> ()\n'
    text = body.format("Before", pack) + body.format("After", placed)
    path = tmp_path / "iree.txt"
    path.write_text(text, encoding="utf-8-sig")
    (arena,) = read("iree", path)
    assert (arena.taken, arena.stated, compare(arena).verdict) == (64, 64, "at the floor")


def test_a_percent_sign_without_a_name_after_the_pass_of_iree_is_another_text(tmp_path):
    path = tmp_path / "dump.txt"
    path.write_text(REAL["iree"].read_text().replace("util.return %10 :", "util.return % :"))
    (arena,) = read("iree", path)
    assert arena.offsets is None


def test_sizes_of_iree_that_are_not_static_are_refused_by_name(tmp_path):
    path = tmp_path / "dump.txt"
    text = REAL["iree"].read_text()
    size = re.search(r"\[\d+, \d+\] = (%c\d+)", text)
    assert size
    path.write_text(text.replace(f"{size[1]} = arith.constant", f"{size[1]} = arith.muli %n,"))
    with pytest.raises(
        AllocationError, match=rf"dump\.txt:\d+: the size {size[1]} in branches\$async .*static"
    ):
        read("iree", path)


def test_tensors_of_onnx_runtime_end_with_their_last_reader():
    (arena,) = read("onnxruntime", REAL["onnxruntime"])
    assert arena.offsets is None
    spans = {name: (first, last) for name, first, last, _ in lifetimes(arena)}
    assert all(first <= last for first, last in spans.values())
    assert "y" not in spans
    # Of all kernels, only the sigmoid took no memory.
    assert [
        (arena.problem.name(one), arena.problem.name(other))
        for one, other, _ in arena.problem.in_place
    ] == [("g", "h")]
    assert {size % 256 for *_, size in lifetimes(arena)} == {0}


def test_blocks_of_torch_live_from_allocation_to_the_end_of_the_last_use(tmp_path):
    path = tmp_path / "s.pickle"
    segment = {
        "device": 0,
        "address": 0x3000000,
        "total_size": MIB,
        "stream": 0,
        "blocks": [
            {"size": 512, "requested_size": 500, "state": "active_allocated"},
            {"size": 1024, "requested_size": 900, "state": "active_awaiting_free"},
            {"size": MIB - 1536, "state": "inactive"},
        ],
    }
    final = {"device": 0, "address": 0x2000000, "total_size": 2 * MIB, "stream": 0, "blocks": []}
    path.write_bytes(snapshot([*TORCH, event("free_completed", 0x3000800, 1024)], [segment, final]))
    main, other = read("torch-snapshot", path)
    assert (main.name, other.name) == ("device 0, stream 0", "device 0, stream 7")
    assert sorted(lifetimes(main)) == sorted(
        [
            ("block 1", 1, 3, MIB),
            ("block 2", 2, 6, MIB // 2),
            ("block 6", 6, 10, MIB + MIB // 2),
            ("block before 10", 0, 9, 1024),
            ("block at 0x3000000", 0, 10, 500),
            ("block at 0x3000200", 0, 10, 900),
        ]
    )
    # One MiB is there all the time, two segments of two come and one of them goes.
    assert main.taken == 5 * MIB
    assert lifetimes(other) == [("block 9", 9, 10, 100)]


def test_addresses_below_the_usual_alignment_lower_it():
    arena = arena_of(
        Path("x"), "a", [DumpedBuffer("p", 0, 1, 100, 0), DumpedBuffer("q", 0, 1, 100, 112)], 64
    )
    assert set(arena.problem.alignment.tolist()) == {16}
    assert compare(arena).violations == ()


def test_a_bound_for_a_larger_alignment_is_no_sign_of_memory_that_is_shared():
    both = [DumpedBuffer("p", 0, 1, 112, 0), DumpedBuffer("q", 0, 1, 100, 112)]
    arena = arena_of(Path("x"), "a", both, 16)
    assert compare(arena, alignment=8).verdict == "at the floor"
    compared = compare(arena, alignment=128)
    assert (arena.taken, compared.answer.lower_bound) == (212, 228)
    assert compared.verdict == "below the bound, which is for larger alignments"


def test_many_buffers_at_one_address_are_grouped_in_a_moment():
    """Comparing each with all groups before it took minutes."""
    apart = [DumpedBuffer(f"b{at}", 2 * at, 2 * at, 4, 0) for at in range(20000)]
    begun = time.process_time()
    arena = arena_of(Path("x"), "a", apart, 4, shared=True)
    assert time.process_time() - begun < 5
    assert arena.problem.aliases == ()


# Damage


class Harm:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def hostile():
    """Pickles that would run something, take all memory, or are of another shape."""
    return {
        "runs a command": pickle.dumps({"device_traces": [[Harm()]]}),
        "imports": b"cposix\nsystem\n.",
        "persistent": b"Pid\n.",
        "extension": b"\x82\x01.",
        "a memo of 2^32": b"\x80\x04Nr\xff\xff\xff\x7f0.",
        "bytes that are not there": b"\x80\x05\x8e" + (2**62).to_bytes(8, "little") + b".",
        "a byte array": b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".",
        "a list": pickle.dumps([1, 2]),
        "no list of traces": pickle.dumps({"device_traces": {0: []}}),
        "an event that is none": pickle.dumps({"device_traces": [[1]]}),
        "an address of text": snapshot([event("alloc", "0x10", 4)]),
        "a size of 2^63": snapshot([event("alloc", 16, 2**63)]),
        "a negative size": snapshot([event("alloc", 16, -5)]),
        "twice": snapshot([event("alloc", 16, 5), event("alloc", 16, 5)]),
        "a number of a million digits": pickle.dumps(
            {"device_traces": [[{**event("alloc", 16, 5), "size": 10**4000}]]}
        ),
        "nothing": snapshot([]),
        "segments of text": pickle.dumps(
            {"segments": "abc", "device_traces": [[event("alloc", 1, 1)]]}
        ),
    }


@pytest.mark.parametrize("what", hostile())
def test_pickles_are_read_without_running_anything(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.pickle"
    path.write_bytes(hostile()[what])
    with pytest.raises(AllocationError, match=r"s\.pickle") as refusal:
        read("torch-snapshot", path)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("planner", ALL)
@pytest.mark.parametrize(
    "content", [b"", b"\0", b"hello\nworld\n", b"\xff\xfe" * 9, b"[]", b"{}", b"[" * 100_000]
)
def test_files_of_something_else_are_refused(planner, content, tmp_path):
    path = dump_of(planner, tmp_path)
    path.write_bytes(content)
    with pytest.raises(AllocationError, match=re.escape(path.name)) as refusal:
        read(planner, path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("planner", ALL)
def test_files_that_are_not_there_are_refused(planner, tmp_path):
    path = dump_of(planner, tmp_path)
    path.unlink()
    with pytest.raises(AllocationError, match=re.escape(path.name)):
        read(planner, path)


@pytest.mark.parametrize(
    ("planner", "old", "new", "words"),
    [
        (
            "xla",
            "offset=0",
            "offset=" + "9" * 5000,
            r"assignment.txt:\d+: has the number 9{40}, which",
        ),
        *cases(r"""
            xla | size=4608 | size=9223372036854775808 | \
            assignment.txt:\d+: has the number 9223372036854775808, which is 2\^62
            xla | (size= | (sze= | assignment.txt:\d+: is no whole line
            vela | 0x6c00: | 0x8000000000000000: | vela.txt:\d+: has the number 0x8
            vela | Allocation Peak | Allocation | vela.txt:\d+: is no row
            vela | :       27648: | :       99999: | vela.txt:\d+: tensor 'image' has 99999 bytes
            tflm-log | (id=3) | (id=4) | log.txt:5: buffer 4 does not follow
            tflm-log | size=27648 | size=9223372036854775808 | \
            log.txt:\d+: has the number 9223372036854775808
            tflm-log | first_used=0 | frst=0 | log.txt:2: is no whole line
            iree | arith.constant 8192 : index | arith.constant 9223372036854775808 : index | \
            iree.txt:\d+: a slice of 9223372036854775808
            iree | = arith.constant 12096 : | = arith.constant 18446744073709551616 : | \
            iree.txt: branches\$async: buffer 'slice 3' .* at 18446744073709551616: the dump is
            iree | }) : index | }) : idx | \
            iree.txt:\d+: the stream.resource.pack that begins here has no end
            onnxruntime | "mem_requested_in_use_delta":" | \
            "mem_requested_in_use_delta":"9223372036854775808 | branches.json: event \d+: mem_
            onnxruntime | {"float":[ | {"float":[9223372036854775807, | \
            event \d+: a result has 2\^62 bytes
            onnxruntime | {"float":[ | {"tensor":[ | event \d+: a result is
        """),
    ],
)
def test_an_error_names_file_and_line(planner, old, new, words, tmp_path):
    path = dump_of(planner, tmp_path)
    text = path.read_text()
    if planner == "onnxruntime":
        text = text.replace('" : ', '":').replace(": ", ":")
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(AllocationError, match=words):
        read(planner, path)


def test_a_value_of_xla_without_a_live_range_and_a_missing_file_are_refused(tmp_path):
    path = xla_files(tmp_path, " value: <2 a @0> (size=256,offset=0): f32[64]\n", "    b{}:1-3\n")
    with pytest.raises(
        AllocationError,
        match=r"m-buffer-assignment.txt:5: value 'a\{\}' has no line in m-live-range.txt",
    ):
        read("xla", path)
    (tmp_path / "m-live-range.txt").unlink()
    with pytest.raises(AllocationError, match=r"m-live-range.txt: cannot be read"):
        read("xla", path)


def test_a_profile_of_one_run_and_one_of_another_model_are_refused(tmp_path):
    path = dump_of("onnxruntime", tmp_path)
    text = path.read_text()
    path.write_text(text.replace('"model_run"', '"model_walk"'))
    with pytest.raises(AllocationError, match="run the session twice"):
        read("onnxruntime", path)
    path.write_text(re.sub(r'"\w+_kernel_time"', '"other_kernel_time"', text))
    with pytest.raises(AllocationError, match=r"kernel 'other' is not as in branches\.onnx"):
        read("onnxruntime", path)
    (tmp_path / "branches.onnx").write_bytes(b"\xff" * 99)
    with pytest.raises(AllocationError, match="is no ONNX model"):
        read("onnxruntime", path)


def damaged(data, rng):
    """A copy that is cut off, or has a few bytes, numbers or lines changed."""
    kind = rng.randrange(4)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind == 1:
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 6)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if kind == 2:
        numbers = list(re.finditer(rb"\d+", data))
        chosen = rng.choice(numbers) if numbers else None
        value = rng.choice(
            [
                b"0",
                b"-1",
                b"1",
                b"4611686018427387904",
                b"9223372036854775807",
                b"18446744073709551616",
                b"9" * 5000,
            ]
        )
        return data if chosen is None else data[: chosen.start()] + value + data[chosen.end() :]
    lines = data.split(b"\n")
    lines.insert(rng.randrange(len(lines)), lines.pop(rng.randrange(len(lines))))
    return b"\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("planner", ALL)
def test_damaged_dumps_are_read_or_refused_in_one_line(planner, tmp_path):
    """What is read can be compared, and what is claimed of it has passed the checker."""
    path = dump_of(planner, tmp_path)
    data, refused = path.read_bytes(), 0
    for seed in range(150):
        path.write_bytes(damaged(data, random.Random(seed)))
        try:
            arenas, refusal = read(planner, path), None
        except AllocationError as error:
            arenas, refusal = [], str(error)
        for arena in arenas:
            assert compare(arena).answer.status in ("optimal", "feasible")
        if refusal is not None:
            refused += 1
            assert path.stem.split("-")[0] in refusal
            assert "\n" not in refusal
            assert len(refusal) < 600
    assert 10 < refused < 150
