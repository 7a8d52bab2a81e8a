"""A sum of regression trees as plain arrays, and the JSON file that holds it; the native core
evaluates it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.csv_cells import read_text
from loadmaster.core.errors import AllocationError
from loadmaster.core.files import replace_file

_FORMAT = "loadmaster trees 1"


class Trees(NamedTuple):
    """Nodes of all trees: left where ``feature <= threshold``; ``feature`` is -1 at a leaf, and
    children come after their parents."""

    root: Ints
    feature: Ints
    left: Ints
    right: Ints
    threshold: Floats
    value: Floats


def write_trees(file: Path, trees: Trees) -> None:
    """Write a model; raises :class:`~loadmaster.core.errors.OutputError` if that fails."""
    columns = {name: column.tolist() for name, column in trees._asdict().items()}
    replace_file(file, json.dumps({"format": _FORMAT} | columns) + "\n", "the model")


def read_trees(file: Path) -> Trees:
    """Read a model.

    Raises
    ------
    AllocationError
        If the file cannot be read or holds no trees.
    """
    try:
        columns = json.loads(read_text(file, AllocationError))
        if columns.pop("format") != _FORMAT:
            raise ValueError
        kinds: list[Any] = [np.int64] * 4 + [np.float64] * 2
        arrays = zip(Trees._fields, kinds, strict=True)
        return Trees(*(np.array(columns[name], dtype=kind) for name, kind in arrays))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise AllocationError(
            f"{file}: is no model of backtrack targets: make one with python -m"
            " loadmaster.allocation.backtracking.learning"
        ) from None
