"""``loadmaster export tflite``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.options import MACHINE, OUTPUT, Json, Quiet, out_to
from loadmaster.cli.printing import print_results, versioned
from loadmaster.core.errors import AllocationError

BANDS = "Bands"

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
    arena: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            rich_help_panel=BANDS,
            help=(
                "Run the network in bands of rows, so that head and tail fit into so many bytes"
                " with the least extra work. Default: no bands."
            ),
        ),
    ] = None,
    extra_macs: Annotated[
        str | None,
        typer.Option(
            metavar="P%",
            rich_help_panel=BANDS,
            help="Instead: bands with the smallest head for so much extra work. Default: no bands.",
        ),
    ] = None,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve",
            rich_help_panel=BANDS,
            help="Show every head that bands reach, with its extra work. Default: no.",
        ),
    ] = False,
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked",
            rich_help_panel=BANDS,
            help="Write bands although nothing can run them here; `--arena` is then the head alone.",
        ),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plan the tensor arena of TensorFlow Lite for Microcontrollers.

    The model is written with addresses for its tensors (`OfflineMemoryAllocation`) and is otherwise
    what it was. TFLM takes them as they are; nothing else changes on the target but the size of the
    arena.

    With --arena or --extra-macs parts of the network run in bands of rows, by standard operators:
    feature maps never exist as a whole, and results are the same to the last bit, which is checked
    by running both files.

    Example: `loadmaster export tflite model.tflite --out planned.tflite`, or with `--in-place
    reference --scratch probe`

    Example: `loadmaster export tflite model.tflite --arena 64KiB --out small.tflite`
    """
    from loadmaster.core.units import parse_bytes
    from loadmaster.integrations.tflite.export import export_model, write_model
    from loadmaster.report.arena import arena_summary

    step = parse_bytes(alignment)
    if arena is None and extra_macs is None:
        exported = export_model(model, alignment=step, in_place=in_place, scratch=scratch)
    else:
        exported = _in_bands(
            model, arena, extra_macs, step, in_place or scratch or c_struct, unchecked=unchecked
        )
    written = write_model(exported, out, c_struct)
    shown = versioned(
        "export-tflite", _as_json(exported) | {"front": _front(model, step, exported, curve=curve)}
    )
    print_results(shown, lambda: arena_summary(shown), written, as_json=as_json, quiet=quiet)


def _in_bands(
    model: Path,
    arena: str | None,
    extra_macs: str | None,
    alignment: int,
    not_for_bands: object,
    *,
    unchecked: bool,
) -> ExportedModel:
    from loadmaster.core.units import parse_bytes, parse_share
    from loadmaster.integrations.tflite.bands.shrink import shrink_model

    if arena is not None and extra_macs is not None:
        raise AllocationError("--arena finds the extra work that --extra-macs gives: leave one out")
    if not_for_bands:
        raise AllocationError(
            "--in-place, --scratch and --c-struct are for models without bands: leave them out"
        )
    return shrink_model(
        model,
        arena=None if arena is None else parse_bytes(arena),
        extra_work=None if extra_macs is None else parse_share(extra_macs),
        alignment=alignment,
        unchecked=unchecked,
    )


def _front(
    model: Path, alignment: int, exported: ExportedModel, *, curve: bool
) -> list[dict[str, Any]]:
    """What bands offer: all, or if it does not run in bands already a few; nothing where the network
    cannot run in bands."""
    from loadmaster.core.errors import ModelError
    from loadmaster.integrations.tflite.bands.shrink import front_of, summaries
    from loadmaster.workloads.frontends.tflite.model import read_file

    if exported.bands and not curve:
        return []
    try:
        front = front_of(read_file(model), alignment)
    except ModelError:
        return []
    choices = front.choices if curve else summaries(front)
    return [{"head_at_least": choice.load, "work": choice.work} for choice in choices]


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
        "work": exported.work,
        "bands": [
            {"first": first, "last": last, "bands": count} for first, last, count in exported.bands
        ],
    }


COMMAND = tflite_command
