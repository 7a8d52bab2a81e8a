"""Frozen dataclasses as JSON text and back, checked field by field: the layout of plan files.

Objects are those of :mod:`loadmaster.core.json_object`. Numbers are not negative and fit 64 bits.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from functools import cache
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from loadmaster.core.errors import LoadmasterError, first_errors
from loadmaster.core.json_object import fields_of

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, SchemaSerializer, SchemaValidator, ValidationError

Record = TypeVar("Record")

_LARGEST_INTEGER = 2**63 - 1
"""The largest integer, in value or in length, that a record may hold."""


def record_to_text(record: object, kind: type, levels: Mapping[str, int]) -> str:
    """Return the JSON text of a record of the dataclass ``kind``; the same record gives the same
    text. Raises :class:`ValueError` for numbers that are not finite.

    ``levels`` is, by top-level key, the number of levels whose items get lines of their own; 1 by
    default.
    """
    parts = []
    for name, key, hint, _ in fields_of(kind):
        text = _layout(getattr(record, name), hint, levels.get(key, 1), " ")
        if "NaN" in text or "Infinity" in text:
            json.loads(text, parse_constant=_refuse)
        parts.append(f' "{key}":{text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def parse_object(
    text: str,
    name: str,
    what: str,
    error: type[LoadmasterError],
    constant: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Parse a JSON object; raises ``error`` for anything else, and for repeated keys. Errors call
    the text ``name`` and its expected content ``what``.

    ``constant`` is called for ``NaN`` and infinities, which are not JSON; by default they are
    accepted.
    """
    repeated: list[tuple[object, str]] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object's record; note a key that occurs twice."""
        record = dict(pairs)
        if len(record) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated.append((record, next(key for key in keys if keys.count(key) > 1)))
        return record

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
        if repeated:
            where = _path_to(data, repeated[0][0]) or ()
            raise error(
                f"{name}: {_dotted((*where, repeated[0][1]))}: the key occurs more than once"
            )
    except json.JSONDecodeError as wrong:
        raise error(
            f"{name}: not JSON from line {wrong.lineno}, column {wrong.colno} on: {wrong.msg}"
        ) from wrong
    except RecursionError:
        raise error(f"{name}: not a {what}: nested too deeply") from None
    except ValueError as wrong:
        raise error(f"{name}: not a {what}: a number has too many digits") from wrong
    if not isinstance(data, dict):
        raise error(f"{name}: not a {what}: the file must hold one JSON object")
    return data


def record_from(
    data: Mapping[str, Any], kind: type[Record], name: str, what: str, error: type[LoadmasterError]
) -> Record:
    """Convert a parsed JSON object to a record of the dataclass ``kind``; raises ``error`` that
    names missing, unknown or wrong fields."""
    from pydantic_core import ValidationError

    try:
        record: Record = _validator(cast(Any, kind)).validate_python(data)
    except ValidationError as wrong:
        raise error(f"{name}: {summary(wrong, what)}") from wrong
    return record


def _path_to(data: object, record: object) -> tuple[str | int, ...] | None:
    """Return the path of keys and indices to an object inside parsed JSON."""
    if data is record:
        return ()
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in items:
        if (path := _path_to(value, record)) is not None:
            return (key, *path)
    return None


def _dotted(path: tuple[str | int, ...]) -> str:
    """Format a path such as ``jobs.3.start`` on one line."""
    return ".".join(json.dumps(str(key))[1:-1] for key in path)


def summary(wrong: ValidationError, what: str) -> str:
    """Describe the first few errors of pydantic with the paths of their fields, and count the
    others."""
    # What pydantic calls a tuple is a list in the file.
    return first_errors(
        [
            f"{_dotted(error['loc']) or what}:"
            f" {(error['msg'][:1].lower() + error['msg'][1:]).replace('tuple', 'list')}"
            for error in wrong.errors()
        ]
    )


def _layout(value: Any, kind: Any, levels: int, margin: str) -> str:
    """Return the JSON text of a value of a type, with a line for every item of the first ``levels``
    levels."""
    if levels == 0:
        return _text(value, kind)
    if isinstance(kind, types.UnionType) and value is not None:
        kind = next(argument for argument in get_args(kind) if argument is not type(None))
    inner = margin + " "
    if get_origin(kind) is tuple and value:
        item = get_args(kind)[0]
        lines = (_layout(each, item, levels - 1, inner) for each in value)
        return f"[\n{inner}" + f",\n{inner}".join(lines) + f"\n{margin}]"
    if is_dataclass(kind):
        items = [
            (key, getattr(value, name), hint) for name, key, hint, _ in fields_of(cast(Any, kind))
        ]
    elif get_origin(kind) is Mapping and value:
        items = [(key, each, get_args(kind)[1]) for key, each in value.items()]
    else:
        return _text(value, kind)
    lines = (
        f"{json.dumps(str(key))}:{_layout(each, hint, levels - 1, inner)}"
        for key, each, hint in items
    )
    return f"{{\n{inner}" + f",\n{inner}".join(lines) + f"\n{margin}}}"


def _text(value: Any, kind: Any) -> str:
    """Return a value of a type as JSON on one line."""
    write = _serializer(kind).to_json
    # A scalar of NumPy has the number that it holds in its item().
    return write(value, by_alias=True, warnings=False, fallback=methodcaller("item")).decode()


def _refuse(constant: str) -> None:
    """Refuse a number that is not finite."""
    raise ValueError(f"{constant} is no number that JSON knows")


@cache
def _serializer(kind: Any) -> SchemaSerializer:
    """Return pydantic's serializer of a type."""
    from pydantic_core import SchemaSerializer

    return SchemaSerializer(_schema(kind), {"ser_json_inf_nan": "constants"})


@cache
def _validator(kind: type) -> SchemaValidator:
    """Return pydantic's validator of a record type."""
    from pydantic_core import SchemaValidator

    return SchemaValidator(_schema(kind))


def _schema(kind: Any) -> CoreSchema:
    """Return the pydantic schema of a type: records have exactly their fields; numbers are finite,
    not negative and fit 64 bits."""
    from pydantic_core import core_schema as core

    simple: dict[Any, CoreSchema] = {
        int: core.int_schema(strict=True, ge=0, le=_LARGEST_INTEGER),
        float: core.float_schema(strict=True, ge=0, allow_inf_nan=False),
        bool: core.bool_schema(strict=True),
        # With a limit on the length, pydantic also refuses lone surrogates.
        str: core.str_schema(strict=True, max_length=_LARGEST_INTEGER),
    }
    if kind in simple:
        return simple[kind]
    if is_dataclass(kind):
        return _record_schema(kind)
    if isinstance(kind, EnumType):
        return core.enum_schema(kind, list(kind), sub_type="str")
    arguments = get_args(kind)
    if isinstance(kind, types.UnionType):
        return core.nullable_schema(_schema(arguments[0]))
    if get_origin(kind) is tuple:
        return core.tuple_schema([_schema(arguments[0])], variadic_item_index=0)
    key, value = arguments
    keys = _schema(key)
    if key is int:
        # In the spelling of `record_to_text`.
        digits = core.str_schema(pattern=r"^[1-9][0-9]{0,17}$")
        keys = core.no_info_after_validator_function(int, digits)
    return core.dict_schema(keys, _schema(value))


def _record_schema(kind: Any) -> CoreSchema:
    """Return pydantic's schema of a record type; unknown keys are errors."""
    from pydantic_core import core_schema as core

    hints = get_type_hints(kind)
    columns = []
    for field in fields(kind):
        schema, key = _schema(hints[field.name]), field.metadata.get("key")
        if field.default is not MISSING:
            schema = core.with_default_schema(schema, default=field.default)
        elif field.default_factory is not MISSING:
            schema = core.with_default_schema(schema, default_factory=field.default_factory)
        columns.append(
            core.dataclass_field(field.name, schema, validation_alias=key, serialization_alias=key)
        )
    checked = core.dataclass_args_schema(kind.__name__, columns, extra_behavior="forbid")
    return core.dataclass_schema(
        kind, checked, list(hints), frozen=True, slots=hasattr(kind, "__slots__")
    )
