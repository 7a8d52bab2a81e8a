"""A finished plan, with its files: what :func:`loadmaster.plan` returns."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from loadmaster.planning.plan_json import read_plan, write_plan
from loadmaster.planning.plan_records import PlanRecord


class Plan(PlanRecord):
    """A plan that can be saved, loaded and shown; its fields are those of the record."""

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, atomically; the same plan gives the same bytes."""
        return write_plan(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan file; raises :class:`~loadmaster.core.errors.PlanError` naming the field at
        fault."""
        return read_plan(Path(path), Plan)

    def report(self, directory: str | Path) -> list[Path]:
        """Write ``report.html`` and ``trace.pftrace`` into a directory and return their paths."""
        # By name, because pages are drawn by a package that knows plans.
        paths: list[Path] = import_module("loadmaster.report.write").write_report(
            self, Path(directory)
        )
        return paths
