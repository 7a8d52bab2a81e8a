"""The trace, read back as viewers read it."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace

import pytest
from tests.support.drawn_plan import empty

from loadmaster.report.trace import render_trace


def read(plan):
    """The name of the process, tracks by name, and the events of each track and counter in the
    order of the file."""
    events = json.loads(gzip.decompress(render_trace(plan)))["traceEvents"]
    names = {
        kind: {e["args"]["name"]: e["tid"] for e in events if e["name"] == f"{kind}_name"}
        for kind in ("process", "thread")
    }
    found = defaultdict(list)
    for event in events:
        if event["ph"] != "M":
            found[event["tid"] or event["name"]].append(event)
    return names["process"], names["thread"], found


def slices(events):
    """Begin, end and name of the slices of a track in nanoseconds; fails unless they follow one
    another in time."""
    found = []
    for event in events:
        start, length = round(event["ts"] * 1e3), round(event["dur"] * 1e3)
        assert event["ph"] == "X"
        assert length >= 0
        assert not found or found[-1][1] <= start
        found.append((start, start + length, event["name"]))
    return found


def test_a_track_for_each_core_the_copies_and_each_counter(plan):
    process, tracks, events = read(plan)
    assert list(process) == ["resnet50, mobilenet_v2 on edge-npu"]
    assert list(tracks) == ["ws0", "ws1", "ws2", "lb", "copies"]
    assert sorted(tracks.values()) == list(tracks.values())
    counters = [name for name in events if isinstance(name, str)]
    assert counters == ["dram link", "dram in use", "scratchpad link", "scratchpad in use"]


def test_every_job_is_a_slice_on_its_core(plan):
    _, tracks, events = read(plan)
    for core in plan.target.cores:
        expected = sorted(
            (round(j.start * 1e9), round(j.end * 1e9), j.name)
            for j in plan.jobs
            if j.core == core.name
        )
        assert slices(events[tracks[core.name]]) == expected


def test_jobs_carry_what_is_known_of_them(plan):
    _, tracks, events = read(plan)
    job = next(job for job in plan.jobs if job.core == "ws0")
    facts = events[tracks["ws0"]][0]["args"]
    assert facts["network"] == job.network
    assert facts["operators"] == ", ".join(job.operators)
    assert facts["macs"] == job.macs
    assert facts["compute_ns"] == pytest.approx(job.compute * 1e9)


def test_counters_follow_the_plan(plan):
    """The counter of bytes in use reaches the plan's own figure and ends at zero; that of the link
    never passes its limit."""
    _, _, events = read(plan)
    used = [event["args"]["B"] for event in events["scratchpad in use"]]
    assert max(used) == plan.metrics.memory["scratchpad"].lower_bound
    assert used[-1] == 0
    rates = [event["args"]["GB/s"] for event in events["dram link"]]
    assert max(rates) == pytest.approx(2.0)
    assert rates[-1] == 0


@pytest.mark.parametrize("factor", [1e-3, 1e-5])
def test_slices_do_not_overlap_after_rounding(plan, factor):
    """Jobs far shorter than a nanosecond are still in order, and none is dropped."""
    jobs = tuple(replace(j, start=j.start * factor, end=j.end * factor) for j in plan.jobs)
    _, tracks, events = read(replace(plan, jobs=jobs))
    assert sum(len(slices(events[tracks[core.name]])) for core in plan.target.cores) == len(jobs)


def test_copies_at_the_same_time_get_tracks_of_their_own(plan):
    """Slices that overlap without nesting would be drawn wrongly on one track."""
    copies = [replace(t, start=0.0, end=1e-6) for t in plan.transfers if not t.job][:2]
    _, tracks, events = read(replace(plan, transfers=tuple(copies)))
    assert [name for name in tracks if name.startswith("copies")] == ["copies", "copies (2)"]
    assert [len(slices(events[tracks[name]])) for name in ("copies", "copies (2)")] == [1, 1]


def test_empty_plans_have_a_trace(plan):
    _, tracks, events = read(empty(plan))
    assert "ws0" in tracks
    assert not events
