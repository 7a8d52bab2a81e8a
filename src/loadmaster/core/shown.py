"""Answers that show themselves: in one line, as a summary, in a notebook, and as a table of
pandas."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

Status = Literal["optimal", "feasible"]
"""How good an answer is: proven to be the best, or not."""


class DisplayMixin:
    """An answer with a short ``repr``, a summary, a picture for notebooks, and a table.

    A dataclass that inherits from it is made with ``repr=False``. How each class is shown is in
    :mod:`loadmaster.report.notebook`, which is imported when something is shown.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        # By name, because what is shown is drawn by a package that knows all answers.
        return str(import_module("loadmaster.report.notebook").line(self))

    def summary(self) -> str:
        """Return the figures with their bounds as plain text, one a line."""
        return str(import_module("loadmaster.report.notebook").text(self))

    def _repr_html_(self) -> str:
        """Return figures and a picture as HTML, which notebooks show."""
        return str(import_module("loadmaster.report.notebook").html(self))

    def to_pandas(self) -> Any:
        """Return the parts of this answer as a pandas ``DataFrame``, one a row: jobs, buffers,
        stays in the fast memory, or operators.

        Times are seconds, energies joules, sizes bytes.

        Raises
        ------
        MissingPackageError
            If pandas is not installed.
        """
        return import_module("loadmaster.report.notebook").table(self)
