"""The packing problem of a network in bands: aliases between tensors, and lifetimes of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from loadmaster.allocation.problem import Buffer, Gap, Problem
from loadmaster.allocation.rules import problem_of
from loadmaster.integrations.tflite.arena import TensorArena, arena_buffers
from loadmaster.integrations.tflite.bands.regions import Bands
from loadmaster.integrations.tflite.lifetimes import Lifetimes, Span, row_bytes
from loadmaster.workloads.frontends.tflite.model import TfliteModel


def banded_problem(
    model: TfliteModel, arena: TensorArena, chosen: Sequence[Bands], alignment: int
) -> Problem:
    """Return the packing problem of
    :func:`~loadmaster.integrations.tflite.arena.arena_problem`, relaxed for bands.

    Bands share addresses with the rows of the result that they make, and all slices of a region
    with the subgraph's operand, so that ``CONCATENATION`` and ``IF`` copy tensors onto themselves.
    Rows of the source are freed after the last band that needs them. Instants are half scopes,
    because IF copies a band to its place after the operands of the last operator are freed; as in
    the search, that is used only if a residual is kept, so that loads remain lower bounds.
    """
    buffers = [
        replace(buffer, lower=2 * buffer.lower, upper=2 * buffer.upper)
        for buffer in arena_buffers(arena, alignment)
    ]
    found, main = arena.found, model.subgraphs[0]
    place = found.positions
    spans = {visit.operator: visit.span for visit in found.visits if visit.subgraph == 0}
    aliases: list[list[tuple[int, int]]] = []
    for number, bands in enumerate(chosen, 1):
        region, late = bands.region, len(bands.region.kept) > 1
        # The SLICE of a band is right before its IF: it is the scope before.
        calls = [at for at, op in enumerate(main.operators) if op.bodies[:1] == (number,)]
        runs = [spans[call] for call in calls]
        slices = [place[0, main.operators[call].inputs[1]] for call in calls]
        for position, lives in _lives(model, found, number, runs, late).items():
            at = place[number, position]
            own = buffers[at]
            buffers[at] = Buffer.during(own.id, lives, own.size, alignment=own.alignment)
        tops = {region.result: 0}
        for call, rows, top, (begin, end) in zip(calls, slices, bands.tops, runs, strict=True):
            # IF copies its operands before the subgraph runs, and its results after it.
            (part,) = main.operators[call].outputs
            made = place[0, part]
            buffers[rows] = replace(buffers[rows], upper=2 * begin + 4)
            buffers[made] = replace(buffers[made], lower=2 * end + 2 + late)
            tops[part] = top
        for op in main.operators[calls[-1] + 1 :]:
            # New rows of the last band, and partial concatenations.
            if op.inputs[0] in tops and op.outputs[0] not in tops:
                tops[op.outputs[0]] = tops[op.inputs[0]] + bands.again * (op.kind == "SLICE")
            if region.result in op.outputs:
                break
        row = row_bytes(main.tensors[region.result])
        aliases.append([(band, 0) for band in (place[number, 0], *slices)])
        aliases.append([(place[0, tensor], top * row) for tensor, top in tops.items()])
        source = place[0, region.source]
        if buffers[source].upper == 2 * runs[-1][0] + 2 and not buffers[source].gaps:
            row, size = row_bytes(main.tensors[region.source]), buffers[source].size
            gaps = []
            for band, ((begin, _), (after, _)) in enumerate(pairwise(runs), 1):
                if low := min(bands.starts[band:]) * row:
                    gaps.append(Gap(2 * begin + 2, 2 * after + 2, (low, size)))
            buffers[source] = replace(buffers[source], gaps=tuple(gaps))
    return problem_of(buffers, aliases=aliases)


def _lives(
    model: TfliteModel, found: Lifetimes, subgraph: int, runs: Sequence[Span], late: bool
) -> Mapping[int, list[tuple[int, int]]]:
    """Return the half-open lifetimes, in half scopes, of a subgraph's tensors in each of its runs.

    TFLM counts one lifetime from the first run to the last, but no tensor keeps its contents
    between runs. ``late``: operands of the last operator end half a scope before it.
    """
    entry = model.subgraphs[subgraph]
    count = len(entry.operators)
    scopes = [visit.span[0] for visit in found.visits if visit.subgraph == subgraph]
    lives = defaultdict[int, list[tuple[int, int]]](list)
    for run, (begin, end) in enumerate(runs):
        born = dict.fromkeys(entry.inputs, begin)
        last = dict(born)
        # TFLM walks both branches of IF, here the same subgraph; the second walk counts.
        walk = scopes[(2 * run + 1) * count :][:count]
        for operator, scope in zip(entry.operators, walk, strict=True):
            born |= dict.fromkeys(operator.outputs, scope)
            last |= dict.fromkeys((*operator.inputs, *operator.outputs), scope)
        last |= dict.fromkeys(entry.outputs, end)
        for tensor, first in born.items():
            early = late and last[tensor] == end and tensor not in entry.outputs
            lives[tensor].append((2 * first + 2, 2 * last[tensor] + 4 - early))
    return lives
