"""A machine described in two tables: its memories and its cores."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.core.units import format_bandwidth, format_bytes, format_rate, format_seconds
from loadmaster.cost.analytical.energy import area, energy_rates
from loadmaster.report.tables import table
from loadmaster.report.text import NOTHING, Html
from loadmaster.targets.hardware import Core, Style, Target

_PICO_PER_FEMTO = 1e-3


def machine_tables(target: Target) -> Html:
    """Make the tables of a target's memories and cores, with what the cost model takes them to
    cost."""
    memories = ("Memory", ">Capacity", ">Read", ">Write", ">Energy per byte")
    cores = (
        "Core",
        "Dataflow",
        ">Array",
        ">Clock",
        ">Private buffer",
        ">MACs/cycle (int8)",
        ">Before each job",
        ">Area (45 nm)",
    )
    rates = energy_rates(target)
    prices = (rates.main, rates.fast)
    rows = (
        (
            m.name,
            format_bytes(m.capacity),
            format_bandwidth(m.read_bandwidth),
            format_bandwidth(m.write_bandwidth),
            _energy(price),
        )
        for m, price in zip(target.memories, prices, strict=False)
    )
    return Html(
        table("Memories", memories, rows)
        + table("Cores", cores, map(tuple, map(_core, target.cores)))
    )


def _energy(femtojoules: int) -> str:
    return f"{femtojoules * _PICO_PER_FEMTO:.3g} pJ"


def _core(core: Core) -> Iterator[str]:
    roofline = core.style is Style.ROOFLINE
    yield core.name
    yield str(core.style)
    yield NOTHING if roofline else f"{core.rows} x {core.columns}"
    yield format_rate(core.clock, "Hz")
    yield format_bytes(core.buffer) if core.buffer else NOTHING
    yield f"{core.rows * core.columns * core.macs_per_cycle[8]:,.0f}"
    yield format_seconds(core.start_up) if core.start_up else NOTHING
    yield f"{area(core):.3g} mm2"
