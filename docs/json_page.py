"""Makes the JSON Schemas of what commands print from its types, and docs/reference/json.md from
these: python docs/json_page.py

A field is described by the docstring below it, and an object by that of its type.
"""

from __future__ import annotations

import ast
import inspect
import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import EnumType
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from loadmaster.core.json_object import fields_of
from loadmaster.planning.plan_records import SCHEMA_VERSION, PlanRecord

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "src" / "loadmaster"
SCHEMAS = PACKAGE / "cli" / "schemas"
PLAN_FILE = PACKAGE / "planning" / "plan.schema.json"
TYPES = {
    "allocate-from": ("allocate --from", "integrations.dumps.compare:ArenasJson"),
    "allocate-memories": (
        "allocate --memory",
        "allocation.memories.problem:BankAllocationJson",
    ),
    "allocate": ("allocate", "integrations.tflite.export_json:AllocateJson"),
    "calibrate": ("calibrate", "cost.calibration.answer:CalibrationJson"),
    "export-iree": ("export iree", "integrations.iree.export:ProgramJson"),
    "export-tflite": ("export tflite", "integrations.tflite.export_json:ExportJson"),
    "generate": (
        "run --generate",
        "integrations.torch_compile.compare.run_json:GenerationJson",
    ),
    "inspect": ("inspect", "report.inspection:InspectionJson"),
    "map-front": ("map --objective A,B", "mapping.answer:FrontJson"),
    "map": ("map", "mapping.answer:MapJson"),
    "place": ("place", "placement.answer:PlaceJson"),
    "plan": ("plan", "report.plan_json:PlanJson"),
    "profile": ("profile", "cli.commands.profile:ProfileJson"),
    "report": ("report", "report.comparison:ComparisonJson"),
    "run": ("run", "integrations.torch_compile.compare.run_json:RunJson"),
    "size": ("size", "planning.sweep.size:SizeJson"),
    "sweep": ("plan --sweep", "planning.sweep.design_space:SweepJson"),
    "targets": ("targets", "cli.commands.targets:TargetsJson"),
    "verify": ("verify", "integrations.execute.execution:VerifyJson"),
}
"""By the name of a schema the command whose object it describes, and the object's type."""
VERSION, FILES = "Version of this object.", "Paths of the files that were written."
"""Descriptions of the fields that every object has beside those of its type."""
PAGE = DOCS / "reference" / "json.md"
HEAD = """\
# JSON

What every command prints with `--json`. Each object has a type in the code, and is made from it.
Its [JSON Schema](https://json-schema.org), a file of the package (`src/loadmaster/cli/schemas`),
and this page are made from the type too, and the tests hold the commands to the schema:

```python
import json
from importlib.resources import files

schema = json.loads(files("loadmaster").joinpath("cli/schemas/plan.json").read_text())
assert schema["properties"]["version"]["const"] == 2
```

## What can be relied on

Each object has a `version` of its own. A field that is removed, renamed, or means something else
raises it; a new field does not, so a
reader should pass over fields that it does not know. The schemas name every field, and refuse
others: take the schema of the
Loadmaster that printed. Texts for people, such as reasons and remarks, may change at any time.

Figures are in seconds, bytes, joules, operations per second and bytes per second, without prefixes.
`null` stands for a figure that is not
known. Times of a plan are estimates as far as `costs` says so. `optimal` and lower bounds are
proven, under those costs.

`mapping.json`, `placement.json`, `network.json`, `run.json`, `generate.json`, `sweep.json` and
`size.json` of `--out` hold the same
objects without `files`, and `mapping.json` without what the command adds to the mapping.
[plan.json](../plan-format.md) has a format and
a version of its own, and a schema as well ([below](#planjson)).

## Names

`makespan` is what a plan takes, `seconds` and `cpu_seconds` are what the command took,
`lower_bound` is proven, `peak` is the highest
address in use, `capacity` the bytes that may be used, `violations` what a check found wrong,
`files` what was written. `latency`,
`start`, `end`, `release` and `lateness` are in seconds too. Where a name differs, so does what it
stands for:

- `step_seconds` in `run` are measured, not planned. Its `budget` is what was asked for, and
  `planned_peak`, `measured_peak` and
  `unmoved_peak` are three different peaks.
- `head` in `export tflite` is TensorFlow Lite for Microcontrollers' word for the part of the arena
  that is planned.
- `limit` in `map` says in words what the bound rests on; `limits` in `size` and `plan --sweep` are
  what a plan must reach.
- `inputs`, `jobs` and `memories` are counts, lists or objects, as each command has them.
- A figure of a plan with a bound is an object: `value`, and `lower_bound` of what should be small
  or `upper_bound` of what should be large.
- `frames_per_second` is of one network, that with the fewest where there are several;
  `inferences_per_second` is of all networks together.
- `network` is a name; `model` and `file` are paths.
- `fallbacks` of `run` say which graph fell back and why; those of `run --generate` are texts.
"""


def schemas() -> dict[Path, dict[str, Any]]:
    """Return the schema of every type by its file."""
    found = {}
    for name, (command, home) in TYPES.items():
        module, _, type_name = home.partition(":")
        kind = getattr(import_module(f"loadmaster.{module}"), type_name)
        own = json_schema(kind)
        version = {"description": VERSION, "const": kind.VERSION}
        files = {"description": FILES} | json_schema(Sequence[str])
        own["properties"] = {"version": version, **own["properties"], "files": files}
        own["required"] = ["version", *own["required"], "files"]
        found[SCHEMAS / f"{name}.json"] = _titled(f"loadmaster {command} --json", kind, own)
    plan = json_schema(PlanRecord)
    description = plan["properties"]["version"]["description"]
    plan["properties"]["version"] = {"description": description, "const": SCHEMA_VERSION}
    return found | {PLAN_FILE: _titled("plan.json", PlanRecord, plan)}


def text(schema: dict[str, Any]) -> str:
    """Return a schema as it is written to its file."""
    return json.dumps(schema, indent=1) + "\n"


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of what `loadmaster.core.json_object` makes of a type."""
    simple: dict[Any, dict[str, Any]] = {
        int: {"type": "integer"},
        float: {"type": "number"},
        bool: {"type": "boolean"},
        str: {"type": "string"},
        types.NoneType: {"type": "null"},
    }
    if kind in simple:
        return simple[kind]
    if is_dataclass(kind):
        known = fields_of(kind)
        return {
            "type": "object",
            "properties": {
                key: {"description": described(kind, name)} | json_schema(hint)
                for name, key, hint, _ in known
            },
            "required": [key for _, key, _, default in known if not default],
            "additionalProperties": False,
        }
    if isinstance(kind, EnumType):
        return {"enum": list(map(str, kind.__members__.values()))}
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return {"enum": list(arguments)}
    if isinstance(kind, types.UnionType):
        return {"anyOf": [json_schema(each) for each in arguments]}
    if get_origin(kind) is Mapping:
        return {"type": "object", "additionalProperties": json_schema(arguments[1])}
    return {"type": "array", "items": json_schema(arguments[0])}


def described(kind: type, name: str) -> str:
    """Return the docstring below a field of a class, or of one that it inherits from."""
    for base in kind.__mro__[:-1]:
        if name in _docstrings(base):
            return _docstrings(base)[name]
    raise LookupError(f"{kind.__name__}.{name}: write a docstring below this field")


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """Docstrings of the fields that a class defines."""
    body = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body[0].body
    return {
        field.target.id: " ".join(doc.value.value.split())
        for field, doc in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
    }


def _titled(title: str, kind: type, schema: dict[str, Any]) -> dict[str, Any]:
    draft = "https://json-schema.org/draft/2020-12/schema"
    about = " ".join(inspect.getdoc(kind).partition("\n\n")[0].split())
    return {"$schema": draft, "title": title, "description": about} | schema


def page(found: Iterable[dict[str, Any]]) -> str:
    """Return the page of some schemas: what holds for all objects, then a table for each."""
    return "\n".join([HEAD, *map(_section, found)])


def _section(schema: dict[str, Any]) -> str:
    lines = [f"| `{name}` | {kind} | {text} |" for name, kind, text in _rows(schema, "")]
    return "\n".join(
        [
            f"## `{schema['title']}`",
            "",
            schema["description"],
            "",
            "| field | type | meaning |",
            "|---|---|---|",
            *lines,
            "",
        ]
    )


def _rows(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Fields of an object and of what is in it: `[]` stands for an item of a list, `{}` for a name
    of the plan's own."""
    for name, part in schema.get("properties", {}).items():
        needed = "" if name in schema["required"] else ", not always there"
        yield f"{prefix}{name}", _kind(part) + needed, part["description"].replace("|", "\\|")
        yield from _inner(part, f"{prefix}{name}")


def _inner(part: dict[str, Any], name: str) -> Iterator[tuple[str, str, str]]:
    yield from _rows(part, f"{name}.")
    for key, mark in (("items", "[]"), ("additionalProperties", ".{}")):
        if isinstance(part.get(key), dict):
            yield from _inner(part[key], f"{name}{mark}")
    for each in part.get("anyOf", ()):
        yield from _inner(each, name)


def _kind(part: dict[str, Any]) -> str:
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "anyOf" in part:
        return " or ".join(_kind(each) for each in part["anyOf"])
    return str(part["type"])


if __name__ == "__main__":
    made = schemas()
    for file, schema in made.items():
        file.write_text(text(schema), encoding="utf-8")
    PAGE.write_text(page(made.values()), encoding="utf-8")
