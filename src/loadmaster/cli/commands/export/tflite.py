"""``loadmaster export tflite``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.options import MACHINE, OUTPUT, option, out_to, parsed
from loadmaster.cli.output import Output, versioned
from loadmaster.core.errors import AllocationError

BANDS = "Bands"

if TYPE_CHECKING:
    from loadmaster.integrations.tflite.export import ExportedModel


def tflite_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL.tflite", help="The network.")],
    out: Annotated[Path, out_to("Where the model with its plan goes.", "PLANNED.tflite")],
    alignment: Annotated[
        str,
        option("BYTES", MACHINE, "Every address is a multiple of it; at least 16."),
    ] = "16",
    in_place: Annotated[
        str | None,
        option(
            "KERNELS",
            MACHINE,
            "Let kernels write over an operand: `reference`, TFLM's own, or operators that"
            " yours can, such as `ADD,RELU`. "
            "Default: none.",
        ),
    ] = None,
    scratch: Annotated[
        str | None,
        option(
            "FILE|probe|none",
            MACHINE,
            "Where the kernels' scratch buffers are known from: the log of a target's build"
            " with TF_LITE_SHOW_MEMORY_USE, TFLM's "
            "interpreter, or nowhere: then the arena may grow. Default: probe where the"
            " interpreter is installed (extra `tflite`).",
        ),
    ] = None,
    c_struct: Annotated[
        Path | None,
        option(
            "PLAN.cc",
            OUTPUT,
            "Write the plan for the NonPersistentMemoryPlannerShim too, which runs MODEL as it"
            " is. Default: no.",
        ),
    ] = None,
    arena: Annotated[
        str | None,
        option(
            "BYTES",
            BANDS,
            "Run the network in bands of rows, so that head and tail fit into so many bytes"
            " with the least extra work. Default: no bands.",
        ),
    ] = None,
    extra_macs: Annotated[
        str | None,
        option(
            "P%",
            BANDS,
            "Instead: bands with the smallest arena for so much extra work. Default: no bands.",
        ),
    ] = None,
    curve: Annotated[
        bool,
        option(
            None,
            BANDS,
            "Print the heads that bands reach, with their extra work, and draw them beside the"
            " memory over the operators, in a page beside --out. Default: no.",
            "--curve",
        ),
    ] = False,
    unchecked: Annotated[
        bool,
        option(
            None,
            BANDS,
            "Write bands though nothing can run them here; `--arena` is then the head alone.",
            "--unchecked",
        ),
    ] = False,
    *,
    output: Output,
) -> None:
    """Plan the tensor arena of TensorFlow Lite for Microcontrollers.

    The model is written with addresses for its tensors (`OfflineMemoryAllocation`), otherwise
    unchanged. TFLM uses these addresses; on the target only the size of the arena changes.

    With --arena or --extra-macs parts of the network run in bands of rows, by standard operators:
    feature maps never exist as a whole, and results are equal bit for bit, which is checked by
    running both files.

    Example: `loadmaster export tflite model.tflite --out planned.tflite`, or with `--in-place
    reference --scratch probe`

    Example: `loadmaster export tflite model.tflite --arena 64KiB --out small.tflite`
    """
    from loadmaster.core.files import replace_files
    from loadmaster.core.units import parse_bytes
    from loadmaster.integrations.tflite.export import export_model, model_files
    from loadmaster.integrations.tflite.export_json import ChoiceJson, ExportJson, PartJson
    from loadmaster.report.packing import arena_page

    step, reason = parse_bytes(alignment), None
    if arena is None and extra_macs is None:
        exported = export_model(model, alignment=step, in_place=in_place, scratch=scratch)
    else:
        exported, reason = _in_bands(
            model, arena, extra_macs, step, in_place or scratch or c_struct, unchecked=unchecked
        )
    reasons = None
    if curve or reason or (not exported.bands and (output.as_json or not output.quiet)):
        from loadmaster.integrations.tflite.scratch import UNKNOWN
        from loadmaster.integrations.tflite.why import arena_reasons

        reasons = arena_reasons(model, UNKNOWN if exported.bands else exported.arena.scratch, step)
    front = reasons and curve and reasons.front
    plan, known = exported.plan, exported.arena.scratch
    why = vars(reasons) if reasons else {"peaks": (), "remedies": (), "no_bands": None}
    shown = versioned(
        ExportJson,
        plan,
        **vars(exported)
        | why
        | {
            "model": exported.name,
            "tensors": len(exported.arena.found.tensors),
            "scratch": known.source,
            "scratch_buffers": known.buffers,
            "growth_at_most": plan.growth,
            "measured_before": exported.before,
            "measured": exported.after,
            "bands": [PartJson(*each) for each in exported.bands],
            "reason": reason,
            "front": [
                ChoiceJson(each.load, each.work, each.time, sum(part.count for part in each.bands))
                for each in (front.choices if front else ())
            ],
        },
    )
    files = [] if reason else model_files(exported, out, c_struct)
    if reasons and (curve or reason):
        from loadmaster.report.page import render

        before = (reasons.problem, reasons.addresses)
        page = render(arena_page(shown, before, (exported.problem, exported.addresses)))
        files.append((out.with_suffix(".html"), page, "the page"))
    output.show(shown, lambda: arena_page(shown), replace_files(files))
    if reason:
        raise typer.Exit(1)


def _in_bands(
    model: Path,
    arena: str | None,
    extra_macs: str | None,
    alignment: int,
    not_for_bands: object,
    *,
    unchecked: bool,
) -> tuple[ExportedModel, str | None]:
    """Return the model in bands. If no bands suffice, return it with a plan only, and the
    reason."""
    from loadmaster.core.units import format_bytes, parse_bytes, parse_share
    from loadmaster.integrations.tflite.bands.shrink import NotInBands, TooLarge, shrink_model
    from loadmaster.integrations.tflite.export import export_model
    from loadmaster.integrations.tflite.interpreter import CannotLoad

    if arena is not None and extra_macs is not None:
        raise AllocationError("--arena finds the extra work that --extra-macs gives: leave one out")
    if not_for_bands:
        raise AllocationError(
            "--in-place, --scratch and --c-struct are for models without bands: leave them out"
        )
    room = parsed(arena, parse_bytes)
    share = parsed(extra_macs, parse_share)
    try:
        found = shrink_model(
            model, arena=room, extra_work=share, alignment=alignment, unchecked=unchecked
        )
    except TooLarge as error:
        return export_model(model, alignment=alignment), str(error)
    except (NotInBands, CannotLoad) as error:
        planned = export_model(model, alignment=alignment)
        if room is None or planned.least <= room:
            return planned, None
        takes = f"the arena takes {format_bytes(planned.least)}, not {format_bytes(room)}"
        return planned, f"{error}; with a plan alone {takes}"
    return found, None
