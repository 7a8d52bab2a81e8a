"""JSON objects of records, by their type annotations, as commands print them.

A record is a frozen dataclass. Its object has the names of its fields as keys;
``field(metadata={"key": ...})`` writes a field under another key.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

ABSENT: Any = object()
"""The default of a field that is not always there: :func:`json_of` leaves it out."""


def json_of(value: Any, kind: Any, /, **given: object) -> dict[str, Any]:
    """Convert ``value`` to a JSON object with the fields of the dataclass ``kind``.

    A field comes from ``given``, or else from the attribute (of a dictionary: the key) of that name
    in ``value``. If a type allows None, a number that is not finite becomes None. If it allows
    several records, dictionaries are taken as JSON.
    """
    known = {**value, **given} if isinstance(value, dict) else given
    found = {}
    for name, key, hint, default in fields_of(kind):
        part = known[key] if key in known else getattr(value, name, *default)
        if part is not ABSENT:
            found[key] = _plain(part, hint)
    return found


def _plain(value: Any, kind: Any) -> Any:
    """Return a value of an annotated type as JSON: records as objects, floats that may be null as
    null where not finite."""
    if is_dataclass(kind):
        return json_of(value, kind)
    arguments = get_args(kind)
    if value is None or isinstance(value, str) or not arguments:
        return value
    if isinstance(kind, types.UnionType):
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value if isinstance(value, dict) else _plain(value, arguments[0])
    if isinstance(value, Mapping):
        return {str(key): _plain(each, arguments[1]) for key, each in value.items()}
    return [_plain(each, arguments[0]) for each in value]


@cache
def fields_of(kind: Any) -> list[tuple[str, str, Any, tuple[Any, ...]]]:
    """Name, key, type and default (`ABSENT` for optional fields) of every field of a record."""
    hints = get_type_hints(kind)
    return [
        (
            field.name,
            field.metadata.get("key", field.name),
            hints[field.name],
            (ABSENT,) * (field.default is ABSENT),
        )
        for field in fields(kind)
    ]
