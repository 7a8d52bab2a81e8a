"""A finished plan, with its files: what :func:`loadmaster.plan` returns."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from loadmaster.core.errors import OutputError, PlanError
from loadmaster.core.files import replace_file, why_unreadable
from loadmaster.core.record_json import parse_object, record_from, record_to_text
from loadmaster.planning.plan_records import SCHEMA_VERSION, PlanRecord

_LEVELS = {"target": 2, "links": 2, "metrics": 2}
"""Depth to which these fields of a plan have lines of their own."""


def plan_to_text(plan: PlanRecord) -> str:
    """JSON text of a plan, one record per line; the same plan gives the same text."""
    return record_to_text(plan, PlanRecord, _LEVELS)


def plan_from_text(text: str, name: str) -> Plan:
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
    return record_from(data, Plan, name, "plan", PlanError)


class Plan(PlanRecord):
    """A plan that can be saved, loaded and shown; its fields are those of the record."""

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, atomically; the same plan gives the same bytes.

        Raises
        ------
        OutputError
            If the file cannot be written, or JSON cannot say what the plan holds; nothing is left
            behind.
        """
        path = Path(path)
        try:
            content = plan_to_text(self).encode()
        except ValueError as error:
            raise OutputError(f"{path}: the plan cannot be written: {error}") from error
        return replace_file(path, content, "the plan")

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan file.

        Raises
        ------
        PlanError
            If there is no such file or it is no plan that this version reads: one line that begins
            with the file's path and names the fields.
        """
        path = Path(path)
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise PlanError(
                f"{path}: not a plan file: byte {error.start} is not UTF-8 text"
            ) from error
        except (OSError, ValueError) as error:
            raise PlanError(f"{path}: cannot be read: {why_unreadable(path, error)}") from error
        return plan_from_text(text, str(path))

    def report(self, directory: str | Path) -> list[Path]:
        """Write ``report.html`` and ``trace.json.gz`` into a directory and return their paths."""
        # By name, because pages are drawn by a package that knows plans.
        paths: list[Path] = import_module("loadmaster.report.write").write_report(
            self, Path(directory)
        )
        return paths
