"""Answers in one line, as text, as HTML for notebooks, and as rows of a table.

Each class of answers has a view of its own: what it is, its figures with their bounds, a small
picture, and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.core.packages import package
from loadmaster.core.units import (
    format_bytes,
    format_count,
    format_joules,
    format_rate,
    format_seconds,
)
from loadmaster.report.picture import Bar, Box, Span, amounts, bars, lanes, regions
from loadmaster.report.text import NOTHING, clipped, percent, plural, printable, shortened
from loadmaster.workloads.graph import uncounted

if TYPE_CHECKING:
    from loadmaster.allocation.answer import Allocation
    from loadmaster.allocation.memories.problem import BankAllocation
    from loadmaster.allocation.problem import Problem
    from loadmaster.core.arrays import Ints
    from loadmaster.mapping.answer import JobMapping
    from loadmaster.placement.answer import MemoryPlan
    from loadmaster.planning.plan_records import PlanRecord
    from loadmaster.workloads.graph import Graph

Row = Mapping[str, Any]
_LONGEST = 60
"""Characters of a name in a line."""


@dataclass(frozen=True)
class View:
    """What is shown of an answer.

    ``figures`` are name, value, bound and distance, the last two empty where there is none;
    ``notes`` are sentences below them. Pictures and rows are made when they are asked for.
    """

    title: str
    headline: str
    figures: tuple[tuple[str, str, str, str], ...]
    pictures: Callable[[], Iterable[str]]
    rows: Callable[[], Iterable[Row]]
    notes: tuple[str, ...] = ()


def line(answer: object) -> str:
    """Return an answer in one line, such as ``<Plan of squeezenet on edge-npu: feasible, 1.23 ms,
    4.5 % above the bound>``."""
    view = _view(answer)
    return f"<{view.title}: {view.headline}>"


def text(answer: object) -> str:
    """Return title, figures and notes of an answer as plain text."""
    view = _view(answer)
    head = ("", "Value", "Bound", "Distance")
    rows = (
        [head, *view.figures] if any(bound for _, _, bound, _ in view.figures) else [*view.figures]
    )
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(4)]
    table = [
        "  ".join(
            [row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].rjust(widths[2]), row[3]]
        ).rstrip()
        for row in rows
    ]
    return "\n".join([f"{view.title}: {view.headline}", *table, *view.notes])


def html(answer: object) -> str:
    """Return title, figures, pictures and notes of an answer as HTML."""
    view = _view(answer)
    bounded = any(bound for _, _, bound, _ in view.figures)
    columns = 4 if bounded else 2
    head = "<tr><th></th><th>Value</th><th>Bound</th><th>Distance</th></tr>" if bounded else ""
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(cell) or NOTHING}</td>" for cell in figure[:columns])
        + "</tr>"
        for figure in view.figures
    )
    notes = "".join(f"<div><small>{escape(note)}</small></div>" for note in view.notes)
    title = f"<div><b>{escape(view.title)}</b>: {escape(view.headline)}</div>"
    return f"<div>{title}<table>{head}{body}</table>{''.join(view.pictures())}{notes}</div>"


def table(answer: object) -> Any:
    """Return the rows of an answer as a pandas ``DataFrame``."""
    pandas = package("pandas", f"{type(answer).__name__}.to_pandas")
    return pandas.DataFrame(list(_view(answer).rows()))


def _view(answer: object) -> View:
    return next(_VIEWS[kind.__name__] for kind in type(answer).__mro__ if kind.__name__ in _VIEWS)(
        answer
    )


def _named(names: Iterable[str]) -> str:
    return clipped(shortened([printable(name) for name in names], 3) or "nothing", _LONGEST)


def _distance(gap: float | None) -> str:
    if gap is None or not np.isfinite(gap):
        return "no bound"
    return "at the bound" if gap <= 0 else f"{percent(gap)} above the bound"


def _reached(status: str, gap: float | None) -> str:
    """The distance to the bound; of what is proven optimal, none, although figures as floats may
    differ in their last digits."""
    return _distance(0.0 if status == "optimal" else gap)


def _share(value: float, bound: float) -> float | None:
    """How far a value is above its lower bound, relative to it; None where the bound says
    nothing."""
    return value / bound - 1 if bound > 0 else 0.0 if value <= 0 else None


def _figure(
    name: str, value: float, bound: float, shown: Callable[[float], str]
) -> tuple[str, str, str, str]:
    return name, shown(value), shown(bound), _distance(_share(value, bound))


def _after_warning(unknown: Iterable[str]) -> str:
    """What a headline begins with where operators are not understood."""
    line = uncounted(map(printable, unknown))
    return f"{line}. " if line else ""


def _plan(plan: PlanRecord) -> View:
    # Only plans need them: allocations are shown where the packages that plans need are absent.
    from loadmaster.report.figures import (
        allocations_of,
        figures_rest_on,
        objective_name,
        objective_text,
    )
    from loadmaster.report.timeline import bytes_alive

    metrics, end = plan.metrics, plan.metrics.makespan.value
    shared = {memory.name for memory in plan.target.memories}
    figures = [
        _figure("Makespan", end, metrics.makespan.lower_bound, format_seconds),
        _figure("Energy", metrics.energy.value, metrics.energy.lower_bound, format_joules),
        *(
            _figure(f"Traffic {printable(name)}", cost.value, cost.lower_bound, format_bytes)
            for name, cost in metrics.traffic.items()
        ),
        *(
            _figure(f"Peak {printable(name)}", use.peak, use.lower_bound, format_bytes)
            for name, use in metrics.memory.items()
            if name in shared
        ),
    ]
    reached = (
        f"{objective_name(plan)} {objective_text(plan, plan.objective.value)},"
        f" {_reached(plan.status, plan.objective.gap)}"
    )
    late = f", {plural(plan.missed, 'deadline')} missed" if plan.missed else ""

    def pictures() -> Iterable[str]:
        cores = {core.name: at for at, core in enumerate(plan.target.cores)}
        networks = {network.name: at for at, network in enumerate(plan.networks)}
        yield lanes(
            list(cores),
            (Span(cores[job.core], job.start, job.end, networks[job.network]) for job in plan.jobs),
            end,
        )
        if plan.target.fast is not None:
            alive = bytes_alive(allocations_of(plan, plan.target.fast.name))
            yield amounts(
                alive.times, alive.values, end, plan.target.fast.capacity, plan.target.fast.name
            )

    def rows() -> Iterable[Row]:
        fields = (
            "name",
            "network",
            "mini_batch",
            "kind",
            "core",
            "start",
            "end",
            "compute",
            "energy",
            "macs",
            "elements",
        )
        return ({field: getattr(job, field) for field in fields} for job in plan.jobs)

    title = (
        f"Plan of {_named(network.name for network in plan.networks)} on"
        f" {printable(plan.target.name)}"
    )
    return View(
        title,
        _after_warning(kind for network in plan.networks for kind in network.unknown)
        + f"{plan.status}, {reached}{late}",
        tuple(figures),
        pictures,
        rows,
        (figures_rest_on(plan.costs),),
    )


def _allocation(answer: Allocation) -> View:
    count = 0 if answer.offsets is None else len(answer.offsets)
    peak = (
        "no packing"
        if answer.peak is None
        else (
            f"peak {format_bytes(answer.peak)},"
            f" {_reached(answer.status, _share(answer.peak, answer.lower_bound))}"
        )
    )
    levels = [
        ("Peak", answer.peak),
        ("Lower bound", answer.lower_bound),
        ("Capacity", answer.capacity),
    ]
    known = [Bar(name, value, format_bytes(value)) for name, value in levels if value is not None]

    def rows() -> Iterable[Row]:
        return (
            ()
            if answer.offsets is None
            else (
                {"buffer": at, "offset": offset}
                for at, offset in enumerate(answer.offsets.tolist())
            )
        )

    def pictures() -> Iterable[str]:
        problem = answer.problem
        if (
            answer.offsets is None
            or answer.peak is None
            or problem is None
            or problem.conflicts is not None
        ):
            # Nothing was packed, or there is no time to draw it over.
            return (bars(known),)
        capacity = (
            [answer.capacity]
            if answer.capacity is not None and answer.capacity <= 2 * answer.peak
            else []
        )
        bound = [answer.lower_bound] if answer.lower_bound < 0.9 * answer.peak else []
        levels = [
            *((value, f"bound {format_bytes(value)}") for value in bound),
            *((value, format_bytes(value)) for value in capacity),
        ]
        peak = (
            []
            if capacity and answer.peak > 0.9 * capacity[0]
            else [(answer.peak, f"peak {format_bytes(answer.peak)}")]
        )
        return (
            regions(
                _boxes(problem, answer.offsets), max([answer.peak, *capacity]), [*levels, *peak]
            ),
        )

    figures = tuple((bar.name, bar.text, "", "") for bar in known)
    return View(
        f"Allocation of {plural(count, 'buffer')}",
        f"{answer.status}, {peak}",
        figures,
        pictures,
        rows,
    )


def _boxes(problem: Problem, offsets: Ints) -> list[Box]:
    """What buffers occupy, a box for each of their parts."""
    parts = problem.parts
    low, high = offsets[parts.owner] + parts.low, offsets[parts.owner] + parts.high
    columns = (parts.lower, parts.upper, low, high, parts.owner)
    return [Box(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _banks(answer: BankAllocation) -> View:
    memory, offsets = answer.memory or (), [] if answer.offsets is None else answer.offsets.tolist()
    figures = (
        []
        if answer.cost is None
        else [_figure("Cost", answer.cost, answer.lower_bound, lambda value: f"{value:,.0f}")]
    )
    peaks = [
        (bank, packing.peak or 0)
        for bank in answer.banks
        if (packing := answer.packings.get(bank.name)) is not None
    ]
    figures += [
        (
            f"Peak {bank.name}",
            format_bytes(peak),
            "",
            "" if bank.capacity is None else f"of {format_bytes(bank.capacity)}",
        )
        for bank, peak in peaks
    ]
    found = (
        "no packing"
        if answer.cost is None
        else (
            f"cost {answer.cost:,},"
            f" {_reached(answer.status, _share(answer.cost, answer.lower_bound))}"
        )
    )

    def rows() -> Iterable[Row]:
        places = enumerate(zip(memory, offsets, strict=True))
        return ({"buffer": at, "memory": name, "offset": offset} for at, (name, offset) in places)

    title = (
        f"Allocation of {plural(len(memory), 'buffer')} in"
        f" {', '.join(bank.name for bank in answer.banks)}"
    )
    drawn = [Bar(bank.name, peak, format_bytes(peak)) for bank, peak in peaks]
    return View(
        clipped(title, _LONGEST),
        f"{answer.status}, {found}",
        tuple(figures),
        lambda: (bars(drawn),),
        rows,
    )


def _mapping(answer: JobMapping) -> View:
    shown: dict[str, Callable[[float], str]] = {
        "energy": format_joules,
        "edp": lambda value: f"{value:.3g} J s",
    }
    figures = [
        _figure(
            f"Objective ({answer.objective})",
            answer.value,
            answer.lower_bound,
            shown.get(answer.objective, format_seconds),
        )
    ]
    figures.append(("Makespan", format_seconds(answer.makespan), "", ""))
    figures += [] if answer.energy is None else [("Energy", format_joules(answer.energy), "", "")]
    figures += (
        []
        if answer.throughput is None
        else [("Throughput", format_rate(answer.throughput, "OP/s"), "", "")]
    )

    def pictures() -> Iterable[str]:
        jobs = zip(
            answer.core.tolist(),
            answer.start.tolist(),
            answer.end.tolist(),
            answer.group.tolist(),
            strict=True,
        )
        yield lanes(answer.cores, (Span(*job) for job in jobs), answer.makespan)

    title = f"Mapping of {plural(len(answer.jobs), 'job')} to {plural(len(answer.cores), 'core')}"
    headline = (
        f"{answer.status}, makespan {format_seconds(answer.makespan)}, {answer.objective}"
        f" {_reached(answer.status, answer.gap)}"
    )
    notes = (f"The bound is set by {answer.limit}.",) if answer.limit else ()
    return View(title, headline, tuple(figures), pictures, lambda: answer.as_json()["jobs"], notes)


def _memory_plan(answer: MemoryPlan) -> View:
    sequence = answer.sequence
    figures = (
        _figure("Time", answer.seconds, answer.lower_bound, format_seconds),
        (
            "All fast",
            format_seconds(answer.all_fast_seconds),
            "",
            f"this takes {answer.slowdown:.3g} times that",
        ),
        (
            "All slow",
            (
                format_seconds(answer.all_slow_seconds)
                if np.isfinite(answer.all_slow_seconds)
                else "cannot run"
            ),
            "",
            "",
        ),
        ("Fast memory", format_bytes(answer.peak_fast), "", f"of {format_bytes(answer.limit)}"),
        (
            "Moved",
            format_bytes(answer.moved_bytes),
            "",
            plural(len(answer.placement.moves), "move"),
        ),
    )

    def pictures() -> Iterable[str]:
        change = np.zeros(len(sequence.kernels) + 1, dtype=np.int64)
        for stay in answer.placement.stays:
            change[stay.start] += sequence.sizes[stay.tensor]
            change[stay.end] -= sequence.sizes[stay.tensor]
        alive = change.cumsum()[:-1].tolist()
        yield amounts(list(range(len(alive))), alive, len(alive), answer.limit, "fast memory")

    def rows() -> Iterable[Row]:
        for tensor in answer.as_json()["tensors"]:
            named = {key: tensor[key] for key in ("name", "kind", "bytes")}
            for stay in tensor["fast"] or [{"start": None, "end": None, "offset": None}]:
                yield named | stay

    reached = _reached(answer.status, answer.gap)
    headline = (
        f"{answer.status}, {format_seconds(answer.seconds)}, {reached},"
        f" {format_bytes(answer.peak_fast)} of fast memory"
    )
    title = f"Placement of {_named([sequence.name])} ({answer.mode.value})"
    notes = (
        (
            "Times are estimates; the picture shows bytes in the fast memory kernel by kernel,"
            " without workspaces."
        ),
    )
    return View(title, headline, figures, pictures, rows, notes)


def _graph(graph: Graph) -> View:
    kinds = {
        kind: sum(t.bytes for t in graph.tensors.values() if t.kind == kind and t.alias_of is None)
        for kind in ("weight", "input")
    }
    figures = (
        ("Operators", f"{len(graph.ops):,}", "", ""),
        ("Multiply-accumulates", format_count(graph.macs), "", ""),
        *((f"{kind.capitalize()}s", format_bytes(size), "", "") for kind, size in kinds.items()),
    )

    def pictures() -> Iterable[str]:
        alive = _alive(graph)
        yield amounts(list(range(len(alive))), alive, len(alive), 0, "activations")

    def rows() -> Iterable[Row]:
        for op in graph.ops:
            moved = {
                "read": sum(access.bytes for access in op.reads),
                "written": sum(access.bytes for access in op.writes),
            }
            yield {
                "name": op.name,
                "kind": op.kind,
                "class": op.op_class.value,
                "macs": op.macs,
                "elements": op.elements,
            } | moved

    headline = _after_warning(graph.unknown_kinds) + (
        f"{plural(len(graph.ops), 'operator')}, {format_count(graph.macs)} MACs,"
        f" {format_bytes(kinds['weight'])} of weights"
    )
    notes = (
        (
            "The picture shows bytes of activations that are alive while each operator runs, in the"
            " order of the file."
        ),
        *graph.notes,
    )
    return View(
        f"Network {_named([graph.name])} at {graph.precision}",
        headline,
        figures,
        pictures,
        rows,
        tuple(map(printable, notes)),
    )


def _alive(graph: Graph) -> list[int]:
    """Bytes of activations alive while each operator runs: from the first operator that touches one
    to the last. O(operands)."""
    spans: dict[str, list[int]] = {}
    for at, op in enumerate(graph.ops):
        for access in (*op.reads, *op.writes):
            storage = graph.tensors[access.tensor].storage
            spans.setdefault(storage, [at, at])[1] = at
    kept = {graph.tensors[name].storage for name in graph.outputs}
    change = np.zeros(len(graph.ops) + 1, dtype=np.int64)
    for name, (first, last) in spans.items():
        if graph.tensors[name].kind == "activation":
            change[first] += graph.tensors[name].bytes
            change[len(graph.ops) if name in kept else last + 1] -= graph.tensors[name].bytes
    alive: list[int] = change.cumsum()[:-1].tolist()
    return alive


_VIEWS: dict[str, Callable[[Any], View]] = {
    "PlanRecord": _plan,
    "Allocation": _allocation,
    "BankAllocation": _banks,
    "JobMapping": _mapping,
    "MemoryPlan": _memory_plan,
    "Graph": _graph,
}
"""By name, so that showing one answer does not import the packages of all others."""
