"""The plan as a Perfetto trace: a process for the machine, a track per core, one for copies,
counters for links and memories.

Perfetto counts in whole nanoseconds: times are rounded to the nearest one, which keeps their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

from loadmaster.planning.plan_records import PlannedJob, PlannedTransfer, PlanRecord
from loadmaster.report import figures
from loadmaster.report.cuts import family, piece
from loadmaster.report.text import printable
from loadmaster.report.timeline import Steps, outline

MACHINE = 1
"""Number of the machine's track, of its process and of the only packet sequence."""


@dataclass(frozen=True)
class Slice:
    """A named interval in nanoseconds, with details."""

    start: int
    end: int
    name: str
    facts: tuple[tuple[str, str | int | float], ...]


@dataclass
class Writer:
    """Appends to a trace, and numbers its tracks."""

    trace: Trace = field(default_factory=Trace)
    tracks: int = MACHINE

    def packet(self) -> TracePacket:
        """Add a packet to the sequence; the first one resets the reader's state."""
        first = not self.trace.packet
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = MACHINE
        if first:
            packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        return packet

    def machine(self, name: str) -> None:
        """Add the process above all tracks, which stay in the order in which they are written."""
        track = self.packet().track_descriptor
        track.uuid = MACHINE
        track.process.pid = MACHINE
        track.process.process_name = name
        track.child_ordering = TrackDescriptor.EXPLICIT

    def track(self, name: str) -> TrackDescriptor:
        """Add a track to the machine."""
        self.tracks += 1
        track = self.packet().track_descriptor
        track.uuid = self.tracks
        track.parent_uuid = MACHINE
        track.name = name
        track.sibling_order_rank = self.tracks
        return track

    def slices(self, name: str, slices: Iterable[Slice]) -> None:
        """Add a track of slices; slices that would overlap get further tracks of the same name."""
        for number, row in enumerate(rows(slices)):
            track = self.track(name if number == 0 else f"{name} ({number + 1})")
            for item in row:
                self._slice(track.uuid, item)

    def counter(self, name: str, unit: str, steps: Steps) -> None:
        """Add a track with an amount over time."""
        track = self.track(name)
        track.counter.unit_name = unit
        for instant, value in zip(steps.times, steps.values, strict=True):
            event = self._event(track.uuid, nanoseconds(instant), TrackEvent.TYPE_COUNTER)
            if isinstance(value, int):
                event.counter_value = value
            else:
                event.double_counter_value = value

    def _slice(self, track: int, item: Slice) -> None:
        event = self._event(track, item.start, TrackEvent.TYPE_SLICE_BEGIN)
        event.name = item.name
        for name, value in item.facts:
            fact = event.debug_annotations.add()
            fact.name = name
            if isinstance(value, str):
                fact.string_value = value
            elif isinstance(value, int):
                fact.int_value = value
            else:
                fact.double_value = value
        self._event(track, item.end, TrackEvent.TYPE_SLICE_END)

    def _event(self, track: int, instant: int, kind: TrackEvent.Type.ValueType) -> TrackEvent:
        packet = self.packet()
        packet.timestamp = instant
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        return event


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


def rows(slices: Iterable[Slice]) -> Iterator[Sequence[Slice]]:
    """Distribute the slices, by start, over the fewest rows without overlaps."""
    filled: list[list[Slice]] = []
    for item in sorted(slices, key=lambda s: (s.start, s.end)):
        row = next((row for row in filled if row[-1].end <= item.start), None)
        if row is None:
            filled.append([item])
        else:
            row.append(item)
    return iter(filled or [[]])


def job_slice(job: PlannedJob) -> Slice:
    """Make the slice of a job, with its most important details.

    Pieces of an operator have one name, because Perfetto colours slices by their names.
    """
    facts = (
        ("network", job.network),
        ("mini_batch", job.mini_batch),
        ("kind", job.kind),
        ("operators", ", ".join(job.operators)),
        *((("piece", piece(job)),) if job.tiles > 1 else ()),
        ("macs", job.macs),
        ("compute_ns", job.compute * 1e9),
        ("stall_ns", max(0.0, job.end - job.start - job.compute) * 1e9),
        ("read_bytes", sum(operand.bytes for operand in job.reads)),
        ("written_bytes", sum(operand.bytes for operand in job.writes)),
    )
    return Slice(nanoseconds(job.start), nanoseconds(job.end), family(job), facts)


def copy_slice(move: PlannedTransfer) -> Slice:
    """Make the slice of a copy between memories."""
    facts = (
        ("tensor", move.tensor),
        ("from", move.source),
        ("to", move.destination),
        ("bytes", move.bytes),
    )
    return Slice(
        nanoseconds(move.start),
        nanoseconds(move.end),
        f"{move.source} to {move.destination}: {move.tensor}",
        facts,
    )
