"""From a plan and its models to a folder with a program in C, which is written only if the plan
holds and is one of these models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from loadmaster.core.errors import PlanError
from loadmaster.core.files import output_directory
from loadmaster.core.violation import Violation
from loadmaster.integrations.c_program.model import SourceModel, read_source_model
from loadmaster.integrations.c_program.program import Program, program_of
from loadmaster.integrations.c_program.tables import plan_source
from loadmaster.planning.against.model import models_of
from loadmaster.planning.against.networks import networks, operators, tensors
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.planning.verify.plan import tell, verify

_TEMPLATES = "files"


@dataclass(frozen=True)
class ExportedProgram:
    """The program, and the files that were written for it."""

    program: Program
    written: tuple[Path, ...]


def export_program(
    plan: PlanRecord,
    sources: Sequence[str],
    out: Path,
    *,
    batch: int | None = None,
    dims: dict[str, int] | None = None,
) -> ExportedProgram:
    """Write a program in C that runs a plan on a host.

    Parameters
    ----------
    plan
        A plan at float32.
    sources
        ONNX files with the weights of the plan's networks, in the plan's order.
    out
        The folder for the program.
    batch, dims
        With what the networks were read for the plan; see :func:`loadmaster.load`.

    Raises
    ------
    ModelError
        If a file cannot be read, lacks weights, or has an operator for which there is no kernel.
    PlanError
        If the plan does not hold, is not one of these models, or is not for float32.
    OutputError
        If the folder cannot be written.
    """
    models = read_models(plan, sources, batch=batch, dims=dims)
    _refuse("the plan does not hold", verify(plan))
    against = models_of([model.graph for model in models])
    for check in (networks, operators, tensors):
        _refuse("the plan is not one of these models", tell("model", check(plan, against)))
    program = program_of(plan, models)
    return ExportedProgram(program, write_program(program, out))


def read_models(
    plan: PlanRecord,
    sources: Sequence[str],
    *,
    batch: int | None = None,
    dims: dict[str, int] | None = None,
) -> list[SourceModel]:
    """Read the models of a plan's networks, which must be at float32; what their files are called
    does not matter."""
    for network in plan.networks:
        if network.precision != "fp32":
            text = (
                f"network {network.name!r} is planned at {network.precision}, and the program"
                " computes in float32"
            )
            raise PlanError(
                f"{text}: plan a network of floating-point tensors, with --precision fp32"
            )
    if len(sources) != len(plan.networks):
        names = ", ".join(repr(network.name) for network in plan.networks)
        raise PlanError(
            f"the plan is of the networks {names}, and there are {len(sources)} models: give one"
            " for each, in this order"
        )
    return [
        read_source_model(source, network, batch, dims or {})
        for source, network in zip(sources, plan.networks, strict=True)
    ]


def write_program(program: Program, out: Path) -> tuple[Path, ...]:
    """Write the files of a program, all or none."""
    source = plan_source(program)
    with output_directory(out) as directory:
        for template in sorted(
            files(__package__).joinpath(_TEMPLATES).iterdir(), key=lambda file: file.name
        ):
            directory.write(template.name, template.read_text(encoding="utf-8"))
        directory.write("plan.c", source)
        directory.write_bytes(
            "weights.bin",
            b"".join(np.ascontiguousarray(data).tobytes() for _, _, data in program.weights),
        )
        return tuple(directory.publish())


def _refuse(what: str, violations: Sequence[Violation]) -> None:
    if violations:
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        raise PlanError(f"{what}: {violations[0].message}{more}")
