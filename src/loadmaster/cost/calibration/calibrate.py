"""Fits what a target leaves free to measured times of layers, and says how well: the driver of
``loadmaster calibrate``."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.arrays import Floats, Mask
from loadmaster.core.errors import JobError
from loadmaster.cost.calibration.answer import Calibration, Errors, Fitted, KindErrors, Standing
from loadmaster.cost.calibration.fit import TINY, Design, balanced, design_of, fit, loss_of
from loadmaster.cost.calibration.terms import (
    Machine,
    MeasuredCopy,
    Observations,
    kernels_observed,
    layers_observed,
)
from loadmaster.cost.tables.measured_times_csv import read_timed
from loadmaster.targets.hardware import CopyEngine, Core, Style, Target
from loadmaster.targets.load import target as read_target
from loadmaster.targets.load import target_document
from loadmaster.targets.schema import build_target
from loadmaster.targets.write import target_text
from loadmaster.workloads.graph import Graph

_FOLDS = 5
_NOTICEABLE = 1e-7
"""Difference of the loss by which a figure is told to matter."""
_LIMITS = 0.1
"""Share of a row's time that a figure must be worth to limit it."""
_DIGITS = 6
"""Significant digits of calibrated figures: more than any measurement has."""


@validate_arguments(JobError)
def calibrate(
    target: str | Path, measured: str | Path, network: Graph | None = None
) -> Calibration:
    """Fit a target to measured times: bandwidths, the overhead of a job, and the efficiency of
    every kind of operator.

    Parameters
    ----------
    target
        A bundled target, or a TOML file.
    measured
        A CSV file, see :func:`~loadmaster.cost.tables.measured_times_csv.read_timed`.
    network
        The network whose operators the file names, if it does.

    Returns
    -------
    Calibration
        The calibrated target as TOML, errors before and after, and of layers that the fit had not
        seen: five folds, in which equal work stays together. Figures that the measurements cannot
        tell are as they were, and named.

    Raises
    ------
    JobError
        For measurements that cannot be read or do not suit the target: the message names file and
        line.
    TargetError
        For the target.

    Notes
    -----
    A layer is taken to last ``max(overhead + arithmetic / efficiency, seconds of each memory's
    link)``, as plans have it, first and last tiles besides. Efficiency of an array is at most 1, as
    it cannot be faster than its clock; the peak of a roofline rises if a kind is faster. O(rows x
    figures) for each of some hundred steps.
    """
    document = target_document(target)
    machine = _machine(document, read_target(target))
    kernels, layers = read_timed(measured)
    source = str(measured)
    observe = (
        partial(kernels_observed, timed=kernels, source=source)
        if kernels
        else partial(layers_observed, timed=layers, network=network, source=source)
    )
    found = observe(machine)
    if not found.rows:
        raise JobError(
            f"{source}: no row tells anything of {machine.target.name}:"
            f" {'; '.join(found.skipped) or 'there are copies only'}"
        )
    return _CalibrationRun(document, machine, found, Path(measured), bool(kernels)).answer(observe)


def _machine(document: dict[str, Any], target: Target) -> Machine:
    """Return the target with the cores of each [[cores]] table and the names of the bandwidth
    fields."""
    cores, first = {}, 0
    for table in document["cores"]:
        cores[table["name"]] = target.cores[first]
        first += table.get("count", 1)
    fields = {}
    for name in (memory.name for memory in target.memories):
        ways = ("", "") if "bandwidth" in document[name] else ("read_", "write_")
        fields[name] = f"{name}.{ways[0]}bandwidth", f"{name}.{ways[1]}bandwidth"
    return Machine(target, cores, fields)


@dataclass
class _CalibrationRun:
    """One calibration."""

    document: dict[str, Any]
    machine: Machine
    observed: Observations
    path: Path
    step: bool

    def __post_init__(self) -> None:
        self._stated = _stated(self.machine)
        self._design = design = design_of(self.observed.rows)
        self._all = np.ones(len(design.seconds), dtype=np.bool_)
        self._given = _parameters(self.machine, design)
        # An array is no faster than its clock.
        cores, links = self.machine.cores, [TINY] * len(design.fields)
        slowest = [float(cores[core].style is not Style.ROOFLINE) for core, _ in design.rates]
        self._least = np.array([*slowest, *links, *(0.0 for _ in design.overheads)])

    def answer(self, observe: Callable[[Machine], Observations]) -> Calibration:
        """Fit the target's figures to the measured rows, and return the calibrated file with every
        figure before and after and the errors by kind."""
        found = fit(self._design, self._given, self._least, self._all)
        settled = self._settle(found, self._all)
        copies = self.observed.copies
        figures = [*self._figures(found, settled), *_copies(self.machine.target.copy, copies)]
        # No row tells anything of the others.
        known = {figure.field for figure in figures}
        figures += [
            Fitted(name, value, value, Standing.KEPT, 0)
            for name, value in self._stated.items()
            if name not in known
        ]
        document = _calibrated_document(self.document, self.machine, figures)
        # Absurd times give figures that no target may have.
        machine = _machine(
            document, build_target(document, f"{self.path.name}: the calibrated target")
        )
        # With these figures the model may choose other tilings, which the fit does not know.
        again = design_of(observe(machine).rows)
        kinds = tuple(self._errors(again, again.predicted(_parameters(machine, again))))
        source: dict[str, Any] = {
            "base": self.machine.target.name,
            "measured": self.path.name,
            "sha256": hashlib.sha256(self.path.read_bytes()).hexdigest(),
            "rows": int(self._design.count.sum()) + len(copies),
        }
        overall = kinds[0]
        document["calibration"] = {
            **source,
            "error_before": overall.before.mean,
            "error_after": overall.after.mean,
            **(
                {} if overall.held_out is None else {"error_cross_validated": overall.held_out.mean}
            ),
            **{
                str(standing): [each.field for each in figures if each.standing is standing]
                for standing in Standing
            },
        }
        return Calibration(
            text=target_text(document),
            **source,
            figures=tuple(figures),
            kinds=kinds,
            skipped=self.observed.skipped,
        )

    def _settle(self, found: Floats, rows: Mask) -> Floats:
        """Return the parameters to use: for kernels of one step, balanced so that the sum is right;
        for single layers, those of the fit, in which outliers count little."""
        return balanced(self._design, found, rows) if self.step else found

    def _errors(self, again: Design, after: Floats) -> Iterator[KindErrors]:
        """Yield the errors of all rows, then of each kind in order of total time: before the fit,
        those of ``again`` with the seconds ``after`` it, and on rows held out."""
        design, held_out = self._design, self._held_out()
        before, took = design.predicted(self._given), design.count * design.seconds
        kinds = sorted(
            dict.fromkeys(kind for _, kind in design.rates),
            key=lambda kind: -float(took @ design.of_kind(kind)),
        )
        for kind in ("all", *kinds):
            rows = design.of_kind(kind)
            yield KindErrors(
                kind,
                int(design.count[rows].sum()),
                _distance(design, before, rows),
                _distance(again, after, again.of_kind(kind)),
                None if held_out is None else _distance(design, held_out, rows),
            )

    def _held_out(self) -> Floats | None:
        """Return the seconds of every row as predicted by a fit to the other folds; None if all
        work is equal."""
        design = self._design
        folds = min(_FOLDS, int(design.group.max()) + 1)
        if folds < 2:
            return None
        seconds = np.zeros_like(design.seconds)
        for number in range(folds):
            mine = design.group % folds == number
            found = self._settle(fit(design, self._given, self._least, ~mine), ~mine)
            seconds[mine] = design.predicted(found)[mine]
        return seconds

    def _figures(self, found: Floats, settled: Floats) -> Iterator[Fitted]:
        """Yield the settled figures; their standing is that of the fit's figures."""
        design, cores = self._design, self.machine.cores
        for number, (core, kind) in enumerate(design.rates):
            if design.part(number).any():
                name = f"cores.{core}.efficiency.{kind}"
                before = 1.0 / self._given[number]
                after = 1.0 / max(settled[number], 1e-12)
                yield self._figure(found, number, name, float(before), float(after))
        for number, core in enumerate(design.overheads, design.first_overhead):
            after = max(0.0, float(found[number]) - cores[core].noc_latency)
            name = f"cores.{core}.job_overhead"
            yield self._figure(found, number, name, self._stated[name], after)
        for number, name in enumerate(design.fields, len(design.rates)):
            given = self._stated[name]
            yield self._figure(found, number, name, given, given / float(found[number]))

    def _figure(self, found: Floats, number: int, name: str, before: float, after: float) -> Fitted:
        """Return a figure of the fit. It counts as fitted if both a better and a worse value make
        errors larger, and it differs from before or limits some row."""
        design, value = self._design, float(found[number])
        step = value / 2
        if number >= design.first_overhead:
            step = max(step, 0.1 * float(np.median(design.seconds)))
        better, worse = found.copy(), found.copy()
        better[number], worse[number] = max(0.0, value - step), value + step
        noticed = loss_of(design, found) + _NOTICEABLE
        known = loss_of(design, worse) > noticed and (
            value == 0 or loss_of(design, better) > noticed
        )
        changed = not np.isclose(before, after, rtol=1e-9, atol=0.0)
        limited = 1 - design.predicted(better) / design.predicted(found) > _LIMITS / 2
        layers = len(np.unique(design.group[limited]))
        if not changed and not (known and layers):
            return Fitted(name, before, before, Standing.KEPT, layers)
        standing = Standing.FITTED if known else Standing.BOUNDED
        return Fitted(name, before, _round(after), standing, layers)


def _parameters(machine: Machine, design: Design) -> Floats:
    """Return the parameters of a design that are the machine's own."""
    cores = machine.cores
    rates = [1.0 / cores[core].efficiency.get(kind, 1.0) for core, kind in design.rates]
    overheads = [cores[core].start_up for core in design.overheads]
    return np.array([*rates, *(1.0 for _ in design.fields), *overheads])


def _stated(machine: Machine) -> dict[str, float]:
    """Return bandwidths and overheads as the target states them, by their fields."""
    target = machine.target
    found: dict[str, float] = {}
    for memory in target.memories:
        reading, writing = machine.fields[memory.name]
        found |= {reading: memory.read_bandwidth, writing: memory.write_bandwidth}
    found |= {
        f"cores.{name}.job_overhead": each.job_overhead for name, each in machine.cores.items()
    }
    if target.copy is not None:
        fields = target.copy.fields
        found |= {f"copy.{name}": fields[name] for name in ("to_fast", "to_main")}
    return found


def _distance(design: Design, predicted: Floats, rows: Mask) -> Errors:
    """Return the mean and median relative error of the predicted times, and that of their total."""
    count, seconds = design.count[rows], design.seconds[rows]
    apart = np.repeat(np.abs(np.log(predicted[rows] / seconds)), count)
    total = float(count @ predicted[rows] / (count @ seconds)) - 1
    return Errors(
        _round(np.expm1(apart.mean())),
        _round(np.expm1(np.median(apart))),
        _round(total),
    )


def _copies(engine: CopyEngine | None, copies: Sequence[MeasuredCopy]) -> Iterator[Fitted]:
    """Yield the bandwidths of copies, all bytes over all seconds: small copies are slower per
    byte, and plans predict sums."""
    if engine is None:
        return
    for name in dict.fromkeys(each.field for each in copies):
        these = [each for each in copies if each.field == name]
        rate = sum(each.bytes for each in these) / sum(each.seconds for each in these)
        yield Fitted(f"copy.{name}", engine.fields[name], _round(rate), Standing.FITTED, len(these))


def _round(value: float) -> float:
    """Round to a few significant digits."""
    return float(f"{value:.{_DIGITS}g}")


def _calibrated_document(
    document: dict[str, Any], machine: Machine, figures: Sequence[Fitted]
) -> dict[str, Any]:
    """Return the target's document with calibrated figures."""
    made = copy.deepcopy(document)
    changed = {
        figure.field: figure.after for figure in figures if figure.standing is not Standing.KEPT
    }
    for table in made["cores"]:
        _set_core(table, machine.cores[table["name"]], changed)
    for name, value in changed.items():
        owner, _, field = name.partition(".")
        if owner != "cores":
            made[owner][field] = f"{value / 1e9:.{_DIGITS}g} GB/s"
    made["name"] = f"{document['name'].removesuffix('-calibrated')[:69]}-calibrated"
    return made


def _set_core(table: dict[str, Any], core: Core, changed: dict[str, float]) -> None:
    """Set overhead and efficiencies of a table of cores; the peak of a roofline rises so that no
    efficiency exceeds 1."""
    prefix = f"cores.{table['name']}."
    overhead, share = f"{prefix}job_overhead", f"{prefix}efficiency."
    if overhead in changed:
        table["job_overhead"] = f"{changed[overhead] * 1e6:.{_DIGITS}g} us"
    shares = dict(core.efficiency) | {
        name.removeprefix(share): value for name, value in changed.items() if name.startswith(share)
    }
    most = max([1.0, *shares.values()])
    if most > 1.0:
        # A roofline's clock is the multiply-accumulates of a second.
        table["peak"] = f"{2 * core.clock * most / 1e9:.{_DIGITS}g} GFLOP/s"
    if core.style is Style.ROOFLINE:
        # Measured convolutions took whatever algorithm their library takes: nothing faster is
        # promised on top.
        table.pop("winograd", None)
    if shares:
        table["efficiency"] = {
            kind: min(1.0, _round(share / most)) for kind, share in sorted(shares.items())
        }
