"""A machine described in two tables: its memories and its cores."""

from __future__ import annotations

from loadmaster.core.units import format_bandwidth, format_bytes, format_rate, format_seconds
from loadmaster.cost.analytical.energy import area, energy_rates
from loadmaster.report.text import NOTHING
from loadmaster.report.view import Table
from loadmaster.targets.hardware import Core, Style, Target

_PICO_PER_FEMTO = 1e-3


def machine_tables(target: Target) -> list[Table]:
    """Make the tables of a target's memories and cores, with what the cost model takes them to
    cost."""
    rates = energy_rates(target)
    memories = [
        (
            m.name,
            format_bytes(m.capacity),
            format_bandwidth(m.read_bandwidth),
            format_bandwidth(m.write_bandwidth),
            f"{price * _PICO_PER_FEMTO:.3g} pJ",
        )
        for m, price in zip(target.memories, rates.memories, strict=False)
    ]
    figures = (">Array", ">Clock", ">Private buffer", ">MACs/cycle (int8)", ">Before each job")
    columns = ("Core", "Dataflow", *figures, ">Area (45 nm)")
    heads = ("Memory", ">Capacity", ">Read", ">Write", ">Energy per byte")
    cores = list(map(_core, target.cores))
    return [Table(heads, memories), Table(columns, cores)]


def _core(core: Core) -> tuple[str, ...]:
    return (
        core.name,
        str(core.style),
        NOTHING if core.style is Style.ROOFLINE else f"{core.rows} x {core.columns}",
        format_rate(core.clock, "Hz"),
        format_bytes(core.buffer) if core.buffer else NOTHING,
        f"{core.rows * core.columns * core.macs_per_cycle[8]:,.0f}",
        format_seconds(core.start_up) if core.start_up else NOTHING,
        f"{area(core):.3g} mm2",
    )
