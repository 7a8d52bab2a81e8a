"""Options that several commands have, and how they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.core.errors import AllocationError, LoadmasterError, ModelError
from loadmaster.workloads.frontends.frontend import FRONTENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loadmaster.allocation.memories.problem import Bank
    from loadmaster.workloads.graph import Graph

NETWORKS = " ".join(FRONTENDS.summaries().values())
"""What a network may be given as, for help texts."""
Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help=NETWORKS)]
Batch = Annotated[int | None, typer.Option(min=1, metavar="N", help="Leading dimension of the networks' inputs.")]
Dim = Annotated[list[str] | None, typer.Option(metavar="NAME=N", help="Size of a symbolic dimension, or of `INPUT.AXIS`. May be repeated.")]
Training = Annotated[
    bool, typer.Option("--training", help="Take a torch module's whole training step: forward, loss, backward, optimiser.")
]
Deadline = Annotated[list[str] | None, typer.Option(metavar="NAME=S", help="A network's mini-batches are due so long after release.")]
Period = Annotated[
    list[str] | None, typer.Option(metavar="NAME=S", help="Mini-batch k of a network is released at k times this; else at once.")
]
Precision = Annotated[str | None, typer.Option(metavar="int8|fp16|fp32", help="Plan floating-point tensors at this width.")]
Memory = Annotated[
    list[str] | None,
    typer.Option(
        "--memory",
        metavar="NAME[=BYTES]",
        help="A memory, the best first, such as `sram=1MiB,alignment=64,reserved=0-4096`; without BYTES it takes whatever is spilled. "
        "May be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]


def one_of(names: Sequence[str]) -> str:
    """A help text: `a, b or c.`"""
    return f"{', '.join(names[:-1])} or {names[-1]}."


def load_networks(
    models: list[str], batch: int | None, dim: list[str] | None, precision: str | None, training: bool = False
) -> list[Graph]:
    """The networks that the options of a command name."""
    from loadmaster.workloads.frontends.load import load

    return [load(model, batch=batch, dims=sizes_of(dim or []), precision=precision, training=training) for model in models]


def times_of(option: str, texts: list[str] | None, error: type[LoadmasterError]) -> dict[str, float]:
    """Seconds by network, from `NAME=S`."""
    from loadmaster.core.units import parse_seconds

    return by_network(option, texts, parse_seconds, "NAME=S, such as resnet50=5ms", error)


def by_network(
    option: str, texts: list[str] | None, read: Callable[[str], float], form: str, error: type[LoadmasterError]
) -> dict[str, float]:
    """Figures by network, from `NAME=FIGURE`; ``form`` says in errors how to write them."""
    found: dict[str, float] = {}
    for text in texts or []:
        name, _, value = text.rpartition("=")
        if not name or name in found:
            raise error(f"--{option} {text!r}: write {form}, once for each network")
        found[name] = read(value)
    return found


def sizes_of(options: list[str]) -> dict[str, int]:
    """Sizes from `NAME=N`."""
    sizes = {}
    for option in options:
        name, _, size = option.rpartition("=")
        if not name or not size.strip().isascii() or not size.strip().isdecimal() or int(size) < 1:
            raise ModelError(f"--dim {option!r}: write NAME=N with a whole number of at least 1, such as sequence=128")
        sizes[name.strip()] = int(size)
    return sizes


def memories_of(options: list[str]) -> tuple[Bank, ...]:
    """Memories from `NAME[=BYTES][,alignment=BYTES][,reserved=LOW-HIGH]...`."""
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
                raise AllocationError(f"--memory {option!r}: write NAME[=BYTES][,alignment=BYTES][,reserved=LOW-HIGH], such as sram=1MiB")
        banks.append(Bank(name.strip(), parse_bytes(capacity) if capacity else None, alignment, tuple(reserved)))
    return check_banks(banks)
