"""Options shared by commands, and their parsers; ``--set`` is parsed in
``targets/overrides.py``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from loadmaster.core.errors import (
    AllocationError,
    LoadmasterError,
    ModelError,
    OutputError,
    TargetError,
)
from loadmaster.workloads.frontends.frontend import FRONTENDS

if TYPE_CHECKING:
    from loadmaster.allocation.memories.problem import Bank
    from loadmaster.planning.sweep.limits import Limits
    from loadmaster.targets.hardware import Target
    from loadmaster.workloads.graph import Graph

Parsed = TypeVar("Parsed")

NETWORKS = " ".join(FRONTENDS.summaries().values())
"""Forms of a network argument, for help texts."""

NETWORK, MACHINE, GOAL, LIMITS, SEARCH, OUTPUT = (
    "Networks",
    "Machine",
    "Goal",
    "Limits of sweeps and sizes",
    "Search",
    "Output",
)
"""Groups of options in help texts."""


def option(metavar: str | None, panel: str | None, about: str, *names: str, **more: Any) -> Any:
    """Declare an option of a command.

    ``metavar`` is the form of its value, ``panel`` the group in the help text, ``about`` the help,
    ``names`` are its names if not the parameter's, and ``more`` are arguments of typer.
    """
    return typer.Option(*names, metavar=metavar, rich_help_panel=panel, help=about, **more)


def _target_names() -> list[str]:
    """Return the names of the bundled targets, for completion."""
    from loadmaster.targets.load import bundled

    return list(bundled())


Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help=NETWORKS)]
MiniBatches = Annotated[
    int,
    option("N", NETWORK, "Instances of every network; they share its weights.", min=1),
]


def target_of(about: str) -> Any:
    """Declare the option ``--target`` with the help text ``about``."""
    return option("NAME|FILE.toml", MACHINE, about, autocompletion=_target_names)


_TARGET = "A bundled target (`loadmaster targets` lists them) or a file."
OptionalTarget = Annotated[
    str | None,
    target_of(f"{_TARGET} Default: none; the input must then say what everything costs."),
]


def overrides_of(fields: str) -> Any:
    """Declare the option ``--set``; ``fields`` describes what it overrides."""
    return option("KEY=VALUE", MACHINE, f"Override {fields}. May be repeated.", "--set")


Overrides = Annotated[
    list[str] | None, overrides_of('a field of the target: `dram.bandwidth="8 GB/s"`')
]
Memory = Annotated[
    list[str] | None,
    option(
        "NAME[=BYTES]",
        MACHINE,
        "A memory, the best first, such as `sram=1MiB,alignment=64,reserved=0-4096`; without"
        " BYTES it takes whatever is spilled. May be repeated.",
    ),
]
EffortLevel = Annotated[
    str,
    option(
        "quick|normal|thorough",
        SEARCH,
        "How much the searches may do: a third of the time, or eight times as much, as usual.",
        autocompletion=lambda: ["quick", "normal", "thorough"],
    ),
]
TimeLimit = Annotated[
    str | None,
    option(
        "S",
        SEARCH,
        "Stop after so long, such as `5` or `2 min`, with the best so far. Default: no limit;"
        " the work itself is bounded.",
    ),
]
Seed = Annotated[
    int,
    option("N", SEARCH, "Same input and seed, same answer.", min=0, max=2**63 - 1),
]
Threads = Annotated[int, option("N", SEARCH, "Use up to so many threads.", min=1)]


def out_to(files: str, metavar: str = "DIR") -> Any:
    """Declare the option ``--out``; ``files`` is its help text."""
    return option(metavar, OUTPUT, files, parser=_place)


def _place(text: str) -> Path:
    """Read a path; an empty one, as of a shell's variable that is not set, is not this folder."""
    if not text:
        raise OutputError("--out: give a path; . is this folder")
    return Path(text)


def strategy_of(names: Sequence[str]) -> Any:
    """Declare the option ``--strategy`` with the names of strategies."""
    return option("NAME", SEARCH, one_of(names), autocompletion=lambda: list(names))


def one_of(names: Sequence[str]) -> str:
    """Return the help text `a, b or c.`"""
    return f"{', '.join(names[:-1])} or {names[-1]}."


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command in which each parameter that is a dataclass is replaced by options, one for
    each field."""
    own = signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation
        for name, each in own.parameters.items()
        if is_dataclass(each.annotation)
    }
    parameters: list[Parameter] = []
    for name, each in own.parameters.items():
        group = groups.get(name)
        options = signature(group, eval_str=True).parameters.values() if group else [each]
        parameters += (parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in options)

    @wraps(command)
    def run(**given: Any) -> None:
        """Call the command with the options of each group in one record."""
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class Reading:
    """The options for reading networks."""

    batch: Annotated[
        int | None,
        option(
            "N",
            NETWORK,
            "Leading dimension of the networks' inputs, or a torch factory's argument `batch`."
            " Default: the file's or the factory's own.",
            min=1,
        ),
    ] = None
    dims: Annotated[
        list[str] | None,
        option(
            "NAME=N",
            NETWORK,
            "Size of a symbolic dimension, of `INPUT.AXIS`, or an argument of a torch factory; or"
            " the value of an input of one element, such as `--value sr=16000`. May be repeated.",
            "--dim",
            "--value",
        ),
    ] = None
    precision: Annotated[
        str | None,
        option(
            "int8|fp16|fp32",
            NETWORK,
            "Plan floating-point tensors at this width; what is quantised in the file stays."
            " Default: as the file has them.",
        ),
    ] = None
    training: Annotated[
        bool,
        option(
            None,
            NETWORK,
            "Take a torch module's training step: forward, loss, backward, and the optimiser if it"
            " has one. Default: inference.",
            "--training",
        ),
    ] = False

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `loadmaster.load`."""
        return vars(self) | {"dims": sizes_of(self.dims or [])}

    def load(self, models: Sequence[str]) -> list[Graph]:
        """Load networks by their arguments on the command line."""
        from loadmaster.workloads.frontends.load import load

        arguments = self.arguments()
        return [load(model, **arguments) for model in models]


@dataclass(frozen=True)
class MachineOptions:
    """The options for the target machine."""

    target: Annotated[str, target_of(_TARGET)]
    overrides: Overrides = None

    def read(self) -> Target:
        """Read the target. Raises `TargetError`."""
        from loadmaster.targets.load import target

        return target(self.target, self.overrides or ())


@dataclass(frozen=True)
class TimingOptions:
    """The options for periods and deadlines of mini-batches."""

    deadline: Annotated[
        list[str] | None,
        option(
            "NAME=S",
            GOAL,
            "A network's mini-batches are due so long after release, such as `resnet50=8ms`."
            " Default: never due.",
        ),
    ] = None
    period: Annotated[
        list[str] | None,
        option(
            "NAME=S",
            GOAL,
            "Mini-batch k of a network is released at k times this, such as `resnet50=5ms`."
            " Default: all at once.",
        ),
    ] = None

    def arguments(self, error: type[LoadmasterError]) -> dict[str, dict[str, float]]:
        """Return the keyword arguments for functions such as `loadmaster.plan`: seconds by
        network. Raises ``error``."""
        from loadmaster.core.units import parse_seconds

        form = "NAME=S, such as resnet50=5ms"
        return {
            f"{name}s": by_network(name, texts, parse_seconds, form, error)
            for name, texts in vars(self).items()
        }


@dataclass(frozen=True)
class SearchOptions:
    """The options for effort, time limit and seed of a search."""

    effort: EffortLevel = "normal"
    time_limit: TimeLimit = None
    seed: Seed = 0

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for functions that search, such as `loadmaster.plan`."""
        from loadmaster.core.units import parse_seconds

        return vars(self) | {"time_limit": parsed(self.time_limit, parse_seconds)}


@dataclass(frozen=True)
class Required:
    """The options for limits that plans must keep."""

    fps: Annotated[
        float | None,
        option(
            "N",
            LIMITS,
            "Frames per second that every network must reach: samples of its batches. Default: no"
            " limit.",
        ),
    ] = None
    makespan: Annotated[
        str | None,
        option(
            "S",
            LIMITS,
            "Time that a plan may take at most, such as `2ms`. Default: no limit.",
        ),
    ] = None
    energy: Annotated[
        str | None,
        option(
            "J",
            LIMITS,
            "Energy that a plan may take at most, such as `5mJ`. Default: no limit.",
        ),
    ] = None

    def limits(self, deadlines: dict[str, float]) -> Limits:
        """Return the limits, with deadlines in seconds by network. Raises `PlanError` or
        `UnitError`."""
        from loadmaster.core.units import parse_joules, parse_seconds
        from loadmaster.planning.sweep.limits import Limits

        makespan, energy = parsed(self.makespan, parse_seconds), parsed(self.energy, parse_joules)
        return Limits(makespan, energy, self.fps, deadlines)


def parsed(text: str | None, parse: Callable[[str], Parsed]) -> Parsed | None:
    """Return the parsed value of an option; None if it is not given."""
    return None if text is None else parse(text)


def machine_of(target: str | None, overrides: list[str] | None) -> Target | None:
    """Return the target of the options ``--target`` and ``--set``; None without them. Raises
    `TargetError`."""
    from loadmaster.targets.load import target as read_target

    if target is None and overrides:
        raise TargetError("--set overrides a field of a target: give --target too")
    return None if target is None else read_target(target, overrides or ())


def by_network(
    option: str,
    texts: list[str] | None,
    read: Callable[[str], float],
    form: str,
    error: type[LoadmasterError],
) -> dict[str, float]:
    """Parse the values `NAME=FIGURE` of an option into figures by network. Raises ``error``;
    ``form`` is the expected form in its message."""
    found: dict[str, float] = {}
    for text in texts or []:
        name, _, value = text.rpartition("=")
        if not name or name in found:
            raise error(f"--{option} {text!r}: write {form}, once for each network")
        found[name] = read(value)
    return found


def sizes_of(options: list[str]) -> dict[str, int]:
    """Parse `--dim NAME=N` and `--value NAME=N` into whole numbers by name. Raises `ModelError`."""
    sizes = {}
    for option in options:
        name, _, size = option.rpartition("=")
        if not name or not re.fullmatch("-?[0-9]{1,19}", size.strip()):
            raise ModelError(
                f"--dim {option[:80]!r}: write NAME=N with a whole number, such as sequence=128"
            )
        sizes[name.strip()] = int(size)
    return sizes


def memories_of(options: list[str]) -> tuple[Bank, ...]:
    """Parse `--memory NAME[=BYTES][,alignment=BYTES][,reserved=LOW-HIGH]...`. Raises
    `AllocationError`."""
    from loadmaster.allocation.memories.problem import Bank, check_banks
    from loadmaster.core.units import parse_bytes

    banks = []
    for option in options:
        first, *more = option.split(",")
        name, _, capacity = first.partition("=")
        alignment, reserved = 1, []
        for key, _, value in (word.partition("=") for word in more):
            if key == "alignment":
                alignment = parse_bytes(value)
            elif key == "reserved" and "-" in value:
                low, _, high = value.partition("-")
                reserved.append((parse_bytes(low), parse_bytes(high)))
            else:
                raise AllocationError(
                    f"--memory {option!r}: write"
                    " NAME[=BYTES][,alignment=BYTES][,reserved=LOW-HIGH], such as sram=1MiB"
                )
        banks.append(
            Bank(
                name.strip(),
                parse_bytes(capacity) if capacity else None,
                alignment,
                tuple(reserved),
            )
        )
    return check_banks(banks)


def plan_file(path: Path) -> Path:
    """Return the path of a plan file, given by itself or by its folder."""
    return path / "plan.json" if os.path.isdir(path) else path
