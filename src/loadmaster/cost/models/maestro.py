"""The cost model of the M3E paper (HPCA 2022): closed forms of MAESTRO's results for unlimited
buffers and on-chip network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import numpy as np

from loadmaster.core.arrays import Floats, Mask, column_of
from loadmaster.core.csv_cells import read_text, rows_of
from loadmaster.core.errors import JobError
from loadmaster.cost.analytical.nests import FIELDS, NestTable, nest_table, shapes_of
from loadmaster.cost.base import CostModel, JobAnalysis, analysis_of, kinds_of, per_core
from loadmaster.targets.hardware import Core, Style, Target
from loadmaster.workloads.frontends.job_list import COLUMNS, layer_of
from loadmaster.workloads.job import Workload

_STYLES = {"dla": Style.WEIGHT_STATIONARY, "eye": Style.ROW_STATIONARY}
_NEEDED = (*COLUMNS, "style", "pes", "energy_nj")
_TRAFFIC = tuple(
    f"{operand}_l2_{way}" for way in ("write", "read") for operand in ("input", "weight", "output")
)
_OPTIONAL = ("cycles", "macs", "l1_bytes", "l2_bytes", "noc_bw", "offchip_bw", *_TRAFFIC, "avg_pes")
_MOST_ELEMENTS = 2**40
_LAYER = attrgetter("groups", "k", "c", "y", "x", "r", "s")
"""Extents that tell layers of one style and array apart."""

Energies = dict[tuple[tuple[int, ...], Style, int], float]


def read_layer_energies(path: str | Path) -> Maestro:
    """Return the model with the energies of layers that MAESTRO has computed.

    The columns are those of a job list, then ``style`` (``dla`` for weight-stationary, ``eye`` for
    row-stationary), ``pes`` (elements of the array, which is 64 wide) and ``energy_nj``
    (nanojoules); the other columns that MAESTRO fills may be there and are not read.

    Raises
    ------
    JobError
        Naming file, line and column.
    """
    energies: Energies = {}
    for row in rows_of(read_text(path), str(path), _NEEDED, _OPTIONAL):
        style = row.text("style")
        if style not in _STYLES:
            raise JobError(
                f"{row.where('style')} is {style[:30]!r}: write one of {', '.join(_STYLES)}"
            )
        nest = layer_of(row)[1]
        key = _LAYER(nest), _STYLES[style], row.whole("pes", 1, _MOST_ELEMENTS)
        joules = row.number("energy_nj") * 1e-9
        if energies.setdefault(key, joules) != joules:
            raise JobError(
                f"{row.where('energy_nj')} is not what an earlier row says of this layer: keep one"
            )
    return Maestro(energies, str(path))


_WIDTH = 64
"""Columns of the arrays in tables of layer energies."""


def _depthwise(n: NestTable, rows: Floats, width: Floats) -> tuple[Floats, Floats]:
    """Every style runs depthwise layers alike, on about C / 64 elements."""
    cycles = n.y * n.x * np.ceil(n.c / (width * width * rows)) * np.minimum(n.c, width) * n.r * n.s
    return cycles, n.c * (2 * n.r * n.s + 1) - np.where(
        (n.c > width) & (n.c % width == 0), width, 0
    )


def _high_bandwidth(n: NestTable, rows: Floats, width: Floats) -> tuple[Floats, Floats]:
    """HB, NVDLA-style: output channels down, input channels across."""
    cycles = n.y * n.x * np.ceil(n.k / rows) * np.ceil(n.c / width) * (n.r * n.s + 1)
    k, c = np.minimum(n.k, rows), np.minimum(n.c, width)
    return cycles, (k + 1) * c * n.r * n.s + k - ((n.k > 1) & (n.k < rows))


def _low_bandwidth(n: NestTable, rows: Floats, width: Floats) -> tuple[Floats, Floats]:
    """LB: output rows over the whole array."""
    cycles = n.k * n.c * np.ceil(n.y / (width * rows)) * np.ceil(n.x / n.s) * (n.r * n.s + 1)
    x = np.minimum(n.x, n.s)
    return cycles, (n.y + (n.r - 1) * np.ceil(n.y / width)) * (x + n.s - 1) + n.r * n.s + n.y * x


_FORMS: dict[Style, Callable[[NestTable, Floats, Floats], tuple[Floats, Floats]]] = {
    Style.WEIGHT_STATIONARY: _high_bandwidth,
    Style.ROW_STATIONARY: _low_bandwidth,
}


@dataclass(frozen=True)
class Maestro(CostModel):
    """Cycles and no-stall bandwidth as the M3E paper takes them from MAESTRO.

    A weight-stationary core stands for the paper's HB (NVDLA-style), a row-stationary one for its
    LB; other styles are refused. A layer takes ``1 + steps`` cycles and needs half of MAESTRO's L2
    bytes over ``steps`` cycles, with elements of one byte and one multiply-accumulate per array
    element and cycle, whatever the target says. Arrays are 64 wide in the paper; where the forms
    say 64 the width of the array is used, which is checked against MAESTRO for 64 only. A flexible
    array takes the shape of fewest steps, and of equals the one that needs fewest bytes. Jobs
    without loop nests, which the paper leaves out, take one cycle and no bandwidth.

    Energy has no closed form: it comes from ``energies``, the joules of layers by (groups, K, C, Y,
    X, R, S) with Y and X the output's, the core's style, and the elements of its array. Every layer
    must be there on every core; ``source`` names their file in errors. Without them, energy is
    None.
    """

    heeds_calibration = False

    energies: Energies | None = None
    source: str = ""

    def analyse(self, workload: Workload, target: Target) -> JobAnalysis:
        """Analyse all jobs; raises :class:`~loadmaster.core.errors.JobError` for a core of another
        style, or a layer without energy."""
        nests = nest_table(workload.jobs)
        # Loop nests as MAESTRO's layers, arrays of shape (layers, 1). Groups but of depthwise ones,
        # which have their channels in `c`, images of a batch and repeats run one after another.
        n = replace(nests, **{name: getattr(nests, name)[:, None] for name in FIELDS})
        depthwise = (n.groups > 1) & (n.c == 1)
        runs = np.where(depthwise, 1, n.groups) * n.batch * n.repeats
        layers = replace(n, c=np.where(depthwise, n.groups * n.k, n.c))
        kinds, position = kinds_of(target)
        costs = zip(*(_of_kind(layers, runs, depthwise, core) for core in kinds), strict=True)
        steps, need = (nests.per_job(per_core(figures, position)) for figures in costs)
        clock = column_of(target.cores, "clock")
        energy = None
        if self.energies is not None:
            energy = self._energy(workload, nests, kinds, self.energies)[:, position]
        bandwidth = need / np.maximum(1, steps) * clock
        return analysis_of(workload, target, (1 + steps) / clock, bandwidth, energy)

    def with_table(self, path: str) -> Maestro:
        """The model with the energies of a table, see
        :func:`~loadmaster.cost.models.maestro.read_layer_energies`."""
        return read_layer_energies(path)

    def _energy(
        self, workload: Workload, nests: NestTable, kinds: Sequence[Core], energies: Energies
    ) -> Floats:
        """Joules of every job on every kind of core; images of a batch and repeats take the energy
        of the layer again."""
        extents = np.stack(_LAYER(nests), axis=1).astype(np.int64).tolist()
        joules = np.zeros((len(extents), len(kinds)))
        for column, core in enumerate(kinds):
            for row, extent in enumerate(extents):
                found = energies.get((tuple(extent), core.style, core.rows * core.columns))
                if found is None or core.columns != _WIDTH or core.flexible:
                    job = workload.jobs[int(np.argmax((nests.row_of == row).any(axis=1)))]
                    raise JobError(
                        f"{self.source}: no energy for job {job.name} (groups, K, C, Yo, Xo, R,"
                        f" S = {', '.join(map(str, extent))}) on core {core.name}: add it, or use"
                        " `--cost maestro` for other objectives or `--cost dataflow`"
                    )
                joules[row, column] = found
        return nests.per_job(joules * (nests.batch * nests.repeats)[:, None])


def _of_kind(layers: NestTable, runs: Floats, depthwise: Mask, core: Core) -> tuple[Floats, Floats]:
    """Steps of all runs and bytes needed, per layer, in the best shape of one core."""
    if core.style not in _FORMS:
        raise JobError(
            f"core {core.name}: maestro knows weight-stationary (HB) and row-stationary (LB) cores,"
            f" not {core.style}: use --cost dataflow"
        )
    rows, width = shapes_of(core)
    options = _FORMS[core.style](layers, rows, width), _depthwise(layers, rows, width)
    steps, need = (
        np.where(depthwise, special, usual) for usual, special in zip(*options, strict=True)
    )
    best = np.lexsort((need, steps), axis=1)[:, :1]
    steps, need = (np.take_along_axis(values, best, axis=1) for values in (steps, need))
    return (steps * runs)[:, 0], need[:, 0]


MODEL = Maestro()
