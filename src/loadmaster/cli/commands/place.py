"""``loadmaster place``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.options import (
    GOAL,
    MACHINE,
    NETWORKS,
    SEARCH,
    OptionalTarget,
    Overrides,
    Reading,
    SearchOptions,
    machine_of,
    option,
    out_to,
    strategy_of,
)
from loadmaster.cli.output import PageOutput, versioned
from loadmaster.core.errors import PlacementError
from loadmaster.placement.strategies.registry import ENGINES, PLACING

if TYPE_CHECKING:
    from loadmaster.placement.answer import CurvePoint
    from loadmaster.placement.sequence import KernelSequence

_CURVE = 10
"""Step of the limits on the slowdown curve, in percent of the peak with all tensors in fast
memory."""


def place_command(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH", help=f"{NETWORKS} Or a kernel sequence (`.json`, `.json.gz`)."
        ),
    ],
    target: OptionalTarget = None,
    overrides: Overrides = None,
    fast: Annotated[
        str | None,
        option(
            "BYTES|PERCENT",
            MACHINE,
            "Fast memory, such as `2GiB`, or a share of what everything fast takes, such as `50%`."
            " Default: the target's.",
        ),
    ] = None,
    cost: Annotated[
        str,
        option(
            "roofline|profile|FILE",
            MACHINE,
            "Where kernel times come from; FILE is a table of measured times.",
        ),
    ] = "roofline",
    *,
    reading: Reading,
    mode: Annotated[
        str,
        option(
            "static|sync|async",
            GOAL,
            "What tensors may do: nothing, move between kernels, or while they run.",
        ),
    ] = "sync",
    max_slowdown: Annotated[
        float | None,
        option(
            "X",
            GOAL,
            "Find the smallest fast memory with which time is at most X times all fast. Default:"
            " place in `--fast`.",
        ),
    ] = None,
    curve: Annotated[
        bool,
        option(
            None,
            GOAL,
            "Show slowdown over fast memory, from none to all that is asked for.",
            "--curve",
        ),
    ] = False,
    explain: Annotated[
        list[str] | None,
        option("TENSOR", GOAL, "Say why a tensor is where it is. May be repeated."),
    ] = None,
    strategy: Annotated[str, strategy_of([*ENGINES, *PLACING.names])] = "auto",
    gap: Annotated[
        float | None,
        option(
            "SHARE",
            SEARCH,
            "Distance to the lower bound at which the search may end. Default: 0.01, or 0.02 for"
            " async.",
        ),
    ] = None,
    search: SearchOptions,
    out: Annotated[
        Path | None, out_to("Where placement.json and report.html go. Default: nowhere.")
    ] = None,
    output: PageOutput,
) -> None:
    """Decide which memory each tensor is in and when it moves, within a limit on the fast memory.

    The limit holds to the byte, addresses included. The answer is checked by code that shares
    nothing with the engines, and compared with simpler strategies for the same kernels. Times are
    estimates, unless they were measured with `loadmaster profile`.

    Example: `loadmaster place onnx:resnet50 --target optane-server --batch 64 --fast 50% --mode
    sync --out placed`
    """
    from difflib import get_close_matches

    from loadmaster.core.progress import deferred_interrupts
    from loadmaster.cost.read_sequence import read_sequence
    from loadmaster.placement.answer import PlaceJson
    from loadmaster.placement.explain import explain_tensor
    from loadmaster.placement.place import place
    from loadmaster.placement.sizing import smallest_fast
    from loadmaster.report.placement import placement_page

    if fast is not None and max_slowdown is not None:
        raise PlacementError(
            "--max-slowdown finds the fast memory that --fast would give: leave one out"
        )
    machine = machine_of(target, overrides)
    with output.working(out) as (drafts, progress):
        sequence = read_sequence(graph, machine, cost=cost, **reading.arguments())
        known = [tensor.name for tensor in sequence.tensors]
        for name in explain or ():
            if name not in known:
                near = get_close_matches(name, known, n=3, cutoff=0.0)
                raise PlacementError(
                    f"--explain {name!r}: {sequence.name} has no such tensor: perhaps"
                    f" {', '.join(near)}"
                )
        options: dict[str, Any] = {
            "mode": mode,
            "strategy": strategy,
            "gap": gap,
            **search.arguments(),
            "progress": progress,
        }
        extra = dict[str, Any]()
        # Ctrl-C ends the search; its answer is written all the same.
        with deferred_interrupts():
            if max_slowdown is None:
                limit = (machine and machine.room) or sequence.peak_bytes
                plan = place(sequence, limit if fast is None else fast, **options)
            else:
                found = smallest_fast(sequence, max_slowdown, **options)
                plan = found.plan
                extra |= {"max_slowdown": max_slowdown, "too_small": found.too_small}
            if curve:
                extra["curve"] = list(_curve(sequence, options))
            explained = {
                tensor.name: explain_tensor(plan.sequence, plan.placement, plan.prices, t)
                for name in explain or ()
                for t, tensor in enumerate(plan.sequence.tensors)
                if plan.piece(t)[0] == name
            }
            if explained:
                extra["explained"] = explained
            shown = versioned(PlaceJson, plan.as_json(**extra))
            page = partial(placement_page, plan, shown, explained)
            files = output.publish(drafts, {"placement.json": shown}, page)
    output.show(shown, page, files)


def _curve(sequence: KernelSequence, options: dict[str, Any]) -> Iterator[CurvePoint]:
    """Yield the slowdown at each limit of fast memory, from none to all, or why there is no
    plan."""
    from loadmaster.placement.answer import CurvePoint, MemoryPlan
    from loadmaster.placement.sizing import slowdown_curve

    limits = [sequence.peak_bytes * share // 100 for share in range(0, 101, _CURVE)]
    for limit, plan in zip(limits, slowdown_curve(sequence, limits, **options), strict=True):
        yield (
            CurvePoint(limit, plan.seconds, plan.lower_bound, plan.slowdown)
            if isinstance(plan, MemoryPlan)
            else CurvePoint(limit, reason=str(plan))
        )
