"""The tables of the page as plain markup, which can be read, searched and copied without a
script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadmaster.core.units import (
    format_bytes,
    format_count,
    format_joules,
    format_rate,
    format_seconds,
    rate_unit,
)
from loadmaster.planning.plan_records import PlannedAllocation, PlanRecord
from loadmaster.report import figures
from loadmaster.report.colours import network_colours
from loadmaster.report.core_time import core_time
from loadmaster.report.cuts import Cuts
from loadmaster.report.text import NOTHING, Html, comma, excess, percent, plural, shortfall, to_html
from loadmaster.report.timeline import TimeUnit, alive_at, bytes_alive
from loadmaster.targets.hardware import Memory

PEAK_ROWS = 30
CUT_ROWS = 200
LONGEST_ROWS = 20


def table(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Make a table; columns whose name starts with ``>`` hold figures and are aligned right.
    ``name`` is for who does not see it."""
    classes = [' class="figure"' if column.startswith(">") else "" for column in columns]
    heads = "".join(
        f"<th{c} scope=col>{to_html(column.removeprefix('>'))}</th>"
        for c, column in zip(classes, columns, strict=True)
    )
    lines = "".join(
        f"<tr>{''.join(f'<td{c}>{to_html(cell)}</td>' for c, cell in zip(classes, row, strict=True))}</tr>\n"
        for row in rows
    )
    opening = f'<div class="wide" role=region tabindex=0 aria-label="{to_html(name)}">'
    return Html(
        f"{opening}<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}</tbody></table></div>"
    )


def card(name: str, value: str, detail: str) -> Html:
    """Make a card of one headline figure."""
    return Html(
        f"<div class=card><h3>{to_html(name)}</h3><p"
        f" class=value>{to_html(value)}</p><p>{to_html(detail)}</p></div>"
    )


def headline(plan: PlanRecord) -> Html:
    """Make the headline figures: makespan, objective, throughput, inferences per second, energy,
    and the status."""
    m = plan.metrics
    unit = rate_unit(network.precision for network in plan.networks)
    span, rate, inferences = m.makespan, m.throughput, m.inferences_per_second
    cards = (
        card(
            "Makespan",
            format_seconds(span.value),
            f"lower bound {format_seconds(span.lower_bound)}, {excess(span)}",
        ),
        *(
            card(name, value, f"lower bound {bound}, {distance}")
            for name, value, bound, distance in figures.special_costs(plan)
        ),
        card(
            "Throughput",
            format_rate(rate.value, unit),
            f"upper bound {format_rate(rate.upper_bound, unit)}, {shortfall(rate)}",
        ),
        card(
            "Inferences per second",
            format_count(inferences.value),
            f"upper bound {format_count(inferences.upper_bound)}, {shortfall(inferences)}",
        ),
        card(
            "Energy",
            format_joules(m.energy.value),
            f"lower bound {format_joules(m.energy.lower_bound)}, {excess(m.energy)}",
        ),
        card(
            "Status",
            plan.status,
            f"seed {plan.seed}, {plural(len(plan.jobs), 'job')}, {plan.producer}",
        ),
    )
    return Html(f"<div class=cards>{''.join(cards)}</div>")


def notes(plan: PlanRecord) -> Html:
    """List the planner's notes on the plan."""
    lines = plan.notes
    return Html(
        f"<ul class=notes>{''.join(f'<li>{to_html(line)}</li>' for line in lines)}</ul>"
        if lines
        else ""
    )


def networks(plan: PlanRecord) -> Html:
    """Make a table of the networks, with their colours in the charts."""
    colours = network_colours(plan)
    rows = (
        (
            Html(f'<i class=swatch style="background:{colours[n.name]}"></i>{to_html(n.name)}'),
            n.source,
            f"{len(n.operators):,}",
            format_count(n.macs),
            n.precision,
            n.batch,
            n.mini_batches,
            comma(sorted(set(n.unknown))),
        )
        for n in plan.networks
    )
    columns = (
        "Network",
        "Source",
        ">Operators",
        ">MACs",
        "Precision",
        ">Batch",
        ">Mini-batches",
        "Unknown operators",
    )
    remarks = "".join(
        f"<li>{to_html(n.name)}: {to_html(note)}</li>" for n in plan.networks for note in n.notes
    )
    return Html(
        table("Networks", columns, rows) + (f"<ul class=notes>{remarks}</ul>" if remarks else "")
    )


def memories(plan: PlanRecord) -> Html:
    """Make a table of traffic and peak of each shared memory against their bounds."""

    def row(memory: Memory) -> tuple[object, ...]:
        traffic = plan.metrics.traffic.get(memory.name)
        use = figures.memory_use(plan, memory.name, memory.capacity)
        moved = (
            (format_bytes(traffic.value), format_bytes(traffic.lower_bound), excess(traffic))
            if traffic
            else (NOTHING,) * 3
        )
        space = (format_bytes(use.peak), format_bytes(use.lower_bound), format_bytes(use.capacity))
        return (
            memory.name,
            figures.link_text(memory),
            *moved,
            *space,
            meter(use.peak / use.capacity if use.capacity else 0.0),
        )

    columns = (
        "Memory",
        "Link",
        ">Traffic",
        ">Compulsory",
        ">Distance",
        ">Peak",
        ">Lower bound",
        ">Capacity",
        "Peak of capacity",
    )
    return table("Memories", columns, map(row, plan.target.memories))


def meter(share: float) -> Html:
    """Show a share as a small bar and as text."""
    width = 100 * min(1.0, max(0.0, share))
    return Html(
        f'<span class=meter><i style="width:{width:.1f}%"></i></span><span'
        f" class=share>{to_html(percent(share))}</span>"
    )


def cores(plan: PlanRecord) -> Html:
    """Make a table of each core's activity over the makespan: jobs, busy time, utilisation."""
    rows = (
        (
            r.core.name,
            r.core.style,
            f"{r.core.rows} x {r.core.columns}",
            f"{r.jobs:,}",
            meter(r.busy),
            meter(r.compute.value),
            percent(r.compute.upper_bound),
        )
        for r in figures.core_figures(plan)
    )
    return table(
        "Cores",
        ("Core", "Dataflow", "Array", ">Jobs", "Busy", "Computing", ">Computing at most"),
        rows,
    )


def limits(plan: PlanRecord) -> Html:
    """Make a table of what cores do and wait for, and one of the operators that take longest."""
    rows = ((name, meter(share)) for name, share in core_time(plan).rows())
    operators = figures.time_by_operator(plan)
    longest = (
        (row.name, row.jobs, format_seconds(row.seconds), meter(row.share), meter(row.of_peak))
        for row in operators[:LONGEST_ROWS]
    )
    columns = ("Operator", ">Jobs", ">Time", "Of the cores' busy time", "Of the arrays' peak")
    return Html(
        table("Time of all cores", ("Time of all cores", "Share"), rows)
        + table("Operators that take longest", columns, longest)
    )


def buffers(plan: PlanRecord) -> Html:
    """Make a table of the peak use of each private buffer."""
    rows = (
        (
            r.core.name,
            format_bytes(r.core.buffer),
            format_bytes(r.use.peak),
            meter(r.use.peak / r.core.buffer),
            meter(r.mean / r.core.buffer),
            r.fullest or NOTHING,
        )
        for r in figures.buffer_figures(plan)
    )
    return table(
        "Private buffers",
        ("Core", ">Buffer", ">Peak", "Peak of buffer", "Mean over the makespan", "Fullest during"),
        rows,
    )


def peak(plan: PlanRecord, memory: Memory, unit: TimeUnit) -> Html:
    """Make a table of the buffers that are live at a memory's peak."""
    mine = figures.allocations_of(plan, memory.name)
    alive = bytes_alive(mine)
    instant = alive.peak_instant()
    live = alive_at(mine, instant)
    if not live:
        return Html(f"<p>Nothing is ever kept in {to_html(memory.name)}.</p>")
    rest = live[PEAK_ROWS:]
    held = (
        f"At {unit.text(instant)}, {plural(len(live), 'buffer')} hold"
        f" {format_bytes(sum(a.bytes for a in live))} of {memory.name}."
    )
    more = (
        f"{plural(len(rest), 'smaller buffer')} with {format_bytes(sum(a.bytes for a in rest))} in"
        " all are not listed."
        if rest
        else ""
    )
    below = f"<p class=hint>{to_html(more)}</p>" if more else ""
    return Html(f"<p>{to_html(held)}</p>{_buffer_rows(plan, live[:PEAK_ROWS], unit)}{below}")


def _buffer_rows(plan: PlanRecord, live: Sequence[PlannedAllocation], unit: TimeUnit) -> Html:
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    rows = (
        (
            a.tensor,
            t.network,
            t.kind,
            format_bytes(a.bytes),
            f"{a.offset:,}",
            unit.span(a.start, a.end),
            t.producer or "there from the start",
        )
        for a in live
        for t in [tensors[a.tensor]]
    )
    return table(
        "Buffers at the peak",
        ("Tensor", "Network", "Kind", ">Size", ">Address", ">Lifetime", "Producer"),
        rows,
    )


def traffic(plan: PlanRecord) -> Html:
    """Make a table of bytes moved from each place (rows) to each other (columns), darker with more
    bytes."""
    moved = figures.traffic_matrix(plan)
    senders = [p for p in figures.places(plan) if any(source == p for source, _ in moved)]
    receivers = [
        p for p in figures.places(plan) if any(destination == p for _, destination in moved)
    ]
    most = max(moved.values(), default=1) or 1
    rows = [
        (
            source,
            *(_shaded(moved.get((source, to), 0), most) for to in receivers),
            format_bytes(sum(moved.get((source, to), 0) for to in receivers)),
        )
        for source in senders
    ]
    totals = [
        format_bytes(sum(moved.get((source, to), 0) for source in senders)) for to in receivers
    ]
    total = format_bytes(sum(moved.values()))
    return table(
        "Traffic",
        ("From \\ to", *(f">{name}" for name in receivers), ">Total"),
        [*rows, ("Total", *totals, total)],
    )


def energy(plan: PlanRecord) -> Html:
    """Make a table of energy: of each memory for bytes over its link, of each core for its jobs and
    bytes through its buffer."""
    metrics = plan.metrics
    inside = dict.fromkeys(metrics.energy_by, 0.0)
    for job in plan.jobs:
        inside[job.core] += job.energy
    total = metrics.energy.value or 1.0
    rows: list[tuple[object, ...]] = [
        (
            place,
            format_joules(inside[place]),
            format_joules(taken - inside[place]),
            format_joules(taken),
            meter(taken / total),
        )
        for place, taken in metrics.energy_by.items()
    ]
    static = metrics.energy.value - sum(metrics.energy_by.values())
    if plan.target.static_power:
        rows.append(("static power", "", "", format_joules(static), meter(static / total)))
    return table(
        "Energy",
        ("Memory or core", ">Arithmetic and array", ">Bytes in and out", ">Energy", "Share"),
        rows,
    )


def cut_operators(cuts: Cuts) -> Html:
    """Make a table of operators in pieces: how each is cut and why."""
    rows = [
        (
            operator.network,
            figures.operators_of(operator.jobs[0].operators),
            f"{len(operator.jobs):,}",
            operator.how(),
            f"{operator.cores:,}",
            "" if operator.stack is None else str(operator.stack + 1),
            cuts.why(operator),
        )
        for operator in cuts.operators[:CUT_ROWS]
    ]
    return table(
        "Cut operators",
        ("Network", "Operators", ">Pieces", "Along", ">Cores", ">Stack", "Why"),
        rows,
    )


def mini_batches(plan: PlanRecord) -> Html:
    """Make a table of mini-batches: release, latency, deadline, and whether it is met."""
    columns = ("Network", ">Mini-batch", ">Released", ">Latency", ">Deadline", "")
    return table("Mini-batches", columns, figures.timed_mini_batches(plan))


def _shaded(count: int, most: int) -> Html:
    """Make a cell of the traffic matrix."""
    if not count:
        return Html(f"<span class=none>{NOTHING}</span>")
    return Html(f'<span class=heat style="--heat:{count / most:.3f}">{format_bytes(count)}</span>')
