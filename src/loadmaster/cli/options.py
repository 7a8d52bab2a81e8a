"""Options of several commands, and their parsers; ``--set`` is parsed in ``targets/overrides.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.core.errors import AllocationError, ModelError

if TYPE_CHECKING:
    from loadmaster.allocation.memories.problem import Bank
    from loadmaster.workloads.graph import Graph

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...", help="`.onnx` or `.onnx.gz` files, `onnx:NAME` (resnet50, vgg19, ...), or `torch:module.path:factory`."
    ),
]
Batch = Annotated[int | None, typer.Option(min=1, metavar="N", help="Leading dimension of the networks' inputs.")]
Dim = Annotated[list[str] | None, typer.Option(metavar="NAME=N", help="Size of a symbolic dimension, or of `INPUT.AXIS`. May be repeated.")]
Training = Annotated[
    bool, typer.Option("--training", help="Take a torch module's whole training step: forward, loss, backward, optimiser.")
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


def load_networks(
    models: list[str], batch: int | None, dim: list[str] | None, precision: str | None, training: bool = False
) -> list[Graph]:
    """Load the networks that the options of a command name."""
    from loadmaster.workloads.frontends.load import load

    return [load(model, batch=batch, dims=sizes_of(dim or []), precision=precision, training=training) for model in models]


def sizes_of(options: list[str]) -> dict[str, int]:
    """Parse `--dim NAME=N` into sizes by name. Raises `ModelError`."""
    sizes = {}
    for option in options:
        name, _, size = option.rpartition("=")
        if not name or not size.strip().isascii() or not size.strip().isdecimal() or int(size) < 1:
            raise ModelError(f"--dim {option!r}: write NAME=N with a whole number of at least 1, such as sequence=128")
        sizes[name.strip()] = int(size)
    return sizes


def memories_of(options: list[str]) -> tuple[Bank, ...]:
    """Parse `--memory NAME[=BYTES][,alignment=BYTES][,reserved=LOW-HIGH]...`. Raises `AllocationError`."""
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
