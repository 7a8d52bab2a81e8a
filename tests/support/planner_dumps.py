"""Dumps of other planners: real ones of small programs, and pieces of which tests make others."""

import pickle

from tests.support.needs import FIXTURES

from loadmaster.integrations.tflite.arena import online_offsets
from loadmaster.integrations.tflite.lifetimes import lifetimes
from loadmaster.workloads.frontends.tflite.model import parse_model

PLANNERS = FIXTURES / "planners"
REAL = {
    "xla": PLANNERS / "step-buffer-assignment.txt",
    "iree": PLANNERS / "branches.iree.txt",
    "vela": PLANNERS / "wake-words.vela.txt",
    "onnxruntime": PLANNERS / "branches.json",
}


def tflm_log(model, scratch=()):
    """What a target prints of a model and lines of scratch buffers; addresses as TFLM's planner
    gives them."""
    tensors = lifetimes(parse_model(model.read_bytes())).tensors
    offsets = online_offsets(tensors)
    lines = [
        f"{number % 10} (id={number}): size={each.bytes}, offset={offset},"
        f" first_used={each.span[0]} last_used={each.span[1]}"
        for number, (each, offset) in enumerate(zip(tensors, offsets, strict=True))
    ]
    return "\n".join(["hello from the target", *lines, *scratch, " 0: 0000000.... (27k)", ""])


def event(action, addr, size, stream=0):
    """One event of a trace, in the form that `torch.cuda.memory._snapshot` documents."""
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": stream,
        "frames": [{"name": "f", "filename": "x.py", "line": 1}],
    }


def snapshot(trace, segments=()):
    """A snapshot of one device."""
    return pickle.dumps({"segments": list(segments), "device_traces": [list(trace)]})


MIB = 2**20
TORCH = [
    event("segment_alloc", 0x1000000, 2 * MIB),
    event("alloc", 0x1000000, MIB),
    event("alloc", 0x1100000, MIB // 2),
    event("free_requested", 0x1000000, MIB),
    event("free_completed", 0x1000000, MIB),
    event("segment_alloc", 0x2000000, 2 * MIB),
    event("alloc", 0x2000000, MIB + MIB // 2),
    event("free_completed", 0x1100000, MIB // 2),
    event("segment_free", 0x1000000, 2 * MIB),
    event("alloc", 0x8000000, 100, stream=7),
]
"""A block that does not fit into what was freed beside another that lives on; and one on another
stream."""


def dump_of(planner, folder):
    """A dump of each planner in a folder of its own, with whatever belongs beside it."""
    if planner == "tflm-log":
        path = folder / "log.txt"
        path.write_text(tflm_log(FIXTURES / "wake-words.tflite"))
    elif planner == "torch-snapshot":
        path = folder / "snapshot.pickle"
        path.write_bytes(snapshot(TORCH))
    else:
        for part in PLANNERS.glob(REAL[planner].name.split("-")[0].split(".")[0] + "*"):
            (folder / part.name).write_bytes(part.read_bytes())
        path = folder / REAL[planner].name
    return path
