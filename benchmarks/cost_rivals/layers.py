"""Thirty layers of published networks, and the arrays that all models are asked about."""

from __future__ import annotations

from typing import Any

from loadmaster.cost.analytical.energy import mac_energy, network_energy, sram_energy
from loadmaster.targets.hardware import Core, Memory, Style, Target
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import (
    Job,
    NetworkInfo,
    Operand,
    OperatorInfo,
    Role,
    TensorInstance,
    Workload,
)

ROWS, COLUMNS, BUFFER = 32, 64, 128 * 1024
BANDWIDTH = 34
"""Bytes of main memory a cycle, at 1 GHz."""
STYLES = (Style.WEIGHT_STATIONARY, Style.OUTPUT_STATIONARY, Style.ROW_STATIONARY)
ACCUMULATOR = 4


def _conv(k: int, c: int, size: int, taps: int, stride: int = 1) -> LoopNest:
    return LoopNest(k=k, c=c, y=size, x=size, r=taps, s=taps, stride=(stride, stride))


LAYERS: dict[str, LoopNest] = {
    "resnet50 conv1 7x7 s2": _conv(64, 3, 112, 7, 2),
    "resnet50 2.a 1x1": _conv(64, 256, 56, 1),
    "resnet50 2.b 3x3": _conv(64, 64, 56, 3),
    "resnet50 2.c 1x1": _conv(256, 64, 56, 1),
    "resnet50 3.b 3x3": _conv(128, 128, 28, 3),
    "resnet50 3.c 1x1": _conv(512, 128, 28, 1),
    "resnet50 3.down 1x1 s2": _conv(512, 256, 28, 1, 2),
    "resnet50 4.a 1x1": _conv(256, 1024, 14, 1),
    "resnet50 4.b 3x3": _conv(256, 256, 14, 3),
    "resnet50 4.down 1x1 s2": _conv(1024, 512, 14, 1, 2),
    "resnet50 5.b 3x3": _conv(512, 512, 7, 3),
    "resnet50 5.c 1x1": _conv(2048, 512, 7, 1),
    "resnet50 fc": LoopNest(k=1000, c=2048),
    "vgg16 3.2 3x3": _conv(256, 256, 56, 3),
    "vgg16 4.2 3x3": _conv(512, 512, 28, 3),
    "vgg16 5.1 3x3": _conv(512, 512, 14, 3),
    "alexnet conv2 5x5": _conv(256, 96, 27, 5),
    "alexnet conv3 3x3": _conv(384, 256, 13, 3),
    "mobilenetv2 4.expand 1x1": _conv(192, 32, 28, 1),
    "mobilenetv2 4.project 1x1": _conv(32, 192, 28, 1),
    "mobilenetv2 14.expand 1x1": _conv(576, 96, 14, 1),
    "mobilenetv2 18 1x1": _conv(1280, 320, 7, 1),
    "inception 1x7": LoopNest(k=192, c=192, y=17, x=17, r=1, s=7),
    "bert qkv, 128 tokens": LoopNest(k=768, c=768, y=128),
    "bert ffn1, 128 tokens": LoopNest(k=3072, c=768, y=128),
    "bert ffn2, 128 tokens": LoopNest(k=768, c=3072, y=128),
    "bert scores, a head": LoopNest(k=128, c=64, y=128),
    "vit ffn1, 197 tokens": LoopNest(k=1536, c=384, y=197),
    "lstm step, batch 16": LoopNest(k=4096, c=1024, y=16),
    "gpt2 projection, 1 token": LoopNest(k=768, c=768),
}


def sizes(nest: LoopNest) -> tuple[int, int, int]:
    """Bytes of input (without padding that a convolution adds, of odd filters), weights and output
    of a layer of int8."""
    rows, columns = (
        (out - 1) * step + 1 if step > taps else out * step
        for out, taps, step in ((nest.y, nest.r, nest.stride[0]), (nest.x, nest.s, nest.stride[1]))
    )
    return nest.c * rows * columns, nest.k * nest.c * nest.r * nest.s, nest.k * nest.y * nest.x


def workload(nest: LoopNest) -> Workload:
    """The layer as a job."""
    given, weights, made = sizes(nest)
    named = {"i": given, "w": weights, "o": made}
    tensors = tuple(
        TensorInstance(name, "n", name, 0, size, "activation") for name, size in named.items()
    )
    reads = (Operand("i", given, Role.INPUT, 0), Operand("w", weights, Role.WEIGHT, 0))
    job = Job(
        "j",
        "n",
        0,
        "Conv",
        ("op",),
        (nest,),
        0,
        8,
        reads,
        (Operand("o", made, Role.OUTPUT, 0),),
        (),
    )
    return Workload(
        (NetworkInfo("n", "", "int8", 1, 1, nest.macs, (OperatorInfo("op", (), ()),), ()),),
        (job,),
        tensors,
    )


def machine(style: Style) -> Target:
    """One array with a register for a weight or a sum in each element, as the others have it."""
    core = Core(
        "core",
        style,
        ROWS,
        COLUMNS,
        1e9,
        {8: 1.0, 16: 1.0, 32: 1.0},
        COLUMNS,
        BUFFER,
        local_buffer=LOCAL[style],
    )
    main = Memory("dram", 2**40, BANDWIDTH * 1e9, BANDWIDTH * 1e9, burst=1)
    return Target("array", "", (core,), (main,))


LOCAL = {Style.WEIGHT_STATIONARY: 1, Style.OUTPUT_STATIONARY: ACCUMULATOR, Style.ROW_STATIONARY: 64}
"""Bytes of an element's own memory: a weight, a sum, or a filter row and a window of the input of
several channels."""


def figures(style: Style) -> dict[str, Any]:
    """Picojoules that every model is given: a multiply-accumulate, and a byte of each memory, read
    or written."""
    pico = 1e12
    return {
        "mac": mac_energy(8) * pico,
        "local": sram_energy(LOCAL[style]) * pico,
        "buffer": (sram_energy(BUFFER) + network_energy()) * pico,
        "dram": 1300 / 8,
    }


def described(nest: LoopNest, style: Style) -> dict[str, Any]:
    """A layer and an array as plain numbers, for another process."""
    names = ("k", "c", "y", "x", "r", "s")
    return {
        **{name: getattr(nest, name) for name in names},
        "stride": nest.stride[0],
        "style": str(style),
        "rows": ROWS,
        "columns": COLUMNS,
        "buffer": BUFFER,
        "local": LOCAL[style],
        "bandwidth": BANDWIDTH,
        "picojoules": figures(style),
    }
