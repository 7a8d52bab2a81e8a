"""The plan in the Trace Event Format, which Perfetto and other viewers open: a track for each core,
one for copies, and counters for links and memories.

Times are microseconds, rounded to whole nanoseconds, which keeps their order.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from loadmaster.planning.plan_records import PlannedJob, PlanRecord
from loadmaster.report import figures
from loadmaster.report.cuts import family, piece
from loadmaster.report.text import printable
from loadmaster.report.timeline import Steps, first_free_lines, outline

Event = dict[str, Any]
Slice = tuple[float, float, str, dict[str, Any]]
"""A job or a copy: start and end in seconds, name, and details."""


def render_trace(plan: PlanRecord) -> bytes:
    """Return the contents of a ``.json.gz`` file; equal plans give equal bytes."""
    numbers = count(1)
    events = [_metadata("process_name", 0, name=printable(figures.title(plan)))]
    for core in plan.target.cores:
        jobs = (job for job in plan.jobs if job.core == core.name)
        slices = [(j.start, j.end, family(j), _job_facts(j)) for j in jobs]
        events += _slices(core.name, slices, numbers)
    copies = [
        (
            m.start,
            m.end,
            f"{m.source} to {m.destination}: {m.tensor}",
            {"tensor": m.tensor, "from": m.source, "to": m.destination, "bytes": m.bytes},
        )
        for m in figures.copies(plan)
    ]
    if copies:
        events += _slices("copies", copies, numbers)
    for memory in plan.target.memories:
        segments = plan.links.get(memory.name, ())
        rates = [(s.start, s.end, s.bytes_per_second / 1e9) for s in segments]
        events += _counter(f"{memory.name} link", "GB/s", rates)
        alive = figures.bytes_alive(figures.allocations_of(plan, memory.name))
        events += _counter(f"{memory.name} in use", "B", alive)
    return gzip.compress(json.dumps({"traceEvents": events}).encode(), 6, mtime=0)


def _metadata(what: str, track: int, **args: Any) -> Event:
    """Return an event that describes the process or a track (a thread in the format)."""
    return _event("M", what, 0, track, args=args)


def _event(kind: str, name: str, nanoseconds: int, track: int = 0, **more: Any) -> Event:
    """Return an event of the trace format; its time is in microseconds."""
    return {"ph": kind, "name": name, "pid": 1, "tid": track, "ts": nanoseconds / 1e3, **more}


def _slices(name: str, slices: Iterable[Slice], numbers: Iterator[int]) -> Iterator[Event]:
    """Yield the events of a track of slices; overlapping slices go to further tracks of the same
    name. ``numbers`` are those of tracks, by which viewers sort them."""
    ordered = sorted(slices, key=lambda each: each[:2])
    spans = [(_nanoseconds(start), _nanoseconds(end)) for start, end, *_ in ordered]
    lines, count_of = first_free_lines(spans)
    tracks = [next(numbers) for _ in range(count_of)]
    for line, track in enumerate(tracks):
        yield _metadata("thread_name", track, name=f"{name} ({line + 1})" if line else name)
        yield _metadata("thread_sort_index", track, sort_index=track)
    for (_, _, title, details), (start, end), line in zip(ordered, spans, lines, strict=True):
        yield _event("X", title, start, tracks[line], dur=(end - start) / 1e3, args=details)


def _counter(name: str, unit: str, steps: Steps) -> Iterator[Event]:
    """Yield the events of a counter of an amount over time."""
    for instant, value in outline(steps):
        yield _event("C", name, _nanoseconds(instant), args={unit: value})


def _nanoseconds(seconds: float) -> int:
    """Return seconds as whole nanoseconds."""
    return round(seconds * 1e9)


def _job_facts(job: PlannedJob) -> dict[str, Any]:
    """Return the details of a job in the trace."""
    # Viewers colour slices by name, which all pieces of an operator share, so set colours here.
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
