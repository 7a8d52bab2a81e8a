"""``loadmaster export tflite``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.options import MACHINE, OUTPUT, Json, Quiet, out_to
from loadmaster.cli.printing import print_results, versioned

if TYPE_CHECKING:
    from loadmaster.integrations.tflite.export import ExportedModel


def tflite_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL.tflite")],
    out: Annotated[Path, out_to("Where the model with its plan goes.", "PLANNED.tflite")],
    alignment: Annotated[
        str,
        typer.Option(
            metavar="BYTES",
            rich_help_panel=MACHINE,
            help="Every address is a multiple of it; at least 16.",
        ),
    ] = "16",
    in_place: Annotated[
        str | None,
        typer.Option(
            metavar="KERNELS",
            rich_help_panel=MACHINE,
            help=(
                "Let kernels write over an operand: `reference`, TFLM's own, or operators that"
                " yours can, such as `ADD,RELU`. "
                "Default: none."
            ),
        ),
    ] = None,
    scratch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|probe|none",
            rich_help_panel=MACHINE,
            help=(
                "Where the kernels' scratch buffers are known from: the log of a target's build"
                " with TF_LITE_SHOW_MEMORY_USE, TFLM's "
                "interpreter, or nowhere: then the arena may grow. Default: probe where the"
                " interpreter is installed (extra `tflite`)."
            ),
        ),
    ] = None,
    c_struct: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN.cc",
            rich_help_panel=OUTPUT,
            help="Write the plan for the NonPersistentMemoryPlannerShim too. Default: no.",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plan the tensor arena of TensorFlow Lite for Microcontrollers.

    The model is written with addresses for its tensors (`OfflineMemoryAllocation`) and is otherwise
    what it was. TFLM takes them as they are; nothing else changes on the target but the size of the
    arena.

    Example: `loadmaster export tflite model.tflite --out planned.tflite`, or with `--in-place
    reference --scratch probe`
    """
    from loadmaster.core.units import parse_bytes
    from loadmaster.integrations.tflite.export import export_model, write_model
    from loadmaster.report.arena import arena_summary

    exported = export_model(
        model, alignment=parse_bytes(alignment), in_place=in_place, scratch=scratch
    )
    written = write_model(exported, out, c_struct)
    shown = versioned("export-tflite", _as_json(exported))
    print_results(shown, lambda: [arena_summary(shown)], written, as_json=as_json, quiet=quiet)


def _as_json(exported: ExportedModel) -> dict[str, Any]:
    plan = exported.plan
    return {
        "model": exported.name,
        "status": plan.status,
        "head_before": plan.head_before,
        "head": plan.head,
        "lower_bound": plan.lower_bound,
        "tensors": len(plan.offsets),
        "in_place": plan.in_place,
        "fixed": plan.fixed,
        "scratch": exported.scratch.source,
        "scratch_buffers": [
            {"name": buffer.name, "bytes": buffer.bytes} for buffer in exported.scratch.buffers
        ],
        "growth_at_most": plan.growth,
        "measured_before": exported.before and asdict(exported.before),
        "measured": exported.after and asdict(exported.after),
    }


COMMAND = tflite_command
