"""``loadmaster run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.options import Json
from loadmaster.cli.printing import print_json, print_tables
from loadmaster.core.errors import ModelError

if TYPE_CHECKING:
    from rich.console import RenderableType


def run_command(
    model: Annotated[str, typer.Argument(metavar="torch:MODULE.PATH:FACTORY", help="A function that makes a module and its inputs.")],
    fast: Annotated[str, typer.Option(metavar="BYTES|PERCENT", help="Fast memory of a step, such as `2 GiB`, or `50%` of what it takes.")],
    training: Annotated[bool, typer.Option("--training", help="Run training steps: forward, loss, backward.")] = False,
    optimizer: Annotated[
        str | None, typer.Option(metavar="sgd|adamw", help="Update parameters in the backward pass, as part of the plan.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="The factory's argument `batch`.")] = None,
    mode: Annotated[str, typer.Option(metavar="sync|async", help="Whether copies overlap kernels.")] = "async",
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where the module runs.")] = "cpu",
    slow_memory: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder on a local disk for what does not fit (CPU).")] = None,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Steps that are timed.")] = 5,
    generate: Annotated[
        int | None, typer.Option(min=2, metavar="TOKENS", help="Generate text with a language model; `50%` is then of its weights on disk.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Run the same steps in other ways that save memory, too.")] = False,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where run.json and kernels.json go.")] = None,
) -> None:
    """Run steps of a PyTorch module under a budget of fast memory, and measure whether plan and budget hold.

    The same graphs run unmoved, too: results must be equal bit for bit. Exit code 1 if they are not, or if the budget was exceeded.

    Example: `loadmaster run torch:benchmarks.networks.resnet:resnet50 --training --batch 8 --fast 50% --compare`
    """
    if generate is not None:
        _generate(model, fast, generate, slow_memory, compare, as_json, out)
        return
    from contextlib import nullcontext

    from loadmaster.core.files import output_directory
    from loadmaster.integrations.torch_compile.running import run

    if not model.startswith("torch:"):
        raise ModelError(f"{model}: write torch:module.path:factory, such as torch:networks.resnet:resnet50")
    options: dict[str, Any] = {"fast_memory": fast, "mode": mode, "slow_memory": None if slow_memory is None else str(slow_memory)}
    with output_directory(out) if out is not None else nullcontext() as files:
        result, kernels = run(model.removeprefix("torch:"), batch, training, device, options, steps, compare, optimizer)
        if files is not None:
            for name, value in (("run.json", result), ("kernels.json", kernels)):
                files.write(name, json.dumps(value, indent=2, allow_nan=False))
            files.publish()
    if as_json:
        print_json(result)
    else:
        print_tables(_table(result))
    if not result["gradients_equal"] or not result["budget_kept"]:
        typer.echo("results differ from the unmoved graphs" if not result["gradients_equal"] else "the budget was exceeded", err=True)
        raise typer.Exit(1)


def _generate(model: str, fast: str, tokens: int, slow_memory: Path | None, compare: bool, as_json: bool, out: Path | None) -> None:
    """Generate tokens under a budget; exit code 1 if ways differ, or if the budget was exceeded."""
    from contextlib import nullcontext

    from loadmaster.core.files import output_directory
    from loadmaster.integrations.torch_compile.running import generated

    if not model.startswith("torch:"):
        raise ModelError(f"{model}: write torch:module.path:factory, such as torch:networks.hugging_face:llama")
    with output_directory(out) if out is not None else nullcontext() as files:
        result = generated(model.removeprefix("torch:"), tokens, fast, slow_memory, compare)
        if files is not None:
            files.write("generate.json", json.dumps(result, indent=2, allow_nan=False))
            files.publish()
    if as_json:
        print_json(result)
    else:
        print_tables(_generation_table(result))
    if not result["tokens_equal"] or not result["budget_kept"]:
        typer.echo("tokens differ between the ways" if not result["tokens_equal"] else "the budget was exceeded", err=True)
        raise typer.Exit(1)


def _generation_table(result: dict[str, Any]) -> RenderableType:
    """Make a table with a row for each way of generating."""
    from rich.table import Table

    from loadmaster.core.units import format_bytes, format_seconds

    table = Table(title=f"{format_bytes(result['weights'])} of weights, budget {format_bytes(result['budget'])}")
    for column in ("", "tokens per second", "first token", "measured peak", "against it"):
        table.add_column(column, justify="left" if not column else "right")
    ways = {"loadmaster": result} | result["rivals"]
    for name, way in ways.items():
        if "failed" in way:
            table.add_row(name, "-", "-", "-", way["failed"])
            continue
        against = "" if way is result else f"{result['tokens_per_second'] / way['tokens_per_second']:.2f} x"
        first, peak = format_seconds(way["first_token_seconds"]), format_bytes(way["measured_peak"])
        table.add_row(name, f"{way['tokens_per_second']:.3g}", first, peak, against)
    table.caption = (
        f"{format_bytes(result['moved'])} read for each token; the disk allows {result['disk_tokens_per_second']:.3g} tokens per second "
        f"({result['share_of_disk_bandwidth']:.0%} of its bandwidth used)"
    )
    return table


def _table(result: dict[str, Any]) -> RenderableType:
    """Make a table with a row for each variant of running the step."""
    from rich.table import Table

    from loadmaster.core.units import format_bytes, format_seconds

    budget = result["budget"]
    table = Table(title=None if budget is None else f"budget {format_bytes(budget)}")
    for column in ("", "step", "measured peak", "planned", "loadmaster at this peak", "against it"):
        table.add_column(column, justify="left" if not column else "right")

    def row(name: str, seconds: float | None, peak: int | None, planned: int | None = None, *more: str) -> None:
        shown = (None if seconds is None else format_seconds(seconds), *(None if b is None else format_bytes(b) for b in (peak, planned)))
        table.add_row(name, *(text or "-" for text in shown), *more)

    row("loadmaster", result["step_seconds"], result["measured_peak"], result["planned_peak"])
    row(f"  predicted from {result['costs']['label']} kernels", result["predicted_step_seconds"], None)
    row("same graphs, nothing moved", result["unmoved_step_seconds"], result["unmoved_measured_peak"], result["unmoved_peak"])
    if "executor_step_seconds" in result:
        row("  by the executor", result["executor_step_seconds"], None)
    for name, rival in result["rivals"].items():
        mine = rival.get("loadmaster_at_its_peak", {})
        seconds = mine.get("step_seconds")
        shown = "refused" if mine.get("failed") else "-" if seconds is None else format_seconds(seconds)
        row(name, rival["step_seconds"], rival["measured_peak"], None, shown, rival.get("failed") or _verdict(rival))
    equal = "equal" if result["gradients_equal"] else "DIFFER"
    table.caption = f"{format_bytes(result['moved_bytes'])} moved in a step; results {equal}; steps and peaks are {result['label']}"
    return table


def _verdict(rival: dict[str, Any]) -> str:
    """Describe how the plan under a rival's peak compares: the verdict, and the interval of its time relative to the rival's."""
    found: dict[str, Any] | None = rival.get("difference")
    if found is None:
        return "-"
    if not rival["peak_kept"]:
        return "takes more memory"
    interval = f" ({found['low']:.2f} to {found['high']:.2f} of its time)" if found["low"] is not None else ", too few steps"
    return f"{found['verdict']}{interval}"
