"""``loadmaster run``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.options import MACHINE, NETWORK, SEARCH, Reading, option, out_to
from loadmaster.cli.output import PageOutput, say, versioned
from loadmaster.core.errors import ModelError

if TYPE_CHECKING:
    from loadmaster.report.view import PagePart


def run_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="torch:MODULE.PATH:FACTORY",
            help="A function that makes a module and its inputs.",
        ),
    ],
    fast: Annotated[
        str,
        option(
            "BYTES|PERCENT",
            MACHINE,
            "Fast memory of a step, such as `2 GiB`, or `50%` of what it takes.",
        ),
    ],
    *,
    reading: Reading,
    optimizer: Annotated[
        str | None,
        option(
            "sgd|adamw",
            NETWORK,
            "Update parameters in the backward pass. Default: the factory's optimizer, if any.",
        ),
    ] = None,
    mode: Annotated[
        str,
        option("sync|async", MACHINE, "Whether copies overlap kernels."),
    ] = "async",
    device: Annotated[str, option("cpu|cuda", MACHINE, "Where the module runs.")] = "cpu",
    slow_memory: Annotated[
        Path | None,
        option(
            "DIR",
            MACHINE,
            "Folder on a local disk for what does not fit (CPU). Default: the system's for"
            " temporary files.",
        ),
    ] = None,
    steps: Annotated[int, option("N", SEARCH, "Steps that are timed.", min=1)] = 5,
    generate: Annotated[
        int | None,
        option(
            "TOKENS",
            SEARCH,
            "Generate text with a language model; `50%` is then of its weights on disk. Default:"
            " steps.",
            min=2,
        ),
    ] = None,
    compare: Annotated[
        bool,
        option(
            None, SEARCH, "Run the same steps in other ways that save memory, too.", "--compare"
        ),
    ] = False,
    out: Annotated[
        Path | None, out_to("Where run.json, kernels.json and report.html go. Default: nowhere.")
    ] = None,
    output: PageOutput,
) -> None:
    """Run steps of a PyTorch module under a budget of fast memory, and measure whether plan and
    budget hold.

    The same graphs run without moves, too: results must be equal bit for bit, or close if kernels
    run in blocks because their operands do not fit. Exit code 1 if they are not, or if the budget
    was exceeded. After the plan has been checked, Ctrl-C prints the results so far. With --compare
    the command takes some hundred times as long as one step; the estimated time is printed after
    the first steps.

    Example: `loadmaster run torch:benchmarks.networks.resnet:resnet50 --training --batch 8 --fast
    50% --compare`
    """
    from loadmaster.workloads.frontends.torch.factory import as_made

    as_made(model, reading.precision)
    if not model.startswith("torch:"):
        raise ModelError(
            f"{model}: write torch:module.path:factory, such as torch:networks.resnet:resnet50"
        )
    spot = model.removeprefix("torch:")
    if generate is not None:
        given = {
            "--training": reading.training,
            "--batch": reading.batch,
            "--dim": reading.dims,
            "--optimizer": optimizer,
            "--steps": steps != 5,
            "--mode": mode != "async",
            "--device": device != "cpu",
        }
        if left_out := " or ".join(name for name, is_given in given.items() if is_given):
            raise ModelError(
                f"--generate has no {left_out}: it takes the module and prompt of the factory as"
                " they are, and generates on the CPU"
            )
        from loadmaster.core.files import directory_if_asked
        from loadmaster.integrations.torch_compile.compare.run_json import GenerationJson
        from loadmaster.integrations.torch_compile.running import generated

        with directory_if_asked(out) as place:
            result = versioned(
                GenerationJson, generated(spot, generate, fast, slow_memory, compare)
            )
            files = output.publish(place, {"generate.json": result})
        output.show(result, lambda: _generation_table(result), files)
        _exit_if_wrong(
            result["tokens_equal"] is not False, result, "tokens differ between the ways"
        )
        return
    from loadmaster.integrations.torch_compile.compare.run_json import RunJson
    from loadmaster.integrations.torch_compile.running import made_module
    from loadmaster.report.run import run_page

    with output.working(out) as (place, progress):
        work = made_module(
            spot, reading.batch, reading.training, device, optimizer, reading.arguments()["dims"]
        )
        # It imports torch, whose release and settings `made_module` has seen to.
        from loadmaster.integrations.torch_compile.compare import comparison

        measured = comparison.compare(
            work,
            {"fast_memory": fast, "mode": mode, "slow_memory": slow_memory},
            steps,
            compare,
            progress=progress,
            tell=(lambda _: None) if output.quiet else partial(say, err=True),
        )
        result, kernels = versioned(RunJson, measured), measured["kernels"]
        page = partial(run_page, model, result, kernels)
        files = output.publish(place, {"run.json": result, "kernels.json": kernels}, page)
    output.show(result, page, files)
    _exit_if_wrong(
        result["gradients_equal"] or result["results_close"],
        result,
        "results differ from the unmoved graphs",
    )


def _exit_if_wrong(right: bool, result: dict[str, Any], wrong: str) -> None:
    """Exit with code 1 and a message unless results are ``right`` and the budget was kept."""
    if not right or not result["budget_kept"]:
        say("the budget was exceeded" if right else wrong, err=True)
        raise typer.Exit(1)


def _generation_table(result: dict[str, Any]) -> list[PagePart]:
    """Return a table with a row for each method of generating."""
    from loadmaster.core.units import format_bytes, format_seconds
    from loadmaster.report.text import if_known
    from loadmaster.report.view import Line, Table

    rows = []
    for name, way in {"loadmaster": result, **result["rivals"]}.items():
        against = way.get("failed", "")
        if way is not result and not against:
            against = f"{result['tokens_per_second'] / way['tokens_per_second']:.2f} x"
        rows.append(
            {
                "": name,
                ">tokens per second": if_known(way.get("tokens_per_second"), "{:.3g}".format),
                ">first token": if_known(way.get("first_token_seconds"), format_seconds),
                ">measured peak": if_known(way.get("measured_peak"), format_bytes),
                ">against it": against,
            }
        )
    disk = "Nothing is read from the disk"
    if result["moved_bytes"]:
        disk = (
            f"{format_bytes(result['moved_bytes'])} read for each token; the disk allows"
            f" {result['disk_tokens_per_second']:.3g} tokens per second"
            f" ({result['share_of_disk_bandwidth']:.0%} of its bandwidth used)"
        )
    limits = (
        f"{disk}. Of a token, kernels take {format_seconds(result['kernel_seconds'])}, waiting for"
        f" copies {format_seconds(result['waiting_seconds'])}: limited by the"
        f" {result['limited_by']}"
    )
    title = Line(
        f"{format_bytes(result['weights'])} of weights, budget {format_bytes(result['budget'])};"
        f" {result['label']}"
    )
    return [title, Table(rows, limits)]
