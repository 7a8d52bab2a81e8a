"""Writes a target document, as TOML parsed it, back as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def target_text(document: Mapping[str, Any]) -> str:
    """Return the TOML text of a target document: plain values first, then tables, then arrays of
    tables, each in its order.

    What is inside of a table stays on one line. The same document gives the same text, and reading
    the text gives the document.
    """
    plain, tables = {}, []
    for key, value in document.items():
        if isinstance(value, Mapping):
            tables.append(f"[{_key(key)}]\n{_body(value)}")
        elif isinstance(value, list) and value and all(isinstance(x, Mapping) for x in value):
            tables += [f"[[{_key(key)}]]\n{_body(table)}" for table in value]
        else:
            plain[key] = value
    return "\n".join([_body(plain), *tables])


def _body(table: Mapping[str, Any]) -> str:
    """Return the lines of the keys of a table."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    """Return a key, quoted if necessary."""
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    """Return a TOML string."""
    # JSON's escapes are TOML's, but for characters beyond 16 bits, which need none, and DEL, which
    # does.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
