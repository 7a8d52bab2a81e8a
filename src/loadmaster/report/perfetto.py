"""The plan as a Perfetto trace: a process for the machine, a track per core, one for copies,
counters for links and memories.

Perfetto counts in whole nanoseconds: times are rounded to the nearest one, which keeps their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    CounterDescriptor,
    DebugAnnotation,
    ProcessDescriptor,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

from loadmaster.planning.plan_records import PlannedJob, PlannedTransfer, PlanRecord
from loadmaster.report import figures
from loadmaster.report.cuts import family, piece
from loadmaster.report.text import printable
from loadmaster.report.timeline import Steps, first_free_lines, outline

MACHINE = 1
"""Number of the machine's track, of its process and of the only packet sequence."""
_ANNOTATIONS = {str: "string_value", int: "int_value", float: "double_value"}
"""The field of an annotation that holds a value, by type."""

Slice = tuple[float, float, str, dict[str, Any]]
"""Start and end in seconds, name and details of a job or a copy."""


def render_trace(plan: PlanRecord) -> bytes:
    """Render the bytes of a ``.pftrace`` file; the same plan gives the same bytes."""
    trace = Trace()
    process = ProcessDescriptor(pid=MACHINE, process_name=printable(figures.title(plan)))
    # Tracks stay in the order in which they are written.
    machine = TrackDescriptor(
        uuid=MACHINE, process=process, child_ordering=TrackDescriptor.EXPLICIT
    )
    _packet(trace, track_descriptor=machine)
    for core in plan.target.cores:
        jobs = (job for job in plan.jobs if job.core == core.name)
        _slices(trace, core.name, [(j.start, j.end, family(j), _job_facts(j)) for j in jobs])
    copies = [
        (m.start, m.end, f"{m.source} to {m.destination}: {m.tensor}", _copy_facts(m))
        for m in figures.copies(plan)
    ]
    if copies:
        _slices(trace, "copies", copies)
    for memory in plan.target.memories:
        segments = plan.links.get(memory.name, ())
        rates = [(s.start, s.end, s.bytes_per_second / 1e9) for s in segments]
        _counter(trace, f"{memory.name} link", "GB/s", rates)
    for memory in plan.target.memories:
        alive = figures.bytes_alive(figures.allocations_of(plan, memory.name))
        _counter(trace, f"{memory.name} in use", "B", alive)
    return bytes(trace.SerializeToString(deterministic=True))


def _packet(trace: Trace, **fields: Any) -> None:
    """Add a packet to the sequence; the first one resets the reader's state."""
    reset = None if trace.packet else TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    trace.packet.add(trusted_packet_sequence_id=MACHINE, sequence_flags=reset, **fields)


def _track(trace: Trace, name: str, **fields: Any) -> int:
    """Add a track to the machine, and return its number, which is that of its packet."""
    number = len(trace.packet) + 1
    places = {"uuid": number, "parent_uuid": MACHINE, "sibling_order_rank": number}
    _packet(trace, track_descriptor=TrackDescriptor(name=name, **places, **fields))
    return number


def _slices(trace: Trace, name: str, slices: Iterable[Slice]) -> None:
    """Add a track of slices; those that would overlap get further tracks of the same name."""
    ordered = sorted(slices, key=lambda each: each[:2])
    spans = ((0, _nanoseconds(start), _nanoseconds(end)) for start, end, *_ in ordered)
    lines, count_of = first_free_lines(spans)
    for number in range(count_of.get(0, 1)):
        track = _track(trace, name if number == 0 else f"{name} ({number + 1})")
        for (start, end, title, details), line in zip(ordered, lines, strict=True):
            if line == number:
                facts = [
                    DebugAnnotation(name=fact, **{_ANNOTATIONS[type(value)]: value})
                    for fact, value in details.items()
                ]
                begin = TrackEvent.TYPE_SLICE_BEGIN
                _event(trace, track, start, begin, name=title, debug_annotations=facts)
                _event(trace, track, end, TrackEvent.TYPE_SLICE_END)


def _counter(trace: Trace, name: str, unit: str, steps: Steps) -> None:
    """Add a track with an amount over time."""
    track = _track(trace, name, counter=CounterDescriptor(unit_name=unit))
    for instant, value in outline(steps):
        _event(trace, track, instant, TrackEvent.TYPE_COUNTER, double_counter_value=value)


def _event(trace: Trace, track: int, seconds: float, kind: int, **fields: Any) -> None:
    event = TrackEvent(type=kind, track_uuid=track, **fields)
    _packet(trace, timestamp=_nanoseconds(seconds), track_event=event)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _job_facts(job: PlannedJob) -> dict[str, Any]:
    # Perfetto colours slices by their names: pieces of an operator have one, and differ here.
    return {
        "network": job.network,
        "mini_batch": job.mini_batch,
        "kind": job.kind,
        "operators": ", ".join(job.operators),
        **({"piece": piece(job)} if job.tiles > 1 else {}),
        "macs": job.macs,
        "compute_ns": job.compute * 1e9,
        "stall_ns": max(0.0, job.end - job.start - job.compute) * 1e9,
        "read_bytes": sum(operand.bytes for operand in job.reads),
        "written_bytes": sum(operand.bytes for operand in job.writes),
    }


def _copy_facts(move: PlannedTransfer) -> dict[str, Any]:
    return {
        "tensor": move.tensor,
        "from": move.source,
        "to": move.destination,
        "bytes": move.bytes,
    }
