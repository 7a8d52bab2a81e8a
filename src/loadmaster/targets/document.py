"""Converts a target to the document that describes it, in which single fields can be changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from loadmaster.core.json_object import json_of
from loadmaster.targets.hardware import COPY_FIELDS, ESTIMATED, Core, Memory, Style, Target
from loadmaster.targets.load import paths_of_times
from loadmaster.targets.overrides import apply_override
from loadmaster.targets.schema import BITS, build_target


def with_fields(target: Target, overrides: Sequence[str]) -> Target:
    """Return the target with some fields replaced: ``"PATH=VALUE"`` as for
    :func:`loadmaster.target`.

    A calibration is dropped if a core, bandwidth or copy engine changes: costs are then estimated.

    Raises
    ------
    TargetError
        If there is no such field, or the value is not valid for it.
    """
    if not overrides:
        return target
    document = document_of(target)
    for override in overrides:
        apply_override(document, override, target.name)
    provenance = ESTIMATED if paths_of_times(overrides) else target.provenance
    return replace(build_target(document, target.name), provenance=provenance)


def document_of(target: Target) -> dict[str, Any]:
    """Return a document that gives the target when it is read; all figures are in units without
    prefixes, and rates name theirs, without which small ones are refused.

    What equals the field that it defaults to is left out, so that it changes with that."""
    document: dict[str, Any] = {
        "name": target.name,
        "description": target.description,
        "static_power": target.static_power,
    }
    for memory, role in zip(target.memories, ("main", "fast"), strict=False):
        document[memory.name] = {"role": role, **_memory(memory)}
    if target.copy is not None:
        rates = target.copy.fields
        rates = {
            name: rate
            for name, rate in rates.items()
            if name == (own := name.removeprefix("asynchronous_")) or rate != rates[own]
        }
        document["copy"] = _known({**rates, "shared": target.copy.shared})
    document["cores"] = list(_cores(target.cores))
    return document


_RATES = {"clock": "Hz"} | dict.fromkeys(
    ("read_bandwidth", "write_bandwidth", "noc_bandwidth", "weight_loading", *COPY_FIELDS), "B/s"
)
"""Units of fields that are rates."""


def _known(shown: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not None; rates with their units."""
    return {
        name: f"{value!r} {_RATES[name]}" if name in _RATES else value
        for name, value in shown.items()
        if value is not None
    }


def _memory(memory: Memory) -> dict[str, Any]:
    """Return a memory's table, with one bandwidth if both are equal."""
    shown = _known(json_of(memory, Memory))
    del shown["name"]
    if memory.read_bandwidth == memory.write_bandwidth:
        shown["bandwidth"] = shown.pop("read_bandwidth")
        del shown["write_bandwidth"]
    return shown


def _cores(cores: Sequence[Core]) -> Iterator[dict[str, Any]]:
    """Yield tables of cores; cores that differ only in the number at the end of their names are one
    table with a count."""
    at = 0
    while at < len(cores):
        stem = cores[at].name.removesuffix("0")
        alike = 0
        while at + alike < len(cores) and cores[at + alike] == replace(
            cores[at], name=f"{stem}{alike}"
        ):
            alike += 1
        name = stem if alike > 1 else cores[at].name
        yield _core(replace(cores[at], name=name), max(1, alike))
        at += max(1, alike)


def _core(core: Core, count: int) -> dict[str, Any]:
    """Return a core's table, with fields as target files have them."""
    shown = {"name": core.name, "count": count, **_known(json_of(core, Core))}
    if core.style is Style.ROOFLINE:
        shown["peak"] = f"{2 * core.clock!r} FLOP/s"
        del shown["clock"], shown["flexible"], shown["noc_latency"]
    if core.lanes == core.columns:
        del shown["lanes"]
    names = {bits: name for name, bits in BITS.items()}
    rates = {names[bits]: rate for bits, rate in core.macs_per_cycle.items()}
    return shown | {"macs_per_cycle": rates}
