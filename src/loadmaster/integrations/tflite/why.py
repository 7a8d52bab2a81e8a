"""Explains the size of an arena: the operators at the peak, and the effect of each remedy, found by
planning the network with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadmaster.allocation.peaks import peaks
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.effort import Effort
from loadmaster.integrations.tflite.arena import (
    TensorArena,
    addresses_of,
    arena_problem,
    head_of,
    online_offsets,
    plan_arena,
)
from loadmaster.integrations.tflite.bands.rows import rules_of
from loadmaster.integrations.tflite.bands.search import BandChoice
from loadmaster.integrations.tflite.bands.shrink import (
    Front,
    NotInBands,
    banded,
    front_of,
    smallest_within,
)
from loadmaster.integrations.tflite.export import naming
from loadmaster.integrations.tflite.export_json import AliveTensor, OperatorPeak, Remedy
from loadmaster.integrations.tflite.in_place import in_place_pairs, kernels_in_place
from loadmaster.integrations.tflite.lifetimes import UNIT, Lifetimes, arena_bytes, lifetimes
from loadmaster.integrations.tflite.scratch import UNKNOWN, Scratch
from loadmaster.workloads.frontends.tflite.model import TfliteModel, parse_model, read_file

_PEAKS = 3
_WORKS = (0.01, 0.05, 0.15)
"""Shares of extra work with which bands are tried."""
_SMALLER = 0.75
"""Factor on the rows and columns of the input with which a smaller input is tried."""


@dataclass(frozen=True)
class Reasons:
    """Reasons for the size of an arena: TFLM's own head and addresses, the operators at the peak,
    and remedies with their heads. ``front`` is the Pareto front of bands; if it is None,
    ``no_bands`` says why the file cannot be rewritten."""

    problem: Problem
    head_before: int
    addresses: Ints
    peaks: tuple[OperatorPeak, ...]
    remedies: tuple[Remedy, ...]
    front: Front | None
    no_bands: str | None


def arena_reasons(source: str | Path, scratch: Scratch = UNKNOWN, alignment: int = UNIT) -> Reasons:
    """Find the operators at the peak of a file's arena, and try remedies.

    Raises
    ------
    ModelError
        If the file cannot be read; the message begins with its name.
    """
    with naming(source):
        data = read_file(source)
        model = parse_model(data)
        arena = TensorArena(lifetimes(model), scratch)
        problem = arena_problem(arena)
        offsets = online_offsets(arena.owners)
        highest = tuple(_peaks(model, arena.found, problem))
        front, no_bands = None, "nothing in it takes less in bands"
        try:
            # What remedies may reach is told with little effort.
            front = replace(front_of(data, alignment), effort=Effort.QUICK)
        except NotInBands as reason:
            no_bands = str(reason)
        tried = tuple(_remedies(model, arena, alignment, front))
    before = head_of(arena.owners, offsets)
    addresses = addresses_of(problem, offsets)
    why = None if front and front.choices[1:] else no_bands
    return Reasons(problem, before, addresses, highest, tried, front, why)


def _peaks(model: TfliteModel, found: Lifetimes, problem: Problem) -> Iterator[OperatorPeak]:
    """Yield the largest peaks with their operators and the tensors alive."""
    # Instant 0 is TFLM's scope -1.
    names = {0: "tensors that nothing uses", 1: "the inputs"}
    for visit in found.visits:
        inside = f" of subgraph {visit.subgraph}" if visit.subgraph else ""
        kind = model.subgraphs[visit.subgraph].operators[visit.operator].kind
        names[visit.span[0] + 1] = f"operator {visit.operator}{inside} ({kind})"
    for peak in peaks(problem, np.flatnonzero(problem.size), _PEAKS):
        tensors = tuple(AliveTensor(problem.name(at), int(problem.size[at])) for at in peak.buffers)
        name = names.get(peak.instant, "the inputs of a subgraph")
        yield OperatorPeak(name, peak.bytes, tensors)


def _remedies(
    model: TfliteModel, arena: TensorArena, alignment: int, front: Front | None
) -> Iterator[Remedy]:
    """Yield ways to a smaller head, each with its option and the head in bytes."""
    pairs = in_place_pairs(model, arena.found, kernels_in_place("reference"))
    head = plan_arena(arena, arena_problem(arena, alignment, pairs)).head
    yield Remedy("kernels in place", "--in-place reference", head)
    if smaller := _smaller_input(model, arena.found):
        small = replace(arena, found=smaller[1])
        head = plan_arena(small, arena_problem(small, alignment)).head
        yield Remedy(f"an input of {smaller[0]}", "convert the model with it", head)
    if front is None:
        return
    front = replace(front, probed=bool(arena.scratch.buffers))
    for name in filter(None, front.variants):
        plain = banded(front, BandChoice((), 0, 1.0, name))
        yield Remedy(name, "--extra-macs 0%", plain.plan.head)
    known = front.choices[0]
    for share in _WORKS:
        choice, made = smallest_within(front, share)
        if choice.bands and choice is not known:
            known = choice
            yield Remedy("bands", f"--extra-macs {share:.0%}", made.plan.head, choice.work)


def _smaller_input(model: TfliteModel, found: Lifetimes) -> tuple[str, Lifetimes] | None:
    """Return a smaller input size as text, and the lifetimes of the network for it, with unchanged
    scratch. None if the input is no image, or an operator may depend on its size."""
    main, tensors = model.subgraphs[0], model.subgraphs[0].tensors
    images = [t for t in main.inputs if len(tensors[t].shape) == 4 and tensors[t].shape[0] == 1]
    if len(model.subgraphs) > 1 or len(images) != 1:
        return None
    sizes = {images[0]: [round(side * _SMALLER) for side in tensors[images[0]].shape[1:3]]}
    for operator in main.operators:
        given = next((t for t in operator.inputs if t in sizes), None)
        if given is None:
            continue
        before = tensors[given].shape[1:3]
        rules = rules_of(main, operator, model.root.file.data)
        for made in operator.outputs:
            after = tensors[made].shape[1:3] if len(tensors[made].shape) == 4 else ()
            if rules is not None:
                each = zip(rules, sizes[given], after, strict=True)
                # A window over the whole input shrinks with it.
                sizes[made] = [min(old, max(1, rule.height(side))) for rule, side, old in each]
            elif after == before:
                sizes[made] = sizes[given]
            elif operator.kind != "MEAN":
                return None
            if sizes.get(made) == [*after]:
                del sizes[made]
    smaller = {
        number: arena_bytes(replace(entry, shape=(1, *sizes[number], *entry.shape[3:])))
        for number, entry in enumerate(tensors)
        if number in sizes
    }
    planned = (replace(t, bytes=smaller.get(t.number, t.bytes)) for t in found.tensors)
    return " x ".join(map(str, sizes[images[0]])), replace(found, tensors=tuple(planned))
