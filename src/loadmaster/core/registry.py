"""Lazy imports: registries of strategies and the like by name, and the display of answers."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from loadmaster.core.arguments import require_known
from loadmaster.core.errors import LoadmasterError, package

Status = Literal["optimal", "feasible"]
"""How good an answer is: proven to be the best, or not."""


class DisplayMixin:
    """A mixin of answers: a short ``repr``, a summary, HTML for notebooks, and a table.

    A dataclass that inherits from it needs ``repr=False``. The display of each class is in
    :mod:`loadmaster.report.notebook`, which is imported when something is shown.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        # Imported by name, because the package that draws answers depends on all of them.
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


Entry = TypeVar("Entry")

_FIRST = "auto"
"""The entry that is listed first, if it exists."""


@dataclass(frozen=True)
class Registry(Generic[Entry]):
    """Entries of a package: the values that its modules assign to one attribute.

    An entry has the name of its file, with hyphens for underscores, or the module's constant
    ``NAME``. Adding a file to the package adds an entry. Files are searched once, in time linear in
    their size, and imported only when an entry is used.

    Parameters
    ----------
    package : str
        Dotted name of the package.
    attribute : str
        Name of the attribute, such as ``STRATEGY``.
    kind : str
        What errors call an entry, such as "strategy".
    error : type
        Raised for an unknown name.
    otherwise : str
        Further valid values, for errors.
    """

    package: str
    attribute: str
    kind: str
    error: type[LoadmasterError]
    otherwise: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all entries: ``auto`` first, then in alphabetical order."""
        return tuple(self._modules)

    def find(self, name: str) -> Entry:
        """Import an entry. Raises the registry's error, with a suggestion, for an unknown name."""
        modules = self._modules
        require_known(self.kind, name, modules, self.error, self.otherwise)
        return cast(
            Entry,
            getattr(
                package(f"{self.package}.{modules[name].stem}", f"{self.kind} {name!r}"),
                self.attribute,
            ),
        )

    def summaries(self) -> dict[str, str]:
        """The first sentence of the docstring of every entry's module, by the entry's name."""
        return {name: _summary(file) for name, file in self._modules.items()}

    @property
    def _modules(self) -> dict[str, Path]:
        """The files of the modules that register something, by name."""
        return _modules_of(tuple(import_module(self.package).__path__), self.attribute)


@cache
def _modules_of(folders: Sequence[str], attribute: str) -> dict[str, Path]:
    """Files of the modules of some folders that assign an attribute, by entry name.

    Files are searched line by line, because parsing them would delay ``--help``.
    """
    assigned = re.compile(rf"^{attribute}\b[^=\n]*=", re.MULTILINE)
    named = re.compile(r'^NAME = "(.+)"$', re.MULTILINE)
    found: dict[str, Path] = {}
    for path in (path for folder in folders for path in Path(folder).glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if assigned.search(source):
            name = named.search(source)
            found.setdefault(name[1] if name else path.stem.replace("_", "-"), path)
    return dict(sorted(found.items(), key=lambda item: (item[0] != _FIRST, item[0])))


def _summary(path: Path) -> str:
    """Return the first sentence of a module's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
    sentence = re.match(r".*?\.(?= [A-Z`]|$)", text)
    return sentence[0] if sentence else text
