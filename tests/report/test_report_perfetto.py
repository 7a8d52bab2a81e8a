"""The trace, read back with Perfetto's own messages."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from tests.support.drawn_plan import empty

from loadmaster.report.perfetto import render_trace


def read(plan):
    """Tracks by name, and the events of each track in the order of the file."""
    trace = Trace()
    trace.ParseFromString(render_trace(plan))
    tracks = {
        p.track_descriptor.name: p.track_descriptor.uuid
        for p in trace.packet
        if p.HasField("track_descriptor")
    }
    events: dict[int, list[tuple[int, TrackEvent]]] = defaultdict(list)
    for packet in trace.packet:
        if packet.HasField("track_event"):
            events[packet.track_event.track_uuid].append((packet.timestamp, packet.track_event))
    return tracks, events


def slices(events):
    """Begin, end and name of the slices of a track; fails unless they follow one another in
    time."""
    found: list[tuple[int, int, str]] = []
    for (start, begin), (end, finish) in zip(events[::2], events[1::2], strict=True):
        assert (begin.type, finish.type) == (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END)
        assert start <= end
        assert not found or found[-1][1] <= start
        found.append((start, end, begin.name))
    return found


def test_a_track_for_each_core_the_copies_and_each_counter(plan):
    tracks, _ = read(plan)
    memories = ["dram link", "scratchpad link", "dram in use", "scratchpad in use"]
    assert [name for name in tracks if name] == ["ws0", "ws1", "ws2", "lb", "copies", *memories]
    trace = Trace.FromString(render_trace(plan))
    assert (
        trace.packet[0].track_descriptor.process.process_name
        == "resnet50, mobilenet_v2 on edge-npu"
    )
    parents = {
        p.track_descriptor.parent_uuid for p in trace.packet[1:] if p.HasField("track_descriptor")
    }
    assert parents == {trace.packet[0].track_descriptor.uuid}
    assert {p.trusted_packet_sequence_id for p in trace.packet} == {1}


def test_every_job_is_a_slice_on_its_core(plan):
    tracks, events = read(plan)
    for core in plan.target.cores:
        expected = sorted(
            (round(j.start * 1e9), round(j.end * 1e9), j.name)
            for j in plan.jobs
            if j.core == core.name
        )
        assert slices(events[tracks[core.name]]) == expected


def test_jobs_carry_what_is_known_of_them(plan):
    tracks, events = read(plan)
    job = next(job for job in plan.jobs if job.core == "ws0")
    facts = {a.name: a for a in events[tracks["ws0"]][0][1].debug_annotations}
    assert facts["network"].string_value == job.network
    assert facts["operators"].string_value == ", ".join(job.operators)
    assert facts["macs"].int_value == job.macs
    assert facts["compute_ns"].double_value == pytest.approx(job.compute * 1e9)


def test_counters_follow_the_plan(plan):
    """The counter of bytes in use reaches the plan's own figure and ends at zero; that of the link
    never passes its limit."""
    tracks, events = read(plan)
    used = [event.double_counter_value for _, event in events[tracks["scratchpad in use"]]]
    assert max(used) == plan.metrics.memory["scratchpad"].lower_bound
    assert used[-1] == 0
    rates = [event.double_counter_value for _, event in events[tracks["dram link"]]]
    assert max(rates) == pytest.approx(2.0)
    assert rates[-1] == 0


@pytest.mark.parametrize("factor", [1.0, 1e-3, 1e-5])
def test_slices_do_not_overlap_after_rounding(plan, factor):
    """Jobs far shorter than a nanosecond are still in order, and none is dropped."""
    jobs = tuple(replace(j, start=j.start * factor, end=j.end * factor) for j in plan.jobs)
    tracks, events = read(replace(plan, jobs=jobs))
    assert sum(len(slices(events[tracks[core.name]])) for core in plan.target.cores) == len(jobs)


def test_copies_at_the_same_time_get_tracks_of_their_own(plan):
    """Slices that overlap without nesting would be drawn wrongly on one track."""
    copies = [replace(t, start=0.0, end=1e-6) for t in plan.transfers if not t.job][:2]
    tracks, events = read(replace(plan, transfers=tuple(copies)))
    assert [name for name in tracks if name.startswith("copies")] == ["copies", "copies (2)"]
    assert [len(slices(events[tracks[name]])) for name in ("copies", "copies (2)")] == [1, 1]


def test_same_plan_same_bytes_and_empty_plans_have_a_trace(plan):
    assert render_trace(plan) == render_trace(plan)
    tracks, events = read(empty(plan))
    assert "ws0" in tracks
    assert not events
