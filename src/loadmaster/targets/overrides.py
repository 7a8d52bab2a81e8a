"""Parses ``--set dram.bandwidth="8 GB/s"`` and replaces the field of a target document at that
dotted path."""

from __future__ import annotations

import tomllib
from typing import Any

from loadmaster.core.arguments import instead, require_type
from loadmaster.core.errors import TargetError

_OPTIONAL = frozenset(("copy", "efficiency", "energy"))
"""Tables that a file may lack."""


def apply_override(document: dict[str, Any], override: str, label: str) -> None:
    """Apply ``"PATH=VALUE"`` to a parsed target file, in place; the schema finds unknown fields
    later."""
    require_type(override, str, "an override", TargetError)
    path, separator, text = override.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not separator or not all(keys):
        raise TargetError(f"--set {override!r}: write PATH=VALUE, such as dram.bandwidth=8GB/s")
    place: Any = document
    for depth, key in enumerate(keys[:-1]):
        place = _descend(place, key, f"{label}: --set {override!r}", ".".join(keys[:depth]))
    if not isinstance(place, dict):
        raise TargetError(f"{label}: --set {override!r}: {'.'.join(keys[:-1])} has no fields")
    inside = document.get(keys[0]) if len(keys) == 1 else None
    if isinstance(inside, dict | list):
        example = "0.count" if isinstance(inside, list) else next(iter(inside), "FIELD")
        raise TargetError(
            f"{label}: --set {override!r}: {keys[0]} is a table: name one of its fields, such as"
            f" {keys[0]}.{example}"
        )
    place[keys[-1]] = _value(text.strip())


def _descend(place: Any, key: str, where: str, parent: str) -> Any:
    """Return the table or list entry ``key`` of a table; entries go by name or number. Raise
    TargetError with the known keys."""
    known: list[str] = []
    if isinstance(place, dict):
        if key in _OPTIONAL:
            return place.setdefault(key, {})
        if key in place:
            return place[key]
        known = [name for name, value in place.items() if isinstance(value, dict | list)]
    if isinstance(place, list):
        names = [
            entry.get("name", str(i)) if isinstance(entry, dict) else str(i)
            for i, entry in enumerate(place)
        ]
        if key in names:
            return place[names.index(key)]
        if key.isdecimal() and int(key) < len(place):
            return place[int(key)]
        raise TargetError(f"{where}: {parent} has no {key!r}: {instead(key, map(str, names))}")
    raise TargetError(f"{where}: there is no table {key!r}: {instead(key, known)}")


def _value(text: str) -> Any:
    """Parse the text as a TOML value (numbers, booleans, quoted text), else return it as it is, so
    that units need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
