"""A finished plan, with its files: what :func:`loadmaster.plan` returns."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TypeVar

from loadmaster.core.errors import OutputError, PlanError
from loadmaster.core.files import replace_file, why_unreadable
from loadmaster.core.record_json import parse_object, record_from, record_to_text
from loadmaster.planning.plan_records import SCHEMA_VERSION, PlanRecord

AnyPlan = TypeVar("AnyPlan", bound=PlanRecord)

_LEVELS = {"target": 2, "links": 2, "metrics": 2}
"""Depth to which these fields of a plan have lines of their own."""


def write_plan(plan: PlanRecord, path: Path) -> Path:
    """Write a plan as JSON.

    Raises
    ------
    OutputError
        If the file cannot be written, or JSON cannot say what the plan holds; nothing is left
        behind.
    """
    try:
        content = plan_to_text(plan).encode()
    except ValueError as error:
        raise OutputError(f"{path}: the plan cannot be written: {error}") from error
    return replace_file(path, content, "the plan")


def read_plan(path: Path, kind: type[AnyPlan]) -> AnyPlan:
    """Read a plan file as a record of ``kind``.

    Raises
    ------
    PlanError
        If there is no such file or it is no plan that this version reads: one line that begins with
        the file's path and names the fields.
    """
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: not a plan file: byte {error.start} is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read: {why_unreadable(path, error)}") from error
    return plan_from_text(text, str(path), kind)


def plan_to_text(plan: PlanRecord) -> str:
    """JSON text of a plan, one record per line; the same plan gives the same text."""
    return record_to_text(plan, PlanRecord, _LEVELS)


def plan_from_text(text: str, name: str, kind: type[AnyPlan]) -> AnyPlan:
    """Plan that JSON text describes; ``name`` is what errors call the text.

    Raises
    ------
    PlanError
        If the text is not JSON, is of another version, or has missing, unknown, repeated or wrong
        fields.
    """
    data = parse_object(text, name, "plan", PlanError)
    version = data.get("version")
    if type(version) is int and version != SCHEMA_VERSION:
        raise PlanError(
            f"{name}: version: the file has version {version:.6g}, this program reads version"
            f" {SCHEMA_VERSION}: plan again"
        )
    return record_from(data, kind, name, "plan", PlanError)


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
        """Write ``report.html`` and ``trace.json.gz`` into a directory and return their paths."""
        # By name, because pages are drawn by a package that knows plans.
        paths: list[Path] = import_module("loadmaster.report.write").write_report(
            self, Path(directory)
        )
        return paths
