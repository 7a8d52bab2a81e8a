"""Whether main memory can hold the networks, and what is said where it cannot."""

from __future__ import annotations

import numpy as np

from loadmaster.core.errors import CapacityError
from loadmaster.core.units import format_bytes
from loadmaster.targets.hardware import Memory, Target
from loadmaster.workloads.job import Workload


def require_room(workload: Workload, main: Memory) -> None:
    """Raise `CapacityError` for networks that no plan can fit into main memory."""
    least = _least(workload)
    if least > main.capacity:
        raise CapacityError(
            f"{main.name} cannot hold the networks: weights with inputs or outputs take"
            f" {format_bytes(least)}, {format_bytes(main.capacity)} available,"
            f" {format_bytes(least - main.capacity)} in excess: {_advice(main)}"
        )


def refusal(workload: Workload, target: Target, excess: int, *, stopped: bool) -> CapacityError:
    """Why no plan was found: of all that were tried, the nearest to fitting takes ``excess`` bytes
    of main memory more than there are."""
    main = target.main
    if not excess and not main.in_place:
        name = target.memories[1].name
        return CapacityError(
            f"{name}: operands fit by size, but no packing without gaps was found: enlarge its"
            " capacity"
        )
    room, least = format_bytes(main.capacity), format_bytes(_least(workload))
    need = format_bytes(main.padded(main.capacity) + excess)
    lack = (
        f"the least takes {need} at one instant, {room} available"
        if excess
        else f"none has addresses without gaps in {room}"
    )
    early = ", and the search was stopped early" if stopped else ""
    return CapacityError(
        f"{main.name} cannot hold any plan that was found: {lack}{early}; every plan takes at least"
        f" {least}: {_advice(main)}"
    )


def _least(workload: Workload) -> int:
    """Bytes of main memory that every plan takes: weights stay, inputs are there at the start, and
    outputs at the end."""
    sizes = np.array([tensor.bytes for tensor in workload.tensors], dtype=np.int64)
    given = np.array([tensor.producer < 0 for tensor in workload.tensors], dtype=np.bool_)
    kept = np.array(
        [tensor.is_output or tensor.kind == "weight" for tensor in workload.tensors], dtype=np.bool_
    )
    return int(max(sizes[given].sum(), sizes[kept].sum()))


def _advice(main: Memory) -> str:
    return f"plan fewer networks or mini-batches, or enlarge {main.name}.capacity"
