"""The job table: costs of every job on every core, operand by operand, from which planning and
simulation derive their times."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.core.arrays import Floats, Ints, Mask


@dataclass(frozen=True)
class JobTable:
    """Costs of every job on every core, operand by operand; memory is O(operands x cores).

    ``compute[j, c]`` is the arithmetic time in seconds of job ``j`` on core ``c``, without
    transfers. Row ``i`` of the operand arrays belongs to job ``operand_job[i]`` and tensor instance
    ``operand_tensor[i]`` (rows are sorted by job, reads before writes): ``moved[i, c]`` bytes cross
    the core's port, refills included, and ``tile[i, c]`` bytes of the private buffer hold it.
    ``energy[j, c]`` joules, in whole femtojoules, are taken inside the core; bytes over its port
    and over memories' links come on top (:mod:`loadmaster.cost.energy_model`).
    """

    compute: Floats
    operand_job: Ints
    operand_tensor: Ints
    operand_write: Mask
    moved: Ints
    tile: Ints
    energy: Floats
