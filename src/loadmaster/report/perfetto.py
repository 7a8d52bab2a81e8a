"""The plan as a Perfetto trace: a process for the machine, a track per core, one for copies,
counters for links and memories.

Perfetto counts in whole nanoseconds: times are rounded to the nearest one, which keeps their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Slice:
    """A job or a copy as a named interval, with details."""

    of: PlannedJob | PlannedTransfer
    name: str
    facts: dict[str, Any]


@dataclass
class Writer:
    """Appends to a trace, and numbers its tracks."""

    trace: Trace = field(default_factory=Trace)
    tracks: int = MACHINE

    def packet(self, **fields: Any) -> None:
        """Add a packet to the sequence; the first one resets the reader's state."""
        reset = None if self.trace.packet else TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self.trace.packet.add(trusted_packet_sequence_id=MACHINE, sequence_flags=reset, **fields)

    def machine(self, name: str) -> None:
        """Add the process above all tracks, which stay in the order in which they are written."""
        process = ProcessDescriptor(pid=MACHINE, process_name=name)
        order = TrackDescriptor.EXPLICIT
        track = TrackDescriptor(uuid=MACHINE, process=process, child_ordering=order)
        self.packet(track_descriptor=track)

    def track(self, name: str, **fields: Any) -> int:
        """Add a track to the machine, and return its number."""
        self.tracks += 1
        places = {"uuid": self.tracks, "parent_uuid": MACHINE, "sibling_order_rank": self.tracks}
        self.packet(track_descriptor=TrackDescriptor(name=name, **places, **fields))
        return self.tracks

    def slices(self, name: str, slices: Iterable[Slice]) -> None:
        """Add a track of slices; slices that would overlap get further tracks of the same name."""
        ordered = sorted(slices, key=lambda each: (each.of.start, each.of.end))
        spans = ((0, nanoseconds(each.of.start), nanoseconds(each.of.end)) for each in ordered)
        lines, count_of = first_free_lines(spans)
        for number in range(count_of.get(0, 1)):
            track = self.track(name if number == 0 else f"{name} ({number + 1})")
            for each, line in zip(ordered, lines, strict=True):
                if line == number:
                    self._slice(track, each)

    def counter(self, name: str, unit: str, steps: Steps) -> None:
        """Add a track with an amount over time."""
        track = self.track(name, counter=CounterDescriptor(unit_name=unit))
        for instant, value in zip(steps.times, steps.values, strict=True):
            kind = "counter_value" if isinstance(value, int) else "double_counter_value"
            self._event(track, instant, TrackEvent.TYPE_COUNTER, **{kind: value})

    def _slice(self, track: int, item: Slice) -> None:
        facts = [
            DebugAnnotation(name=name, **{_ANNOTATIONS[type(value)]: value})
            for name, value in item.facts.items()
        ]
        begin, end = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
        self._event(track, item.of.start, begin, name=item.name, debug_annotations=facts)
        self._event(track, item.of.end, end)

    def _event(self, track: int, seconds: float, kind: int, **fields: Any) -> None:
        event = TrackEvent(type=kind, track_uuid=track, **fields)
        self.packet(timestamp=nanoseconds(seconds), track_event=event)


def render_trace(plan: PlanRecord) -> bytes:
    """Render the bytes of a ``.pftrace`` file; the same plan gives the same bytes."""
    writer = Writer()
    writer.machine(printable(figures.title(plan)))
    for core in plan.target.cores:
        writer.slices(core.name, (job_slice(job) for job in plan.jobs if job.core == core.name))
    if moves := figures.copies(plan):
        writer.slices("copies", map(copy_slice, moves))
    for memory in plan.target.memories:
        rate = outline(
            (segment.start, segment.end, segment.bytes_per_second / 1e9)
            for segment in plan.links.get(memory.name, ())
        )
        writer.counter(f"{memory.name} link", "GB/s", rate)
    for memory in plan.target.memories:
        alive = figures.bytes_alive(figures.allocations_of(plan, memory.name))
        writer.counter(f"{memory.name} in use", "B", alive)
    return bytes(writer.trace.SerializeToString(deterministic=True))


def nanoseconds(seconds: float) -> int:
    """Round to the nearest whole nanosecond, which keeps the order of times."""
    return round(seconds * 1e9)


def job_slice(job: PlannedJob) -> Slice:
    """Make the slice of a job, with its most important details.

    Pieces of an operator have one name, because Perfetto colours slices by their names.
    """
    facts = {
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
    return Slice(job, family(job), facts)


def copy_slice(move: PlannedTransfer) -> Slice:
    """Make the slice of a copy between memories."""
    way = f"{move.source} to {move.destination}: {move.tensor}"
    facts = {
        "tensor": move.tensor,
        "from": move.source,
        "to": move.destination,
        "bytes": move.bytes,
    }
    return Slice(move, way, facts)
