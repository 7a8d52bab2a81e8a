"""Reads hardware descriptions, bundled ones and files, into a
:class:`~loadmaster.targets.hardware.Target`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from loadmaster.core.arguments import require_known, validate_arguments
from loadmaster.core.errors import TargetError
from loadmaster.core.files import why_unreadable
from loadmaster.targets.hardware import Target

_LARGEST_FILE = 2**20


def bundled() -> tuple[str, ...]:
    """Return the names of the bundled targets."""
    return tuple(
        sorted(
            entry.name.removesuffix(".toml")
            for entry in files(__package__).iterdir()
            if entry.name.endswith(".toml")
        )
    )


@validate_arguments(TargetError)
def target(source: str | Path, overrides: str | Iterable[str] = ()) -> Target:
    """Read a target.

    Parameters
    ----------
    source : str or Path
        Name of a bundled target, or a path that ends in ``.toml``.
    overrides : str or iterable of str
        ``"PATH=VALUE"``, one or several, each replacing one field by its dotted path in the file:
        ``"dram.bandwidth=8 GB/s"``, ``"cores.ws.rows=64"`` (a core by its name or its position).

    Raises
    ------
    TargetError
        With the errors of the file at once, each with its path; more than three are counted.
    """
    from loadmaster.targets.overrides import apply_override
    from loadmaster.targets.schema import build_target

    fields = [overrides] if isinstance(overrides, str) else overrides
    label = str(source)
    document = target_document(source)
    applied, problems = [], []
    for override in fields:
        try:
            apply_override(document, override, label)
            applied.append(override)
        except TargetError as error:
            problems.append(str(error))
    _forget_calibration(document, applied)
    try:
        target = build_target(document, label)
    except TargetError as error:
        problems.append(str(error))
    if problems:
        raise TargetError("; ".join(problems))
    return target


def as_target(given: Target | str | Path) -> Target:
    """Return a target; read it if a name or a path is given. Raises `TargetError`."""
    return given if isinstance(given, Target) else target(given)


_NO_COST = frozenset({"alignment", "capacity", "count", "energy", "name", "page", "role"})
"""Fields that do not affect calibrated times."""


def paths_of_times(overrides: Iterable[str]) -> list[str]:
    """Return the paths of the overridden fields that affect calibrated times."""
    paths = (override.partition("=")[0].strip() for override in overrides)
    return [path for path in paths if path.rpartition(".")[2] not in _NO_COST]


def _forget_calibration(document: dict[str, Any], overrides: Iterable[str]) -> None:
    """Drop the calibration if overrides change a fitted core, memory or copy engine."""
    calibration = document.get("calibration")
    if not isinstance(calibration, dict):
        return
    fitted = {
        str(name).partition(".")[0]
        for standing in ("fitted", "bounded")
        for name in calibration.get(standing, [])
    }
    if any(path.partition(".")[0] in fitted for path in paths_of_times(overrides)):
        del document["calibration"]


def target_document(source: str | Path) -> dict[str, Any]:
    """Return the TOML document of a bundled target or a file, unchecked; raises
    :class:`~loadmaster.core.errors.TargetError`."""
    try:
        return tomllib.loads(source_text(source))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TargetError(f"{source}: not valid TOML: {error}") from None


def source_text(source: str | Path) -> str:
    """Return the TOML of a bundled target or of a .toml file; raises
    :class:`~loadmaster.core.errors.TargetError`."""
    path = Path(source)
    if path.suffix != ".toml":
        name = str(source)
        require_known("bundled target", name, bundled(), TargetError, ", or give a .toml file")
        return files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise TargetError(f"{path}: larger than 1 MiB, which no hardware description is")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TargetError(f"{path}: cannot be read: {why_unreadable(path, error)}") from None
    except UnicodeDecodeError:
        raise TargetError(f"{path}: is not text in UTF-8") from None
