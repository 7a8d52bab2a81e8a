"""A sum of regression trees as plain arrays, and the JSON file that holds it; the native core
evaluates it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import Floats, Ints
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
        columns = json.loads(file.read_text())
        if columns.pop("format") != _FORMAT:
            raise ValueError
        root, feature, left, right = (
            np.array(columns[name], dtype=np.int64) for name in Trees._fields[:4]
        )
        threshold, value = (np.array(columns[name], dtype=np.float64) for name in Trees._fields[4:])
        return Trees(root, feature, left, right, threshold, value)
    except OSError as error:
        raise AllocationError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise AllocationError(
            f"{file}: is no model of backtrack targets: make one with python -m"
            " loadmaster.allocation.backtracking.learning"
        ) from None
