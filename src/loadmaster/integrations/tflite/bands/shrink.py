"""Rewrites a ``.tflite`` file to run in bands within a smaller arena. The new file is returned only
if TFLM's interpreter gives the same results bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from loadmaster.core.effort import Effort
from loadmaster.core.errors import AllocationError, ModelError
from loadmaster.core.units import format_bytes
from loadmaster.integrations.tflite.arena import TensorArena, plan_arena
from loadmaster.integrations.tflite.bands.order import least_order
from loadmaster.integrations.tflite.bands.plan import banded_problem
from loadmaster.integrations.tflite.bands.regions import RowChain
from loadmaster.integrations.tflite.bands.rewrite import in_bands, in_order
from loadmaster.integrations.tflite.bands.search import BandChoice, BandSearch
from loadmaster.integrations.tflite.export import ExportedModel, naming
from loadmaster.integrations.tflite.interpreter import ArenaBytes, differing, is_installed, measure
from loadmaster.integrations.tflite.lifetimes import UNIT, lifetimes, plan_entries
from loadmaster.integrations.tflite.planned_file import ONLINE, planned_offsets, with_plan
from loadmaster.integrations.tflite.rewritten import check_rewritten
from loadmaster.integrations.tflite.scratch import UNKNOWN, probe
from loadmaster.workloads.frontends.tflite.model import TfliteModel, parse_model, read_file
from loadmaster.workloads.frontends.tflite.schema import CUSTOM

MOST_WORK = 1.5
"""Largest ratio of multiply-accumulates to those of the network that is offered."""


@dataclass(frozen=True)
class Front:
    """Pareto front of a network in bands: choices of decreasing size (head and the bands' tail) and
    increasing work, beginning with the unchanged network.

    ``variants`` are the unchanged network (without a name), and by what was changed the network
    with PADs folded into convolutions, and that in the order of the least load. Choices are planned
    with ``effort``, and ``probed`` includes the scratch buffers of TFLM's kernels.
    """

    variants: Mapping[str, TfliteModel]
    choices: tuple[BandChoice, ...]
    alignment: int
    effort: Effort = Effort.NORMAL
    probed: bool = False


class NotInBands(ModelError):
    """Raised for a file that cannot be rewritten in bands; the message gives the reason."""


class TooLarge(AllocationError):
    """Raised if no bands that are tried make the arena as small as asked."""


def front_of(data: bytes, alignment: int = UNIT) -> Front:
    """Find the Pareto front of a network in bands. Raises `NotInBands` for a file that cannot be
    rewritten."""
    model = parse_model(data)
    main, *others = model.subgraphs
    if others:
        raise NotInBands("has several subgraphs: only networks of one can run in bands")
    if any(offset != ONLINE for offset in planned_offsets(model)):
        raise NotInBands(
            "has addresses for its tensors already, which bands would change: give one without"
        )
    there = {*main.inputs}
    for number, operator in enumerate(main.operators):
        if not there.isdisjoint(operator.outputs):
            raise NotInBands(
                f"operator {number} ({operator.kind}) writes a tensor that is there: convert again"
            )
        there.update(operator.outputs)
        if operator.kind.startswith(CUSTOM):
            raise NotInBands(
                f"operator {number} ({operator.kind}) is not one of TFLM's, so that bands cannot be"
                " checked by running them"
            )
    variants = {"": model}
    if folds := RowChain(model).folds():
        model = parse_model(in_order(model, range(len(main.operators)), folds))
        variants["PAD left out"] = model
    if order := least_order(model.subgraphs[0]):
        variants["operators in another order"] = parse_model(in_order(model, order.operators, {}))
    offered: list[BandChoice] = []
    for name, variant in variants.items():
        little = takewhile(
            lambda choice: choice.work <= MOST_WORK,
            BandSearch(RowChain(variant), alignment).choices(),
        )
        left_out = len(main.operators) - len(variant.subgraphs[0].operators)
        offered += (replace(choice, variant=name, left_out=left_out) for choice in little)
    choices = offered[:1]
    for choice in sorted(offered[1:], key=lambda each: (each.work, each.size, each.variant)):
        if choice.size < choices[-1].size:
            choices.append(choice)
    return Front(variants, tuple(choices), alignment)


def banded(front: Front, choice: BandChoice) -> ExportedModel:
    """Write and plan one choice; the result has no name."""
    model = parse_model(in_bands(front.variants[choice.variant], choice.bands))
    found = lifetimes(model)
    arena = TensorArena(found, probe(model, found) if front.probed else UNKNOWN)
    problem = banded_problem(model, arena, choice.bands, front.alignment)
    plan = plan_arena(arena, problem, front.effort)
    planned = with_plan(model, plan_entries(found, plan.offsets))
    parts = ((each.region.first, each.region.last - 1, each.count) for each in choice.bands)
    return ExportedModel(
        "", planned, plan, arena, problem, work=choice.work, time=choice.time, bands=tuple(parts)
    )


def smallest_within(front: Front, extra_work: float) -> tuple[BandChoice, ExportedModel]:
    """Return the choice with the smallest arena within a share of extra work, and its plan.

    The arena is the planned head and an estimate of what the bands add to the tail.
    """
    best, *others = (c for c in reversed(front.choices) if c.work <= 1 + extra_work + 1e-9)
    found = banded(front, best)
    # A head may exceed the choice's load; then another choice may have a smaller arena.
    for choice in others:
        if choice.size < found.plan.head + best.tail:
            tried = banded(front, choice)
            if tried.plan.head + choice.tail <= found.plan.head + best.tail:
                best, found = choice, tried
    return best, found


def shrink_model(
    source: str | Path,
    *,
    arena: int | None = None,
    extra_work: float | None = None,
    alignment: int = UNIT,
    unchecked: bool = False,
) -> ExportedModel:
    """Rewrite a network in bands with the least work for a given arena, or the smallest arena for a
    given work.

    Parameters
    ----------
    source
        The file.
    arena
        Most bytes of head and tail together, as measured by TFLM's interpreter; the extra work is
        minimised.
    extra_work
        Instead of ``arena``: extra multiply-accumulates as a share of the network's; head and tail
        together are minimised, by an estimate of the bands' tail. The network is left as it is if
        bands are measured to take more.
    alignment
        Bytes; every address is a multiple.
    unchecked
        Return the file without running it if there is no interpreter; ``arena`` then limits the
        head alone.

    Raises
    ------
    NotInBands
        If the file cannot be rewritten.
    TooLarge
        If no bands that are tried suffice.
    LoadmasterError
        If the file cannot be read, or if the new file gives other results than the old one.
    """
    with naming(source):
        if not is_installed() and not unchecked:
            raise ModelError(
                "in bands is checked by running: install the extra `tflite`, or write it unchecked"
            )
        old = read_file(source)
        front = replace(front_of(old, alignment), probed=is_installed())
        before = measure(old, front.choices[0].load, least=True) if front.probed else None
        if arena is None:
            choice, found = smallest_within(front, extra_work or 0.0)
            if before is not None:
                found, whole = found.measured(before), front.choices[0]
                plain = found if choice is whole else banded(front, whole).measured(before)
                found = plain if plain.least <= found.least else found
        else:
            found = _least_work_within(front, arena, before)
        if check_rewritten(old, found.data) > found.plan.head:
            raise AllocationError("the file takes more than was planned: please report it")
        if before is not None:
            room = sum(each.bytes for each in found.arena.found.tensors)
            difference = differing(old, found.data, head=room)
            if difference is not None:
                raise AllocationError(
                    f"in bands gives other results ({difference}): please report it; nothing is"
                    " written"
                )
    return replace(found, name=Path(source).stem)


def _least_work_within(front: Front, arena: int, before: ArenaBytes | None) -> ExportedModel:
    """Return the plan of the choice with the least work that fits into an arena. Raises
    `TooLarge`."""
    reached: list[int] = []
    for choice in front.choices:
        # The estimate is right within a factor of two and a unit; it is below zero where operators
        # are left out.
        tail = 0 if before is None else before.tail + min(2 * choice.tail, choice.tail // 2)
        if choice.load + tail - UNIT <= arena:
            found = banded(front, choice)
            found = found if before is None else found.measured(before)
            if found.least <= arena:
                return found
            reached.append(found.least)
    most = front.choices[-1]
    least = f"; the least that was reached is {format_bytes(min(reached))}" if reached else ""
    raise TooLarge(
        f"no bands that were tried make the arena {format_bytes(arena)} or less: with"
        f" {most.work - 1:.1%} more work what is planned alone takes {format_bytes(most.load)}"
        f"{least}: give a larger --arena or another --alignment, or make the input smaller"
    )
