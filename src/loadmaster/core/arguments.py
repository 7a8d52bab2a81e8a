"""Checks of arguments: types of values, and known names, with suggestions for misspelt ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, wraps
from inspect import signature
from numbers import Integral, Real
from operator import index
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from loadmaster.core.errors import LoadmasterError, missing

P = ParamSpec("P")
R = TypeVar("R")


def require_known(
    what: str, name: str, known: Iterable[str], error: type[LoadmasterError], otherwise: str = ""
) -> None:
    """Raise ``error`` unless a name is known; ``otherwise`` describes further valid values."""
    names = tuple(known)
    if name not in names:
        raise error(f"there is no {what} {name!r}: {instead(name, names, otherwise)}")


def instead(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return ``"did you mean edge-npu?"`` if a known name is close to ``name``, else a list of the
    known names."""
    names = tuple(known)
    near = get_close_matches(str(name).lower(), names, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return (f"choose one of {', '.join(names)}" if names else "there are none") + otherwise


def validate_arguments(
    error: type[LoadmasterError],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that it raises ``error`` for arguments that are not of the types that
    it is annotated with.

    Booleans are not numbers, and text is no list. If the function needs a package that
    is not installed, the error says how to install it.
    """

    def checked(function: Callable[P, R]) -> Callable[P, R]:
        """Return the function with checks of its arguments."""
        known = signature(function)
        hints = cache(lambda: get_type_hints(function))

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            """Check the arguments by type, make numbers Python's own, then call the function; name
            an uninstalled optional dependency."""
            given = known.bind(*args, **kwargs)
            for name, value in given.arguments.items():
                what, hint = f"{function.__name__}: {name}", hints()[name]
                if Any not in (kinds := _classes(hint)):
                    require_type(value, kinds, what, error)
                    # An iterator would be used up.
                    if get_origin(hint) in _LISTS and isinstance(value, Collection):
                        (kind,) = get_args(hint)
                        what = f"{what}: an item"
                        for item in value if isinstance(kind, type) else ():
                            require_type(item, _classes(kind), what, error)
                    if isinstance(value, Real) and not isinstance(value, bool):
                        value = int(value) if isinstance(value, Integral) else float(value)
                    if name == "seed" and not 0 <= value < 2**63:
                        raise error(f"seed is {value}: give a whole number from 0 to 2^63")
                    given.arguments[name] = value
            try:
                return function(*given.args, **given.kwargs)
            except ModuleNotFoundError as absent:
                raise missing(absent, f"loadmaster.{function.__name__}") from absent

        return call

    return checked


def require_type(value: object, kinds: Any, what: str, error: type[LoadmasterError]) -> None:
    """Raise ``error`` unless a value is of one of the types. Booleans are not numbers."""
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    if (
        not isinstance(value, wanted)
        or (isinstance(value, bool) and not {bool, object} & {*wanted})
        or (isinstance(value, str) and _LISTS & {*wanted} and str not in wanted)
        or (
            getattr(value, "ndim", 1) == 0
            and _LISTS & {*wanted}
            and not {Real, type(value)} & {*wanted}
        )
    ):
        titles = dict.fromkeys(_title(kind) for kind in wanted if kind is not NoneType)
        raise error(f"{what} is {_text_of(value)}: give {' or '.join(titles)}")


_LISTS = {Sequence, Iterable}


@cache
def _classes(hint: Any) -> tuple[Any, ...]:
    """Return the classes that an annotation allows; those of numbers include NumPy's, and paths all
    that stand for one."""
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    wider = {int: Integral, float: Real, Path: PathLike}
    return tuple(wider.get(part, get_origin(part) or part) for part in parts)


def as_whole(value: object) -> int | None:
    """Convert a whole number of any type, such as NumPy's or SymPy's, to a Python int; None for
    anything else, booleans included."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _title(kind: Any) -> str:
    """Return a type's name for messages, with an article."""
    name = kind.__name__
    source = f", from loadmaster.{_SOURCES[name]}" if name in _SOURCES else ""
    return _TITLES.get(kind, f"a {name}{source}")


_SOURCES = {
    "Bank": "Bank",
    "JobAnalysis": "analyse",
    "KernelSequence": "read_sequence",
    "Plan": "plan",
    "Problem": "problem_of",
    "Target": "target",
}
_TITLES: dict[Any, str] = {
    Integral: "a whole number",
    Real: "a number",
    str: "text",
    PathLike: "a path",
    Callable: "a function",
    Iterable: "a list",
    Sequence: "a list",
    Mapping: "a mapping",
    bool: "True or False",
}


def _text_of(value: object) -> str:
    """Return a value and its type for messages; long values by their type alone."""
    text, kind = repr(value), f"of type {type(value).__name__}"
    return kind if len(text) > 60 else f"{text}, {kind}"
