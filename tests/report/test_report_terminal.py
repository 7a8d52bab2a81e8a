"""The summary in the terminal: compact, plain in a log file, and deaf to markup in names."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.measure import Measurement
from tests.support.drawn_plan import empty, rename

from loadmaster.core.units import format_seconds
from loadmaster.report.plan import plan_page
from loadmaster.report.terminal import printed as shown
from loadmaster.report.text import percent


def printed(plan, width=80, **options):
    """What the summary looks like in a log file."""
    out = io.StringIO()
    parts = plan_page(plan, spent=(1.5, 2.25))
    Console(file=out, width=width, **options).print(shown(parts))
    return out.getvalue()


def test_says_it_all_on_one_screen(plan):
    text, makespan = printed(plan), plan.metrics.makespan
    assert len(text.splitlines()) <= 40
    for said in (
        "edge-npu",
        "3 weight-stationary",
        "resnet50",
        "Makespan",
        format_seconds(makespan.value),
        f"{percent(makespan.value / makespan.lower_bound - 1)} above",
        "Traffic dram",
        "scratchpad",
    ):
        assert said in text
    assert f"{len(plan.jobs)} jobs, seed 7, {plan.producer}." in text
    assert "Planned in 1.50 s (2.25 s of processor time)." in text
    assert "the search stopped at its time limit" in text
    assert "estimates of an analytical model" in text


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_too_wide_and_no_figure_is_cut(plan, width):
    text = printed(plan, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_long_names_do_not_break_the_columns(plan):
    """Both ends of a name stay, because generated names differ at the end."""
    text = printed(rename(plan, "a" * 70 + "_head", "t"))
    row = next(line for line in text.splitlines() if line.startswith("aaaa"))
    assert "..." in row
    assert "_head" in row
    assert "int8" in row


def test_a_long_word_of_a_note_does_not_widen_all_lines(plan):
    noted = replace(plan, notes=("n" * 300 + "_head",))
    console, made = Console(), shown(plan_page(noted))
    assert Measurement.get(console, console.options.update(width=1000), made).minimum <= 100
    assert "n_head" in printed(noted)


def test_plain_text_without_a_terminal(plan):
    """No colour codes, and nothing that an ASCII log cannot hold."""
    text = printed(plan)
    assert "\x1b" not in text
    assert text.isascii()


def test_markup_and_control_codes_in_names_are_text(plan):
    text = printed(rename(plan, "net[red]x[/nope]\x1b[31m", "t"), force_terminal=True)
    assert "net[red]x[/nope]" in text
    assert "\x1b[31m" not in text
    noted = printed(replace(plan, notes=("tensor [0] of [/bold] \x1b]0;title\x07",)))
    assert "tensor [0] of [/bold]" in noted
    assert "\x1b" not in noted


def test_only_the_largest_kinds_are_listed(plan):
    jobs = tuple(replace(job, kind=f"Kind{i % 12}") for i, job in enumerate(plan.jobs))
    text = printed(replace(plan, jobs=jobs))
    assert "4 more" in text
    assert sum(line.count("Kind") for line in text.splitlines()) == 8


def test_empty_plans_have_a_summary(plan):
    assert "no bound" in printed(empty(plan))
