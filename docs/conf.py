"""The documentation site: `make docs` builds it into build/site. Broken links and faulty docstrings
fail the build.

The pages are Markdown. Two are completed when the site is built, with what the code says of itself:
reference/commands.md from the command line's own options, and reference/python.md from the
docstrings of every name on ``loadmaster``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import typer
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import loadmaster
from loadmaster.cli.main import app

project = "Loadmaster"
author = "The Loadmaster authors"
version = release = loadmaster.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "Loadmaster"
html_copy_source = False
html_show_sphinx = False
# Headings get the anchors that GitHub gives them.
myst_heading_anchors = 4
napoleon_google_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
smartquotes = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": "Exception"}
add_module_names = False

_PACKAGES = {
    "planning": "Planning",
    "targets": "Hardware",
    "workloads": "Networks and jobs",
    "mapping": "Mapping",
    "placement": "Placement",
    "allocation": "Allocation",
    "cost": "Costs",
    "integrations": "PyTorch",
    "core": "Errors and checks",
    "report": "Strategies and models by name",
}


def _python_reference() -> str:
    """Directives for every public name, by the package in which it is at home."""
    names: dict[str, list[str]] = defaultdict(list)
    for name in sorted(loadmaster.__all__, key=str.lower):
        names[_home(name).split(".")[1]].append(name)
    unnamed = names.keys() - _PACKAGES.keys()
    if unnamed:
        raise ValueError(f"docs/conf.py: give titles to the packages {sorted(unnamed)}")
    sections = []
    for package, title in _PACKAGES.items():
        directives = [f".. {_directive(name)}:: loadmaster.{name}" for name in names[package]]
        sections.append("\n\n".join([f"## {title}", "```{eval-rst}", *directives, "```"]))
    return "\n\n".join(sections)


def _home(name: str) -> str:
    return loadmaster._HOMES[name].partition(":")[0]


def _directive(name: str) -> str:
    public = getattr(loadmaster, name)
    if isinstance(public, type):
        return "autoexception" if issubclass(public, Exception) else "autoclass"
    return "autofunction"


def _command_reference() -> str:
    """A section for every command, with its usage, what it does, and its options as a table."""
    commands: dict[str, Any] = typer.main.get_command(app).commands
    return "\n\n".join(_command_section(name, command) for name, command in _flat(commands))


def _flat(commands: dict[str, Any], group: str = "") -> list[tuple[str, Any]]:
    """Commands and those of groups, which are called ``GROUP COMMAND``."""
    found = []
    for name, command in commands.items():
        inner = getattr(command, "commands", None)
        found += [(f"{group}{name}", command)] if inner is None else _flat(inner, f"{group}{name} ")
    return found


def _command_section(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=f"loadmaster {name}")
    usage = " ".join(["loadmaster", *name.split(), *command.collect_usage_pieces(context)])
    records = (option.get_help_record(context) for option in command.params)
    rows = "\n".join(
        f"| `{_cell(record[0])}` | {_cell(record[1])} |" for record in records if record
    )
    return (
        f"## {name}\n\n```text\n{usage}\n```\n\n{command.help}\n\n| argument or option | meaning"
        f" |\n|---|---|\n{rows}"
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


_COMPLETED = {"reference/commands": _command_reference, "reference/python": _python_reference}


def _complete(_: Sphinx, page: str, source: list[str]) -> None:
    if page in _COMPLETED:
        source[0] += "\n\n" + _COMPLETED[page]()


def _by_home(
    application: Sphinx, environment: Any, node: pending_xref, content: nodes.Element
) -> nodes.Node | None:
    """Docstrings name where things live; the reader finds them as ``loadmaster.NAME``."""
    name = _PUBLIC.get(str(node.get("reftarget", "")))
    if node.get("refdomain") != "py" or name is None:
        return None
    python = environment.get_domain("py")
    return python.resolve_xref(
        environment,
        node["refdoc"],
        application.builder,
        node["reftype"],
        f"loadmaster.{name}",
        node,
        content,
    )


_PUBLIC = {
    home.replace(":", ".") if ":" in home else f"{home}.{name}": name
    for name, home in loadmaster._HOMES.items()
}


def setup(application: Sphinx) -> None:
    """Connect to the events of a build."""
    application.connect("source-read", _complete)
    application.connect("missing-reference", _by_home)
