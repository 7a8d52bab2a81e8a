"""Holds what commands print with ``--json`` to their schemas: the keywords that these use, and no
others."""

import json
from pathlib import Path

import loadmaster.cli

SCHEMAS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(loadmaster.cli.__file__).parent / "schemas").glob("*.json"))
}
KEYWORDS = {
    "description",
    "type",
    "const",
    "enum",
    "anyOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
}
TYPES = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def conforms(name, value):
    """Fail unless an object is what the schema of that name says."""
    assert list(errors(SCHEMAS[name], value)) == []


def errors(schema, value, where="$"):
    """Where a value is not what a schema says, and why."""
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if "anyOf" in schema and all(any(errors(each, value, where)) for each in schema["anyOf"]):
        yield f"{where}: {value!r} is of no kind that is allowed"
    if "type" in schema and not (
        isinstance(value, TYPES[schema["type"]])
        and (schema["type"] == "boolean" or not isinstance(value, bool))
    ):
        yield f"{where}: {value!r} is no {schema['type']}"
    elif isinstance(value, dict):
        yield from _member_errors(schema, value, where)
    elif isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from errors(schema["items"], item, f"{where}[{number}]")


def _member_errors(schema, value, where):
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    yield from (
        f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value
    )
    for name, item in value.items():
        if name in known or isinstance(others, dict):
            yield from errors(known.get(name, others), item, f"{where}.{name}")
        elif not others:
            yield f"{where}: {name} is not documented"


def parts(schema, where):
    """A schema and all that are in it, each with its place."""
    yield where, schema
    for name, each in schema.get("properties", {}).items():
        yield from parts(each, f"{where}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from parts(schema[key], f"{where}.{key}")
    for number, each in enumerate(schema.get("anyOf", ())):
        yield from parts(each, f"{where}.anyOf[{number}]")
