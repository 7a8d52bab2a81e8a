"""Plan files: versioned JSON, one record per line, so that people can read, grep, compare and break them by hand.

The layout follows the records of :mod:`loadmaster.planning.plan` field by field; a transfer's ``source`` and ``destination`` are written as
``from`` and ``to``. Reading checks everything that a type can say (names of fields, kinds and ranges of values); whether the plan
holds is for :mod:`loadmaster.verification` to say.
"""

from __future__ import annotations

import json
import os
import secrets
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from loadmaster.core.errors import OutputError, PlanError
from loadmaster.planning.plan import SCHEMA_VERSION, Plan, PlannedTransfer

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator

_KEYS: dict[tuple[Any, str], str] = {(PlannedTransfer, "source"): "from", (PlannedTransfer, "destination"): "to"}
_LEVELS = {"target": 2, "links": 2, "metrics": 2}
"""How many levels below a top-level key get lines of their own; one if not listed."""
_LARGEST = 2**63 - 1
_ERRORS_SHOWN = 3


def write_plan(plan: Plan, path: Path) -> Path:
    """Write a plan as JSON under a temporary name beside ``path``, then rename it, so that readers never see half a file.

    Raises
    ------
    OutputError
        If the file cannot be written; nothing is left behind.
    """
    try:
        _replace(path, plan_to_text(plan).encode())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise OutputError(f"{path}: the plan cannot be written: {reason}") from error
    return path


def read_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises
    ------
    PlanError
        If there is no such file or it is no plan that this version reads: one line that begins with the file's name and names the fields.
    """
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise PlanError(f"{path.name}: not a plan file: byte {error.start} is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"{path.name}: cannot be read from {path.parent}: {reason}") from error
    return plan_from_text(text, path.name)


def plan_to_text(plan: Plan) -> str:
    """JSON text of a plan, one record per line; the same plan gives the same text."""
    data = _writer(Plan)(plan)
    lines = [f" {_compact(key)}: {_layout(value, _LEVELS.get(key, 1), ' ')}" for key, value in data.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def plan_from_text(text: str, name: str) -> Plan:
    """Plan that JSON text describes; ``name`` is what errors call the text.

    Raises
    ------
    PlanError
        If the text is not JSON, is of another version, or has missing, unknown, repeated or wrong fields.
    """
    from pydantic_core import ValidationError

    data = _parsed(text, name)
    version = data.get("version")
    if type(version) is int and version != SCHEMA_VERSION:
        raise PlanError(f"{name}: version: the file has version {version:.6g}, this program reads version {SCHEMA_VERSION}: plan again")
    try:
        plan: Plan = _validator().validate_python(data)
    except ValidationError as error:
        raise PlanError(f"{name}: {_summary(error.errors(include_url=False, include_context=False, include_input=False))}") from error
    return plan


def _replace(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``path`` in one step; devices and pipes are written to directly."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    temporary = path.with_name(f".plan-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _parsed(text: str, name: str) -> dict[str, Any]:
    """JSON object in ``text``, each key once."""
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
            raise PlanError(f"{name}: {_dotted((*where, repeated[0][1]))}: the key occurs more than once")
    except json.JSONDecodeError as error:
        raise PlanError(f"{name}: not JSON from line {error.lineno}, column {error.colno} on: {error.msg}") from error
    except RecursionError:
        raise PlanError(f"{name}: not a plan: nested too deeply") from None
    except ValueError as error:
        raise PlanError(f"{name}: not a plan: a number has too many digits") from error
    if not isinstance(data, dict):
        raise PlanError(f"{name}: not a plan: the file must hold one JSON object")
    return data


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


def _summary(errors: list[ErrorDetails]) -> str:
    """The first few errors, each with the path of its field, and how many more there are."""
    shown = [f"{_dotted(error['loc']) or 'plan'}: {error['msg'][:1].lower()}{error['msg'][1:]}" for error in errors[:_ERRORS_SHOWN]]
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
    """Function that turns values of a type into JSON data; numbers become plain ints and floats, so that equal plans are written alike."""
    if is_dataclass(kind):
        columns = [(_KEYS.get((kind, name), name), name, _writer(hint)) for name, hint in get_type_hints(kind).items()]
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
def _validator() -> SchemaValidator:
    from pydantic_core import SchemaValidator

    return SchemaValidator(_schema(Plan))


def _schema(kind: Any) -> CoreSchema:
    """What pydantic checks for a type: records know their fields and no others, numbers are finite, not negative and fit 64 bits."""
    from pydantic_core import core_schema as core

    simple: dict[Any, CoreSchema] = {
        int: core.int_schema(strict=True, ge=0, le=_LARGEST),
        float: core.float_schema(strict=True, ge=0, allow_inf_nan=False),
        bool: core.bool_schema(strict=True),
        # With a limit on the length pydantic looks at the characters, and refuses halves of surrogate pairs.
        str: core.str_schema(strict=True, max_length=_LARGEST),
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
        columns.append(core.dataclass_field(field.name, schema, validation_alias=_KEYS.get((kind, field.name))))
    checked = core.dataclass_args_schema(kind.__name__, columns, extra_behavior="forbid")
    return core.dataclass_schema(kind, checked, list(hints), frozen=True, slots=hasattr(kind, "__slots__"))


def _whole_number_schema() -> CoreSchema:
    """Integer written as a JSON key, in the one spelling that :func:`plan_to_text` gives it."""
    from pydantic_core import core_schema as core

    return core.no_info_after_validator_function(int, core.str_schema(pattern=r"^[1-9][0-9]{0,17}$"))
