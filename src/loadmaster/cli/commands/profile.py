"""``loadmaster profile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loadmaster.cli.options import MACHINE, SEARCH, Reading, TimeLimit, option, out_to, parsed
from loadmaster.cli.output import Output, say, versioned
from loadmaster.core.provenance import Label

if TYPE_CHECKING:
    from loadmaster.cost.kernels.profile import Profile
    from loadmaster.workloads.graph import Graph


@dataclass(frozen=True)
class ProfileJson:
    """Kernels of a network timed on this machine."""

    VERSION = 1
    measured: int
    """Number of measurements made by this run."""
    reused: int
    """Number of measurements taken from earlier runs."""
    left: int
    """Number of missing measurements."""
    interrupted: bool
    """Whether a time limit or Ctrl-C ended the work early."""
    threads: int
    """Number of threads that torch used."""
    too_large: Sequence[str]
    """Names of kernels that exceed this machine's free memory."""
    failed: Mapping[str, str]
    """By kernel, why it could not be measured."""
    file: str
    """Path of the file with all measurements."""
    slow: str
    """Folder of the slow memory."""
    label: Literal[Label.MEASURED]
    """How far the measured figures can be trusted."""


def profile_command(
    graph: Annotated[
        str, typer.Argument(metavar="GRAPH", help="A torch module: `torch:module.path:factory`.")
    ],
    *,
    reading: Reading,
    threads: Annotated[
        int | None,
        option("N", MACHINE, "That torch uses. Default: what it takes by itself.", min=1),
    ] = None,
    slow: Annotated[
        Path | None,
        option(
            "DIR", MACHINE, "Folder of the slow memory. Default: the system's for temporary files."
        ),
    ] = None,
    repeats: Annotated[
        int,
        option("N", SEARCH, "Runs of each measurement; the median is kept.", min=1),
    ] = 3,
    time_limit: TimeLimit = None,
    out: Annotated[
        Path | None,
        out_to(
            "Write the network's times, for `calibrate` and `place --cost FILE`. Default: nowhere.",
            "FILE.csv",
        ),
    ] = None,
    output: Output,
) -> None:
    """Time a network's kernels on this machine, for `loadmaster place --cost profile`, and for
    `loadmaster calibrate`.

    Each kernel runs alone, with its largest operands in memory or in mapped files, in every
    combination. Times are kept as they are measured, in the file that LOADMASTER_CACHE names or in
    the user's folder for caches; equal kernels are measured once. After Ctrl-C or a time limit, the
    same command continues.

    Example: `loadmaster profile torch:networks:resnet50 --training --batch 8 --slow /mnt/pmem`
    """
    import tempfile

    from loadmaster.core.units import parse_seconds
    from loadmaster.cost.kernels.kernel_times import KernelTimes, profile_place
    from loadmaster.cost.kernels.profile import profile

    limit = parsed(time_limit, parse_seconds)
    place = profile_place()
    folder = slow or Path(tempfile.gettempdir())
    with output.working(None) as (_, progress):
        network = reading.load([graph])[0]
        done = profile(
            network,
            KernelTimes(place),
            slow=folder,
            threads=threads,
            repeats=repeats,
            time_limit=limit,
            progress=progress,
        )
    if out is not None:
        _write(network, place, done.threads, folder, repeats, out)
    if output.as_json:
        shown = versioned(
            ProfileJson,
            done,
            file=str(place),
            slow=str(folder),
            label=Label.MEASURED,
        )
        output.show(shown, list, [] if out is None else [out])
    elif not output.quiet:
        _print(done, place)


def _write(
    network: Graph, place: Path, threads: int, folder: Path, repeats: int, out: Path
) -> None:
    """Write all measured times of a network's kernels, and times of copies, which are measured now
    if the folder can hold slow memory."""
    from loadmaster.core.errors import SlowMemoryError
    from loadmaster.cost.kernels.kernel_times import KernelTimes
    from loadmaster.cost.kernels.measured_kernels import timed_kernels
    from loadmaster.cost.tables.measured_times_csv import COPY, Amounts, TimedKernel, write_timed
    from loadmaster.integrations.torch_compile.cpu_memory import measure_copies

    rows = list(timed_kernels(network, KernelTimes(place), threads))
    try:
        for copy in measure_copies(network, folder, repeats):
            name, sizes = (
                ("to_fast", (0, copy.bytes, copy.bytes, 0))
                if copy.to_fast
                else ("to_main", (copy.bytes, 0, 0, copy.bytes))
            )
            rows.append(
                TimedKernel(f"copy.{name}", "", copy.seconds, Amounts(COPY, 0, 0, 8, *sizes))
            )
    except SlowMemoryError as error:
        say(f"copies were not measured: {error}", err=True)
    write_timed(rows, out)


def _print(done: Profile, place: Path) -> None:
    """Print how many measurements were made, found and left, and which failed."""
    say(
        f"{done.measured} measurements made with {done.threads} threads, {done.reused} there"
        f" before, {done.left} left; kept in {place}"
    )
    if done.too_large:
        say(
            f"too large for this machine's free memory: {len(done.too_large)} kernels, such as"
            f" {done.too_large[0]}"
        )
    for name, reason in list(done.failed.items())[:3]:
        say(f"not measured: {name}: {reason}")
    if done.left:
        say("run the same command again to go on")
