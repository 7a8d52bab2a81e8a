"""MAESTRO's energies of single layers as CSV."""

from __future__ import annotations

from pathlib import Path

from loadmaster.core.csv_cells import read_text, rows_of
from loadmaster.core.errors import JobError
from loadmaster.cost.job_analysis import LayerEnergies
from loadmaster.targets.hardware import Style
from loadmaster.workloads.frontends.job_list import COLUMNS, layer_of

_STYLES = {"dla": Style.WEIGHT_STATIONARY, "eye": Style.ROW_STATIONARY}
_NEEDED = (*COLUMNS, "style", "pes", "energy_nj")
_TRAFFIC = tuple(
    f"{operand}_l2_{way}" for way in ("write", "read") for operand in ("input", "weight", "output")
)
_OPTIONAL = ("cycles", "macs", "l1_bytes", "l2_bytes", "noc_bw", "offchip_bw", *_TRAFFIC, "avg_pes")
_MOST_ELEMENTS = 2**40


def read_layer_energies(path: str | Path) -> LayerEnergies:
    """Read the energies of layers that MAESTRO has computed.

    The columns are those of a job list, then ``style`` (``dla`` for weight-stationary, ``eye`` for
    row-stationary), ``pes`` (elements of the array, which is 64 wide) and ``energy_nj``
    (nanojoules); the other columns that MAESTRO fills may be there and are not read.

    Raises
    ------
    JobError
        Naming file, line and column.
    """
    energies: dict[tuple[tuple[int, ...], Style, int], float] = {}
    for row in rows_of(read_text(path), str(path), _NEEDED, _OPTIONAL):
        style = row.text("style")
        if style not in _STYLES:
            raise JobError(
                f"{row.where('style')} is {style[:30]!r}: write one of {', '.join(_STYLES)}"
            )
        nest = layer_of(row)[1]
        layer = (nest.groups, nest.k, nest.c, nest.y, nest.x, nest.r, nest.s)
        energies[layer, _STYLES[style], row.whole("pes", 1, _MOST_ELEMENTS)] = (
            row.number("energy_nj") * 1e-9
        )
    return LayerEnergies(str(path), energies)
