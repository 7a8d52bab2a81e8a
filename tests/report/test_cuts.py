"""What a report says of operators in pieces: how each is cut and why, which are stacks, and one
colour and name for the pieces of one."""

import gzip
import json
import re
from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest
from tests.support.cut_networks import convolutions, cut_plan
from tests.support.efforts import verified
from tests.support.networks import npu
from tests.support.report_pages import columns, section
from tests.support.summed_networks import summed_plan

from loadmaster.report.cuts import cuts_of, family, piece
from loadmaster.report.page import render
from loadmaster.report.plan import plan_page
from loadmaster.report.trace import render_trace


@cache
def banded():
    """Six convolutions on one core whose scratchpad is smaller than one of their results."""
    graph = convolutions(rows=32, channels=16, strides=(1,) * 6, skip=False)
    return verified([graph], npu(1, 16_000, bandwidth=1e8))


def test_whole_operators_are_not_listed(plan):
    whole = replace(plan, jobs=tuple(replace(job, tiles=1, tile=0) for job in plan.jobs))
    cuts = cuts_of(whole)
    assert (cuts.operators, cuts.stacks, cuts.summary(), cuts.to_json()) == ((), (), "", [])
    assert "Cut operators" not in render(plan_page(whole))


def test_every_operator_in_pieces_is_listed_once_with_its_pieces():
    plan = cut_plan(2)
    cuts = cuts_of(plan)
    first = [job for job in plan.jobs if job.tiles > 1 and job.mini_batch == 0]
    assert sorted(job.name for operator in cuts.operators for job in operator.jobs) == sorted(
        job.name for job in first
    )
    for operator, row in zip(cuts.operators, cuts.to_json(), strict=True):
        assert row["pieces"] == operator.jobs[0].tiles == len(operator.jobs)
        assert row["cores"] == len({job.core for job in operator.jobs})
        spans = [(job.start, job.end) for job in operator.jobs]
        assert row["at_once"] == max(
            sum(start <= t < end for start, end in spans) for t, _ in spans
        )
        assert row["bytes"] == sum(
            t.bytes for t in plan.tensors if t.producer in {job.name for job in operator.jobs}
        )
        assert row["most_alive"] <= row["bytes"]


def test_sums_in_parts_are_told_of_their_operator_and_of_each_piece():
    plan = summed_plan()
    rows = {row["operator"]: row for row in cuts_of(plan).to_json()}
    for job in plan.jobs:
        assert (", terms " in piece(job)) == bool(job.summed)
        if job.summed:
            row = rows[job.operators[0]]
            (terms,) = (each for each in row["along"] if each["dimension"] == "terms of the sum")
            assert terms["least"] <= job.summed[1] - job.summed[0] <= terms["most"]
            assert "each piece adds to up to" in row["why"]
            written = {
                operand.tensor
                for other in plan.jobs
                if other.operators == job.operators
                for operand in other.writes
            }
            results = [t for t in plan.tensors if t.name in written and not t.summed]
            assert row["bytes"] == sum(t.bytes for t in results)
    assert {
        row["operator"]
        for row in rows.values()
        if len(row["along"]) and row["along"][-1]["dimension"] == "terms of the sum"
    } == {job.operators[0] for job in plan.jobs if job.summed}


def test_pieces_say_along_which_dimension_and_how_large_they_are():
    plan = cut_plan(1)
    for operator in cuts_of(plan).operators:
        for axis, name in enumerate(("batch", "channels", "rows", "columns")):
            sizes = {
                job.ranges[axis][1] - job.ranges[axis][0] for job in operator.jobs if job.ranges
            }
            stated = [(each.least, each.most) for each in operator.along if each.dimension == name]
            assert stated in ([], [(min(sizes, default=0), max(sizes, default=0))])
        assert operator.along or not operator.jobs[0].ranges


@pytest.mark.slow
def test_a_stack_is_what_runs_band_by_band():
    cuts = cuts_of(banded())
    assert cuts.stacks, "else this test proves nothing"
    for number, stack in enumerate(cuts.stacks):
        assert max(len(operator.jobs) for operator in stack) > 1
        assert stack == tuple(operator for operator in cuts.operators if operator.stack == number)
        for operator in stack[1:]:
            earlier = [
                o
                for o in stack
                if o is not operator
                and min(j.start for j in o.jobs) <= min(j.start for j in operator.jobs)
            ]
            assert any(
                min(j.start for j in operator.jobs) < max(j.start for j in o.jobs) for o in earlier
            )
    inner = [operator for stack in cuts.stacks for operator in stack[:-1]]
    assert any(operator.most_alive < operator.bytes for operator in inner)
    assert all("through memory" in cuts.why(operator) for operator in inner)


def test_the_page_has_a_row_for_every_operator_and_a_chart_for_a_stack():
    page = render(plan_page(banded()))
    cuts = cuts_of(banded())
    listed = section(page, "Cut operators")
    assert listed.count("<tr>") == len(cuts.operators) + 1
    assert listed.count("class=chart") == min(3, len(cuts.stacks))
    assert cuts.summary() in page


def test_pieces_of_one_operator_have_one_name_and_one_colour():
    plan = cut_plan(3)
    trace = json.loads(gzip.decompress(render_trace(plan)))
    names = {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert {family(job) for job in plan.jobs} <= names
    assert not [name for name in names if re.search(r"\[\d+/\d+\]$", name)]
    colours = defaultdict(set)
    for shapes in columns(render(plan_page(plan))):
        pairs = zip(shapes.get("operators", []), shapes.get("colour", []), strict=False)
        for operators, colour in pairs:
            colours[operators].add(colour)
    assert len(colours) > 1
    assert all(len(used) == 1 for used in colours.values())
    cut = {", ".join(operator.jobs[0].operators) for operator in cuts_of(plan).operators}
    assert len({next(iter(colours[name])) for name in cut & colours.keys()}) > 1, (
        "neighbours differ"
    )
