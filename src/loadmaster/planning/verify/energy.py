"""Checks of energy: what bytes take is what the target says or what is published, and all of it
adds up."""

from __future__ import annotations

import math
from collections.abc import Iterator

from loadmaster.core.units import FEMTOJOULES, PICOSECONDS, format_joules
from loadmaster.planning.verify.facts import Facts, bounded, quoted, same
from loadmaster.targets.hardware import Core, Memory

_LEAST_MAC = ((8, "mac_int8", 0.3e-12), (16, "mac_fp16", 2.0e-12), (32, "mac_fp32", 4.6e-12))
"""Bits, what targets call it, and joules of a multiply-accumulate with a 32-bit sum; wider ones
take no less (Horowitz, ISSCC 2014)."""
_DRAM = 1300e-12 / 8
_SRAM = ((8 * 2**10, 10e-12 / 8), (32 * 2**10, 20e-12 / 8), (2**20, 100e-12 / 8))
"""Sizes in bytes, and joules a byte, of the same source."""


def fj(joules: float) -> int:
    """Femtojoules, in which energies compare exactly."""
    return round(joules * FEMTOJOULES)


def rates(facts: Facts) -> Iterator[str]:
    """A byte takes what the target states for its memory; else that of DRAM in main memory, and
    that of an SRAM of its size elsewhere."""
    target, stated = facts.plan.target, facts.plan.byte_energy
    due = {core.name: core.energy.get("buffer", _sram(core.buffer)) for core in target.cores} | {
        memory.name: _of(memory, target.main) for memory in target.memories
    }
    for place, joules in due.items():
        if abs(fj(stated[place]) - joules * FEMTOJOULES) > 1:
            yield (
                f"a byte of {place} is said to take {format_joules(stated[place])}, where it takes"
                f" {format_joules(joules)}"
            )


def energy(facts: Facts) -> Iterator[str]:
    """Jobs take no less than their arithmetic; a place takes what its jobs and transfers do, and
    the plan all that and static power."""
    plan, metrics = facts.plan, facts.plan.metrics
    taken = dict.fromkeys(plan.byte_energy, 0)
    for job in plan.jobs:
        taken[job.core] += fj(job.energy)
        least = _of_mac(facts.cores[job.core], job.bits)
        if job.energy < job.macs * least * (1 - 1e-9):
            work = f"{job.macs} multiply-accumulates of {job.bits} bits"
            yield (
                f"job {quoted(job.name)} takes {format_joules(job.energy)} for {work}, less than"
                " any can"
            )
    of_byte = {place: fj(joules) for place, joules in plan.byte_energy.items()}
    for transfer in plan.transfers:
        for place in (transfer.source, transfer.destination):
            taken[place] += transfer.bytes * of_byte[place]
    for place, found in taken.items():
        what = f"the energy of {place}"
        yield from same(what, metrics.energy_by[place], found / FEMTOJOULES, _joules)
    total = sum(taken.values()) + round(
        plan.target.static_power * (FEMTOJOULES // PICOSECONDS) * facts.makespan
    )
    yield from same("the energy", metrics.energy.value, total / FEMTOJOULES, _joules)
    yield from bounded("the energy", metrics.energy, _joules)


def _joules(value: float) -> str:
    """Format joules exactly."""
    return f"{value:.17g} J"


def _of_mac(core: Core, width: int) -> float:
    """Joules of a multiply-accumulate at least, as the target states them for a core, or else as
    they are published."""
    name, published = next(
        ((name, joules) for bits, name, joules in _LEAST_MAC if width <= bits), _LEAST_MAC[-1][1:]
    )
    return core.energy.get(name, published)


def _of(memory: Memory, main: Memory) -> float:
    """Return joules for each byte of a memory, by the verifier's own figures if the target states
    none."""
    if memory.energy is not None:
        return memory.energy
    return _DRAM if memory is main else _sram(memory.capacity)


def _sram(size: int) -> float:
    """Joules of a byte: a power law between the published sizes, and the square root of the size
    beyond them."""
    if size == 0:
        return 0.0
    (small, low), (middle, half), (large, high) = _SRAM
    if size <= small:
        return low * math.sqrt(size / small)
    if size >= large:
        return high * math.sqrt(size / large)
    (left, start), (right, end) = (
        ((small, low), (middle, half)) if size <= middle else ((middle, half), (large, high))
    )
    return float(start * (end / start) ** (math.log(size / left) / math.log(right / left)))
