"""What bands bring for `.tflite` files: ``python -m benchmarks.tflite_bands [FILE.tflite ...]``;
without a file for those of ``benchmarks.networks.microcontrollers``.

For every file: the head as TFLM places it, with a plan, and in bands for 1, 5 and 15 % more
multiply-accumulates, as TFLM's interpreter takes them; the least arena that runs, with a plan and
for 5 %, measured with pointers of 64 bits. For 32 bits it is estimated, from above: 12 bytes less
for each tensor of the file (an entry has two pointers and a type), and 112 less for each band.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.networks.microcontrollers import NETWORKS
from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.tflite.bands.shrink import shrink_model
from loadmaster.integrations.tflite.export import ExportedModel, export_model
from loadmaster.workloads.frontends.tflite.model import parse_model

_WORKS = (0.01, 0.05, 0.15)


def _least(exported: ExportedModel, tensors: int) -> tuple[int, int]:
    """The least arena, measured, and its estimate for pointers of 32 bits."""
    assert exported.after is not None
    least = exported.after.least or exported.after.head + exported.after.tail
    bands = sum(count for _, _, count in exported.bands)
    return least, least - 12 * tensors - 112 * bands


def main(paths: list[str]) -> None:
    """Print a row of Markdown for each file."""
    for path in paths:
        tensors = sum(len(each.tensors) for each in parse_model(Path(path).read_bytes()).subgraphs)
        try:
            plan = export_model(path)
            if plan.after is None:
                print(f"| {plan.name} | TFLM's interpreter cannot load it |", flush=True)
                continue
            banded = [shrink_model(path, extra_work=work) for work in _WORKS]
        except LoadmasterError as error:
            print(f"| {path} | {error} |", flush=True)
            continue
        heads = [f"{each.plan.head:,} (x {each.work:.3f})" for each in banded]
        one, other = _least(plan, tensors), _least(banded[1], tensors)
        arenas = [f"{before:,}, then {after:,}" for before, after in zip(one, other, strict=True)]
        row = (plan.name, f"{plan.plan.head_before:,}", f"{plan.plan.head:,}", *heads, *arenas)
        print(f"| {' | '.join(row)} |", flush=True)


def _made(folder: Path) -> list[str]:
    paths = []
    for name, network in NETWORKS.items():
        paths.append(folder / f"{name}.tflite")
        paths[-1].write_bytes(network())
    return [str(path) for path in paths]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="FILE.tflite")
    files = parser.parse_args().files
    with TemporaryDirectory() as made:
        main(files or _made(Path(made)))
