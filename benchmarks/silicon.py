"""Published silicon beside estimates: ``python -m benchmarks.silicon [--write]``.

Prints, for chips whose papers give measured figures, every figure beside Loadmaster's estimate for
the bundled target of that chip, as the tables of docs/silicon.md; ``--write`` puts them there.
Published figures are copied from the papers named beside them; estimates are made here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadmaster.core.provenance import Label
from loadmaster.cost.analytical.job_costs import job_costs
from loadmaster.targets.hardware import Target
from loadmaster.targets.load import target as read_target
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Job, Operand, Role, TensorInstance, Workload

PAGE = Path(__file__).parents[1] / "docs" / "silicon.md"
MARK = "<!-- tables: python -m benchmarks.silicon --write -->"
MEGABYTE = 1e6


@dataclass(frozen=True)
class Layer:
    """A convolution as a paper measured it: its loops, processing and total latency in ms, DRAM
    traffic in MB, power of the chip in mW.

    ``compression`` is how many times more the traffic would be without run-length coding, 0 where
    the paper does not say.
    """

    name: str
    nest: LoopNest
    processing: float
    total: float
    dram: float
    power: float
    compression: float = 0.0


def _conv(
    k: int, c: int, out: int, taps: int, batch: int, stride: int = 1, groups: int = 1
) -> LoopNest:
    """A square convolution of a batch; ``k`` and ``c`` are those of all groups."""
    return LoopNest(
        k=k // groups,
        c=c // groups,
        y=out,
        x=out,
        r=taps,
        s=taps,
        groups=groups,
        batch=batch,
        stride=(stride, stride),
        input="i",
        weight="w",
    )


# Chen et al., JSSC 2017: table V (AlexNet, batch 4), and figure 9 for what run-length coding saves.
# 1 V, 200 MHz.
ALEXNET = (
    Layer("CONV1", _conv(96, 3, 55, 11, 4, stride=4), 16.5, 20.9, 5.0, 332, 1.2),
    Layer("CONV2", _conv(256, 96, 27, 5, 4, groups=2), 39.2, 41.9, 4.0, 288, 1.4),
    Layer("CONV3", _conv(384, 256, 13, 3, 4), 21.8, 23.6, 3.0, 266, 1.7),
    Layer("CONV4", _conv(384, 384, 13, 3, 4, groups=2), 16.0, 18.4, 2.1, 235, 1.8),
    Layer("CONV5", _conv(256, 384, 13, 3, 4, groups=2), 10.0, 10.5, 1.3, 236, 1.9),
)
# The same: table VI (VGG-16, batch 3).
VGG = (
    Layer("CONV1-1", _conv(64, 3, 224, 3, 3), 38.0, 76.2, 15.4, 247),
    Layer("CONV1-2", _conv(64, 64, 224, 3, 3), 810.6, 910.3, 54.0, 218),
    Layer("CONV2-1", _conv(128, 64, 112, 3, 3), 405.3, 470.3, 33.4, 242),
    Layer("CONV2-2", _conv(128, 128, 112, 3, 3), 810.8, 894.3, 48.5, 231),
    Layer("CONV3-1", _conv(256, 128, 56, 3, 3), 204.0, 241.1, 20.2, 254),
    Layer("CONV3-2", _conv(256, 256, 56, 3, 3), 408.1, 460.9, 32.2, 235),
    Layer("CONV3-3", _conv(256, 256, 56, 3, 3), 408.1, 457.7, 30.8, 233),
    Layer("CONV4-1", _conv(512, 256, 28, 3, 3), 105.1, 135.8, 17.8, 278),
    Layer("CONV4-2", _conv(512, 512, 28, 3, 3), 210.0, 254.8, 28.6, 261),
    Layer("CONV4-3", _conv(512, 512, 28, 3, 3), 210.0, 246.3, 22.8, 240),
    Layer("CONV5-1", _conv(512, 512, 14, 3, 3), 48.3, 54.3, 6.3, 258),
    Layer("CONV5-2", _conv(512, 512, 14, 3, 3), 48.5, 53.7, 5.7, 236),
    Layer("CONV5-3", _conv(512, 512, 14, 3, 3), 48.5, 53.7, 5.6, 230),
)


@dataclass(frozen=True)
class Application:
    """An application of the paper on tensor processing units: layers with weights, all weights,
    batch, and measured TOPS."""

    name: str
    layers: int
    weights: float
    batch: int
    tops: float


# Jouppi et al., ISCA 2017: tables 1 and 3. Shapes are not published: layers are taken to be square
# and equal.
TPU = (
    Application("MLP0", 5, 20e6, 200, 12.3),
    Application("MLP1", 4, 5e6, 168, 9.7),
    Application("LSTM0", 24, 52e6, 64, 3.7),
    Application("LSTM1", 37, 34e6, 96, 2.8),
)


def work_of(nests: Sequence[LoopNest], bits: int) -> Workload:
    """One job for each nest, with an input, a weight and an output of its own; padding is not
    read."""
    jobs, tensors = [], []
    for number, nest in enumerate(nests):
        width = bits // 8
        inputs = (
            nest.groups
            * nest.batch
            * nest.c
            * _read(nest.y, nest.r, nest.stride[0])
            * _read(nest.x, nest.s, nest.stride[1])
        )
        weights = nest.groups * nest.k * nest.c * nest.r * nest.s
        outputs = nest.groups * nest.batch * nest.k * nest.y * nest.x
        operands = [
            Operand(f"{number}/{role}", size * width, role, 0)
            for role, size in ((Role.INPUT, inputs), (Role.WEIGHT, weights), (Role.OUTPUT, outputs))
        ]
        tensors += [
            TensorInstance(o.tensor, "", o.tensor, 0, o.bytes, "activation") for o in operands
        ]
        jobs.append(
            Job(
                str(number),
                "",
                0,
                "Conv",
                (str(number),),
                (nest,),
                0,
                bits,
                tuple(operands[:2]),
                tuple(operands[2:]),
                (),
            )
        )
    return Workload((), tuple(jobs), tuple(tensors))


def _read(out: int, taps: int, stride: int) -> int:
    """Positions of the input along an axis without the padding that keeps sizes, where filters move
    by one."""
    return (out - 1) * stride + taps if stride > 1 else out


@dataclass(frozen=True)
class Estimate:
    """Seconds on the array, seconds in all, bytes from and to main memory, joules on the chip."""

    processing: float
    total: float
    dram: float
    energy: float


def estimates(
    nests: Sequence[LoopNest], target: Target, bits: int, streamed: Sequence[Role] = tuple(Role)
) -> list[Estimate]:
    """Loadmaster's estimate of every nest; operands that are not ``streamed`` stay on chip."""
    work = work_of(nests, bits)
    costs = job_costs(work, target)
    (kind,) = costs.kinds
    fast = target.with_memory(0, read_bandwidth=1e30, write_bandwidth=1e30)
    (quick,) = job_costs(work, fast).kinds
    from_main = np.isin(costs.operands.role, [list(Role).index(role) for role in streamed])
    found = []
    for number in range(len(nests)):
        mine = (costs.operands.job == number) & from_main
        read, written = (
            int(kind.moved[mine & (costs.operands.write == way)].sum()) for way in (False, True)
        )
        total = max(float(kind.seconds[number]), target.main.link_seconds(read, written))
        found.append(
            Estimate(
                float(quick.seconds[number]), total, read + written, float(kind.energy[number])
            )
        )
    return found


def eyeriss_table(layers: Sequence[Layer]) -> Iterator[str]:
    """Lines of the table of a network on Eyeriss."""
    found = estimates([layer.nest for layer in layers], read_target("eyeriss"), 16)
    coded = all(layer.compression for layer in layers)
    heading = f"DRAM{' uncoded' if coded else ''}, MB"
    yield (
        "| layer | "
        + " | ".join(
            f"{what}: {Label.PUBLISHED} | {Label.ESTIMATED} | "
            for what in ("processing, ms", "total, ms", heading)
        )
        + "|"
    )
    yield "|---|" + "---:|" * 9
    rows = [
        (
            layer.name,
            layer.processing,
            e.processing * 1e3,
            layer.total,
            e.total * 1e3,
            layer.dram * (layer.compression or 1),
            e.dram / MEGABYTE,
        )
        for layer, e in zip(layers, found, strict=True)
    ]
    sums = ("all", *(sum(row[column] for row in rows) for column in range(1, 7)))  # type: ignore[misc]
    for row in (*rows, sums):
        cells = [
            f"{row[at]:.1f} | {row[at + 1]:.1f} | {_apart(row[at + 1], row[at])}"
            for at in (1, 3, 5)
        ]  # type: ignore[call-overload]
        yield f"| {row[0]} | {' | '.join(cells)} |"


def tpu_table() -> Iterator[str]:
    """Lines of the table of applications on the first tensor processing unit."""
    target = read_target("tpu-v1")
    yield (
        f"| application | layers with weights | weights | batch | TOPS: {Label.PUBLISHED} |"
        f" {Label.ESTIMATED} | |"
    )
    yield "|---|" + "---:|" * 6
    for app in TPU:
        side = round((app.weights / app.layers) ** 0.5)
        nest = LoopNest(k=side, c=side, y=app.batch, input="i", weight="w")
        (found,) = estimates([nest], target, 8, (Role.WEIGHT,))
        tops = 2 * nest.macs / found.total / 1e12
        stated = f"| {app.name} | {app.layers} | {app.weights / 1e6:.0f} M | {app.batch}"
        yield f"{stated} | {app.tops:.1f} | {tops:.1f} | {_apart(tops, app.tops)} |"


def power_table() -> Iterator[str]:
    """Lines of the table of power on Eyeriss: energy on the chip over the estimated time."""
    yield f"| network | chip power, mW: {Label.PUBLISHED} | {Label.ESTIMATED} | |"
    yield "|---|---:|---:|---:|"
    for name, layers, published in (("AlexNet", ALEXNET, 278.0), ("VGG-16", VGG, 236.0)):
        found = estimates([layer.nest for layer in layers], read_target("eyeriss"), 16)
        watts = sum(e.energy for e in found) / sum(e.total for e in found)
        yield f"| {name} | {published:.0f} | {watts * 1e3:.0f} | {_apart(watts * 1e3, published)} |"


def _apart(estimated: float, published: float) -> str:
    return f"{estimated / published - 1:+.0%}".replace("%", " %")


def tables() -> str:
    """All tables, as they stand on the page."""
    parts = {
        "AlexNet on Eyeriss, batch 4": eyeriss_table(ALEXNET),
        "VGG-16 on Eyeriss, batch 3": eyeriss_table(VGG),
        "Power of Eyeriss": power_table(),
        "TPU v1": tpu_table(),
    }
    return "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in parts.items())


def on_page(text: str) -> str:
    """The page with its tables as they are now."""
    before, _, rest = text.partition(MARK)
    _, _, after = rest.partition(MARK)
    return f"{before}{MARK}\n\n{tables()}\n\n{MARK}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/silicon.md")
    if parser.parse_args().write:
        PAGE.write_text(on_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(tables())


if __name__ == "__main__":
    main()
