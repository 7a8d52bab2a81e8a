"""Frozen dataclasses as JSON text and back, checked field by field: the layout of plan files.

Objects are those of :mod:`loadmaster.core.json_object`. Numbers are not negative and fit 64 bits.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from functools import cache
from itertools import chain, filterfalse, islice
from json.encoder import encode_basestring
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from loadmaster.core.errors import LoadmasterError
from loadmaster.core.json_object import fields_of

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator

Record = TypeVar("Record")

_LARGEST_INTEGER = 2**63 - 1
"""The largest integer, in value or in length, that a record may hold."""
_ERRORS_SHOWN = 3
"""Most wrong fields that an error names."""


def record_to_text(record: object, kind: type, levels: Mapping[str, int]) -> Iterator[str]:
    """Yield the JSON text of a record of the dataclass ``kind``, one top-level key at a time; the
    same record gives the same text.

    ``levels`` is, by top-level key, the number of levels whose items get lines of their own; 1 by
    default.
    """
    before = "{\n"
    for name, key, hint, _ in fields_of(kind):
        yield f"{before} {_quoted(key)}: "
        yield _layout(getattr(record, name), hint, levels.get(key, 1), " ")
        before = ",\n"
    yield "\n}\n"


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
        found = wrong.errors(include_url=False, include_context=False, include_input=False)
        raise error(f"{name}: {_summary(found, what)}") from wrong
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


def _summary(errors: list[ErrorDetails], what: str) -> str:
    """Describe the first few errors with the paths of their fields, and count the others."""
    shown = [
        f"{_dotted(error['loc']) or what}: {error['msg'][:1].lower()}{error['msg'][1:]}"
        for error in errors[:_ERRORS_SHOWN]
    ]
    more = len(errors) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def _layout(value: Any, kind: Any, levels: int, margin: str) -> str:
    """Return the JSON text of a value of a type, with a line for every item of the first ``levels``
    levels."""
    if isinstance(kind, types.UnionType) and value is not None:
        kind = next(argument for argument in get_args(kind) if argument is not type(None))
    nested = is_dataclass(kind) or get_origin(kind) in (tuple, Mapping)
    if not nested or levels == 0 or not (is_dataclass(kind) or value):
        return next(iter(_writer(kind)([value])))
    inner = margin + " "
    if get_origin(kind) is tuple:
        item, *_ = get_args(kind)
        lines = (
            _writer(item)(value)
            if levels == 1
            else (_layout(each, item, levels - 1, inner) for each in value)
        )
        return f"[\n{inner}" + f",\n{inner}".join(lines) + f"\n{margin}]"
    if is_dataclass(kind):
        known = fields_of(cast(Any, kind))
        items = [(key, getattr(value, name), hint) for name, key, hint, _ in known]
    else:
        items = [(str(key), each, get_args(kind)[1]) for key, each in value.items()]
    lines = (
        f"{_quoted(key)}: {_layout(each, hint, levels - 1, inner)}" for key, each, hint in items
    )
    return f"{{\n{inner}" + f",\n{inner}".join(lines) + f"\n{margin}}}"


def _quoted(text: str) -> str:
    """Return a JSON string."""
    return encode_basestring(str(text))


def _numbers(values: Sequence[float]) -> Iterator[str]:
    """Write floats as :mod:`json` does; raises for values that are not finite."""
    for value in filterfalse(math.isfinite, values):
        raise ValueError(f"{value!r} is no number that JSON knows")
    return map(float.__repr__, map(float, values))


Writer = Callable[[Sequence[Any]], Iterable[str]]
"""A function that converts values of one type to JSON texts of one line each."""


@cache
def _writer(kind: Any) -> Writer:
    """Return the writer for values of a type.

    A writer takes many values at once and converts records field by field, so that :func:`map`
    loops over them.
    """
    simple: dict[Any, Writer] = {
        int: lambda values: map(int.__repr__, map(int, values)),
        float: _once(_numbers),
        bool: lambda values: ["true" if value else "false" for value in values],
        str: _once(lambda values: map(encode_basestring, values)),
    }
    if kind in simple:
        return simple[kind]
    if is_dataclass(kind):
        return _record_writer(kind)
    if isinstance(kind, EnumType):
        return lambda values: map(_quoted, values)
    inner = [
        _writer(argument) for argument in get_args(kind) if argument not in (type(None), Ellipsis)
    ]
    if get_origin(kind) is tuple:
        return _once(_groups_writer(inner[0])) if _is_plain(kind) else _groups_writer(inner[0])
    if get_origin(kind) is Mapping:
        pairs = _groups_writer(
            lambda items: map(
                "{}: {}".format, map(_quoted, _nth(items, 0)), inner[1](_nth(items, 1))
            ),
            "{}",
        )
        return lambda values: pairs([mapping.items() for mapping in values])
    assert isinstance(kind, types.UnionType)
    return lambda values: _with_nulls(values, inner[0])


def _once(write: Writer) -> Writer:
    """Return a writer that converts each distinct value once: times, names and empty lists repeat
    often."""

    def written(values: Sequence[Any]) -> Iterator[str]:
        """Yield texts of values, of which equal ones are written once."""
        distinct = list(dict.fromkeys(values))
        return map(dict(zip(distinct, write(distinct), strict=True)).__getitem__, values)

    return written


def _is_plain(kind: Any) -> bool:
    """Whether values of a type contain no records, which are as slow to hash as to write, and no
    mappings, which cannot be hashed."""
    if get_origin(kind) is tuple:
        return all(_is_plain(argument) for argument in get_args(kind) if argument is not Ellipsis)
    return kind in (int, float, bool, str)


def _record_writer(kind: Any) -> Writer:
    """Return the writer of a record type: JSON objects made column by column from a template."""
    known = fields_of(kind)
    template = (
        "{"
        + ", ".join(f"{_quoted(key)}: ".replace("%", "%%") + "%s" for _, key, _, _ in known)
        + "}"
    )
    columns = [(attrgetter(name), _writer(hint)) for name, _, hint, _ in known]
    return lambda records: map(
        template.__mod__,
        zip(*(write(list(map(value, records))) for value, write in columns), strict=True),
    )


def _groups_writer(write: Writer, brackets: str = "[]") -> Writer:
    """Return a writer of collections whose items another writer converts, all at once."""
    opened, closed = brackets[0], brackets[1]

    def groups(values: Sequence[Collection[Any]]) -> Iterator[str]:
        """Yield texts of collections, whose items are written together."""
        texts = iter(write(list(chain.from_iterable(values))))
        return (f"{opened}{', '.join(islice(texts, len(items)))}{closed}" for items in values)

    return groups


def _with_nulls(values: Sequence[Any], write: Writer) -> Iterator[str]:
    """Write None as null, and other values by another writer."""
    texts = iter(write([value for value in values if value is not None]))
    return ("null" if value is None else next(texts) for value in values)


def _nth(items: Iterable[tuple[Any, Any]], place: int) -> list[Any]:
    """Return one item of each tuple."""
    return [item[place] for item in items]


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
    return core.dict_schema(_whole_number_schema() if key is int else _schema(key), _schema(value))


def _record_schema(kind: Any) -> CoreSchema:
    """Return pydantic's schema of a record type; unknown keys are errors."""
    from pydantic_core import core_schema as core

    hints = get_type_hints(kind)
    columns = []
    for field in fields(kind):
        schema = _schema(hints[field.name])
        if field.default is not MISSING:
            schema = core.with_default_schema(schema, default=field.default)
        elif field.default_factory is not MISSING:
            schema = core.with_default_schema(schema, default_factory=field.default_factory)
        columns.append(
            core.dataclass_field(field.name, schema, validation_alias=field.metadata.get("key"))
        )
    checked = core.dataclass_args_schema(kind.__name__, columns, extra_behavior="forbid")
    return core.dataclass_schema(
        kind, checked, list(hints), frozen=True, slots=hasattr(kind, "__slots__")
    )


def _whole_number_schema() -> CoreSchema:
    """Return the schema of an integer as a JSON key, in the spelling of :func:`record_to_text`."""
    from pydantic_core import core_schema as core

    return core.no_info_after_validator_function(
        int, core.str_schema(pattern=r"^[1-9][0-9]{0,17}$")
    )
