"""Along which axes a machine becomes no worse, so that what a smaller value can do, a larger one can."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.cost.energy_model import EnergyRates
from loadmaster.planning.inherit import is_within
from loadmaster.planning.sweep.axes import Axis, machine
from loadmaster.targets.hardware import Target

_MEMORY = ("scratchpad", "bandwidth", "capacity", "read_bandwidth", "write_bandwidth")
_CORE = ("clock", "lanes", "buffer", "job_overhead", "noc_bandwidth", "noc_latency", "int8", "fp16", "fp32")
_COPY = ("to_fast", "to_main", "asynchronous_to_fast", "asynchronous_to_main")
_ORDERED = frozenset((*_MEMORY, *_CORE, *_COPY))
"""Fields that machines may be compared by; whether they may here, :func:`~loadmaster.planning.inherit.is_within` says."""


def order_of(axis: Axis, target: Target, *, energy: bool = False) -> int:
    """1 if machines become no worse along the axis, -1 if they become no better, 0 if neither can be said.

    Plans for the worse machine are plans for the better one, with the same addresses and no later times, and with ``energy`` no more
    energy: larger memories take more for each byte. Nothing is said of machines that copy every operand, whose operators are split for
    the size of the fast memory.
    """
    if not axis.is_machine or axis.name.rpartition(".")[2] not in _ORDERED or not target.main.in_place:
        return 0
    low, high = (machine(target, [(axis.name, value)]) for value in (axis.values[0], axis.values[-1]))
    if is_within(low, high) and (not energy or _no_more(energy_rates(high), energy_rates(low))):
        return 1
    return -1 if is_within(high, low) and (not energy or _no_more(energy_rates(low), energy_rates(high))) else 0


def _no_more(one: EnergyRates, other: EnergyRates) -> bool:
    pairs = [(one.main, other.main), (one.fast, other.fast), (one.static_power, other.static_power)]
    return all(mine <= theirs for mine, theirs in [*pairs, *zip(one.buffers, other.buffers, strict=True)])


def is_no_better(one: Sequence[float | str], other: Sequence[float | str], orders: Sequence[int]) -> bool:
    """Whether values of axes with such orders are those of a machine that is no better."""
    return all(
        a == b or (order != 0 and not isinstance(a, str) and not isinstance(b, str) and (a - b) * order < 0)
        for a, b, order in zip(one, other, orders, strict=True)
    )
