"""Frozen dataclasses as JSON and back, checked field by field: the layout of plan files.

A record is an object whose keys are the names of its fields; ``field(metadata={"key": ...})`` writes a field under another key. Numbers
are not negative and fit 64 bits.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from loadmaster.core.errors import LoadmasterError

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator

Record = TypeVar("Record")

_LARGEST_INTEGER = 2**63 - 1
"""The largest integer, in value or in length, that a record may hold."""
_ERRORS_SHOWN = 3
"""Wrong fields that an error names before it only counts."""


def record_to_text(record: object, kind: type, levels: Mapping[str, int]) -> str:
    """JSON text of a record of a dataclass ``kind``; the same record gives the same text.

    ``levels`` says how many levels below a top-level key get lines of their own; one if it is not listed.
    """
    data = _writer(kind)(record)
    lines = [f" {_compact(key)}: {_layout(value, levels.get(key, 1), ' ')}" for key, value in data.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def parse_object(text: str, name: str, what: str, error: type[LoadmasterError]) -> dict[str, Any]:
    """JSON object in a text that errors call ``name`` and that should be ``what``, each key once; raises ``error`` otherwise."""
    repeated: list[tuple[object, str]] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated.append((record, next(key for key in keys if keys.count(key) > 1)))
        return record

    try:
        data = json.loads(text, object_pairs_hook=unique)
        if repeated:
            where = _path_to(data, repeated[0][0]) or ()
            raise error(f"{name}: {_dotted((*where, repeated[0][1]))}: the key occurs more than once")
    except json.JSONDecodeError as wrong:
        raise error(f"{name}: not JSON from line {wrong.lineno}, column {wrong.colno} on: {wrong.msg}") from wrong
    except RecursionError:
        raise error(f"{name}: not a {what}: nested too deeply") from None
    except ValueError as wrong:
        raise error(f"{name}: not a {what}: a number has too many digits") from wrong
    if not isinstance(data, dict):
        raise error(f"{name}: not a {what}: the file must hold one JSON object")
    return data


def record_from(data: Mapping[str, Any], kind: type[Record], name: str, what: str, error: type[LoadmasterError]) -> Record:
    """Record of a dataclass ``kind`` from a parsed JSON object; raises ``error`` naming missing, unknown or wrong fields."""
    from pydantic_core import ValidationError

    try:
        record: Record = _validator(cast(Any, kind)).validate_python(data)
    except ValidationError as wrong:
        raise error(f"{name}: {_summary(wrong.errors(include_url=False, include_context=False, include_input=False), what)}") from wrong
    return record


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of what :func:`record_to_text` writes of a type, without descriptions; fields that have a default are written too."""
    simple: dict[Any, dict[str, Any]] = {
        int: {"type": "integer"},
        float: {"type": "number"},
        bool: {"type": "boolean"},
        str: {"type": "string"},
    }
    if kind in simple:
        return simple[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        parts = {field.metadata.get("key", field.name): json_schema(hints[field.name]) for field in fields(kind)}
        return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    if isinstance(kind, EnumType):
        return {"enum": list(map(str, kind.__members__.values()))}
    arguments = get_args(kind)
    if isinstance(kind, types.UnionType):
        return {"anyOf": [json_schema(arguments[0]), {"type": "null"}]}
    if get_origin(kind) is tuple:
        return {"type": "array", "items": json_schema(arguments[0])}
    return {"type": "object", "additionalProperties": json_schema(arguments[1])}


def _path_to(data: object, record: object) -> tuple[str | int, ...] | None:
    """Keys and indices that lead to an object inside parsed JSON."""
    if data is record:
        return ()
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        if (path := _path_to(value, record)) is not None:
            return (key, *path)
    return None


def _dotted(path: tuple[str | int, ...]) -> str:
    """Path such as ``jobs.3.start``, on one line whatever the keys hold."""
    return ".".join(json.dumps(str(key))[1:-1] for key in path)


def _summary(errors: list[ErrorDetails], what: str) -> str:
    """The first few errors, each with the path of its field, and how many more there are."""
    shown = [f"{_dotted(error['loc']) or what}: {error['msg'][:1].lower()}{error['msg'][1:]}" for error in errors[:_ERRORS_SHOWN]]
    more = len(errors) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def _layout(value: Any, levels: int, margin: str) -> str:
    """JSON text in which every item of the first ``levels`` levels has a line of its own."""
    if levels == 0 or not value or not isinstance(value, dict | list):
        return _compact(value)
    inner = margin + " "
    if isinstance(value, dict):
        lines = [f"{inner}{_compact(key)}: {_layout(item, levels - 1, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{margin}}}"
    return "[\n" + ",\n".join(inner + _layout(item, levels - 1, inner) for item in value) + f"\n{margin}]"


_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@cache
def _writer(kind: Any) -> Callable[[Any], Any]:
    """Function that turns values of a type into JSON data; numbers become plain ints and floats, so that equal values are written alike."""
    if is_dataclass(kind):
        keys = {field.name: field.metadata.get("key", field.name) for field in fields(kind)}
        columns = [(keys[name], name, _writer(hint)) for name, hint in get_type_hints(kind).items()]
        return lambda record: {key: write(getattr(record, name)) for key, name, write in columns}
    inner = [_writer(argument) for argument in get_args(kind) if argument not in (type(None), Ellipsis)]
    if get_origin(kind) is tuple:
        return lambda values: [inner[0](value) for value in values]
    if get_origin(kind) is Mapping:
        return lambda mapping: {str(key): inner[1](value) for key, value in mapping.items()}
    if isinstance(kind, types.UnionType):
        return lambda value: None if value is None else inner[0](value)
    plain: type = str if isinstance(kind, EnumType) else kind
    return plain


@cache
def _validator(kind: type) -> SchemaValidator:
    from pydantic_core import SchemaValidator

    return SchemaValidator(_schema(kind))


def _schema(kind: Any) -> CoreSchema:
    """What pydantic checks for a type: records know their fields and no others, numbers are finite, not negative and fit 64 bits."""
    from pydantic_core import core_schema as core

    simple: dict[Any, CoreSchema] = {
        int: core.int_schema(strict=True, ge=0, le=_LARGEST_INTEGER),
        float: core.float_schema(strict=True, ge=0, allow_inf_nan=False),
        bool: core.bool_schema(strict=True),
        # With a limit on the length pydantic looks at the characters, and refuses halves of surrogate pairs.
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
    return core.dict_schema(_whole_number_schema() if key is int else _schema(key), _schema(value))


def _record_schema(kind: Any) -> CoreSchema:
    from pydantic_core import core_schema as core

    hints = get_type_hints(kind)
    columns = []
    for field in fields(kind):
        schema = _schema(hints[field.name])
        if field.default is not MISSING:
            schema = core.with_default_schema(schema, default=field.default)
        elif field.default_factory is not MISSING:
            schema = core.with_default_schema(schema, default_factory=field.default_factory)
        columns.append(core.dataclass_field(field.name, schema, validation_alias=field.metadata.get("key")))
    checked = core.dataclass_args_schema(kind.__name__, columns, extra_behavior="forbid")
    return core.dataclass_schema(kind, checked, list(hints), frozen=True, slots=hasattr(kind, "__slots__"))


def _whole_number_schema() -> CoreSchema:
    """Integer written as a JSON key, in the one spelling that :func:`record_to_text` gives it."""
    from pydantic_core import core_schema as core

    return core.no_info_after_validator_function(int, core.str_schema(pattern=r"^[1-9][0-9]{0,17}$"))
