"""Training steps of well-known networks as kernel sequences, written by hand: forward, backward,
weight gradients.

Costs are those of the Optane server of the slides (docs/placement.md), or of a GPU whose kernels
need their operands in its own memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelSequence,
    Operand,
    StoredKind,
    StoredTensor,
)


@dataclass(frozen=True)
class Machine:
    """Operations/s and bytes/s; ``slow_read`` None: kernels cannot use the slow memory."""

    flops: float = 2.3e12
    fast: float = 100e9
    slow_read: float | None = 39e9
    slow_write: float = 14e9
    link: CopyLink = field(default=CopyLink(29e9, 12e9, 2e9, 2.5e9))


OPTANE = Machine()
GPU = Machine(13e12, 616e9, None, 0.0, CopyLink(12e9, 12e9, 12e9, 12e9))
INPUT, WEIGHT, OUTPUT, INNER = (
    StoredKind.INPUT,
    StoredKind.WEIGHT,
    StoredKind.OUTPUT,
    StoredKind.INTERMEDIATE,
)


@dataclass(frozen=True)
class Value:
    """A tensor of four-byte elements."""

    number: int
    shape: tuple[int, ...]


class Tape:
    """Records kernels; ``backward`` runs what the forward kernels left behind, last first."""

    def __init__(self, name: str, machine: Machine = OPTANE) -> None:
        self.name, self.machine = name, machine
        self.tensors: list[StoredTensor] = []
        self.kernels: list[Kernel] = []
        self.back: list[Callable[[], None]] = []
        self.gradients: dict[int, Value] = {}

    def tensor(self, shape: tuple[int, ...], kind: StoredKind = INNER) -> Value:
        self.tensors.append(StoredTensor(f"{kind}{len(self.tensors)}", 4 * math.prod(shape), kind))
        return Value(len(self.tensors) - 1, shape)

    def run(
        self,
        kind: str,
        reads: list[Value],
        writes: list[Value],
        flops: float,
        updates: tuple[Value, ...] = (),
    ) -> None:
        m = self.machine
        operands = []
        for value in dict.fromkeys([*reads, *writes, *updates]):
            read, write = value in reads or value in updates, value in writes or value in updates
            size = self.tensors[value.number].bytes
            slow = (
                math.inf
                if m.slow_read is None
                else size * (read / m.slow_read + (write / m.slow_write if write else 0.0))
            )
            operands.append(
                Operand(value.number, read, write, size * (read + write) / m.fast, slow)
            )
        self.kernels.append(
            Kernel(
                f"{kind}{len(self.kernels)}",
                kind,
                tuple(operands),
                (Algorithm("only", flops / m.flops),),
            )
        )

    def sequence(self, alignment: int = 64) -> KernelSequence:
        return KernelSequence(
            self.name, tuple(self.tensors), tuple(self.kernels), self.machine.link, alignment
        )

    # --- gradients
    # ------------------------------------------------------------------------------------------------------------------

    def give(self, value: Value, gradient: Value) -> None:
        """Another gradient of ``value``: added to the one there is."""
        if self.tensors[value.number].kind is INPUT:
            return
        if value.number in self.gradients:
            total = self.tensor(value.shape)
            self.run(
                "add", [self.gradients[value.number], gradient], [total], math.prod(value.shape)
            )
            gradient = total
        self.gradients[value.number] = gradient

    def of(self, value: Value) -> Value:
        return self.gradients[value.number]

    def backward(self, value: Value) -> None:
        first = self.tensor(value.shape)
        self.run("fill", [], [first], 0.0)
        self.gradients[value.number] = first
        for step in reversed(self.back):
            step()

    # --- operators
    # ------------------------------------------------------------------------------------------------------------------

    def conv(self, x: Value, channels: int, size: int, stride: int = 1) -> Value:
        b, c, h, w = x.shape
        weight = self.tensor((channels, c, size, size), WEIGHT)
        y = self.tensor((b, channels, h // stride, w // stride))
        flops = 2.0 * math.prod(y.shape) * c * size * size
        self.run("conv", [x, weight], [y], flops)

        def back() -> None:
            if self.tensors[x.number].kind is not INPUT:
                dx = self.tensor(x.shape)
                self.run("conv_data", [self.of(y), weight], [dx], flops)
                self.give(x, dx)
            dw = self.tensor(weight.shape, OUTPUT)
            self.run("conv_weight", [self.of(y), x], [dw], flops)

        self.back.append(back)
        return y

    def product(self, x: Value, width: int) -> Value:
        *outer, inner = x.shape
        weight = self.tensor((inner, width), WEIGHT)
        y = self.tensor((*outer, width))
        flops = 2.0 * math.prod(y.shape) * inner
        self.run("product", [x, weight], [y], flops)

        def back() -> None:
            dx, dw = self.tensor(x.shape), self.tensor(weight.shape, OUTPUT)
            self.run("product_data", [self.of(y), weight], [dx], flops)
            self.give(x, dx)
            self.run("product_weight", [self.of(y), x], [dw], flops)

        self.back.append(back)
        return y

    def norm(self, x: Value, channels: int) -> Value:
        scale, shift = self.tensor((channels,), WEIGHT), self.tensor((channels,), WEIGHT)
        y, mean, deviation = (
            self.tensor(x.shape),
            self.tensor((channels,)),
            self.tensor((channels,)),
        )
        self.run("norm", [x, scale, shift], [y, mean, deviation], 5.0 * math.prod(x.shape))

        def back() -> None:
            dx, ds, db = (
                self.tensor(x.shape),
                self.tensor((channels,), OUTPUT),
                self.tensor((channels,), OUTPUT),
            )
            self.run(
                "norm_back",
                [self.of(y), x, scale, mean, deviation],
                [dx, ds, db],
                8.0 * math.prod(x.shape),
            )
            self.give(x, dx)

        self.back.append(back)
        return y

    def relu(self, x: Value) -> Value:
        y = self.tensor(x.shape)
        self.run("relu", [x], [y], math.prod(x.shape))

        def back() -> None:
            dx = self.tensor(x.shape)
            self.run("relu_back", [self.of(y), y], [dx], math.prod(x.shape))
            self.give(x, dx)

        self.back.append(back)
        return y

    def add(self, x: Value, z: Value) -> Value:
        y = self.tensor(x.shape)
        self.run("add", [x, z], [y], math.prod(x.shape))

        def back() -> None:
            self.give(x, self.of(y))
            self.give(z, self.of(y))

        self.back.append(back)
        return y

    def concat(self, parts: list[Value]) -> Value:
        b, _, h, w = parts[0].shape
        y = self.tensor((b, sum(p.shape[1] for p in parts), h, w))
        self.run("concat", parts, [y], 0.0)

        def back() -> None:
            slices = [self.tensor(p.shape) for p in parts]
            self.run("split", [self.of(y)], slices, 0.0)
            for part, gradient in zip(parts, slices, strict=True):
                self.give(part, gradient)

        self.back.append(back)
        return y

    def pool(self, x: Value, stride: int) -> Value:
        b, c, h, w = x.shape
        y = self.tensor((b, c, max(h // stride, 1), max(w // stride, 1)))
        self.run("pool", [x], [y], math.prod(x.shape))

        def back() -> None:
            dx = self.tensor(x.shape)
            self.run("pool_back", [self.of(y), x], [dx], math.prod(x.shape))
            self.give(x, dx)

        self.back.append(back)
        return y

    def attention(self, q: Value, k: Value, v: Value, heads: int) -> Value:
        b, s, d = q.shape
        scores, weights, y = (
            self.tensor((b, heads, s, s)),
            self.tensor((b, heads, s, s)),
            self.tensor(q.shape),
        )
        flops = 2.0 * b * s * s * d
        self.run("scores", [q, k], [scores], flops)
        self.run("softmax", [scores], [weights], 5.0 * math.prod(scores.shape))
        self.run("mix", [weights, v], [y], flops)

        def back() -> None:
            dw, dv, ds, dq, dk = (self.tensor(t.shape) for t in (weights, v, scores, q, k))
            self.run("mix_weights", [self.of(y), v], [dw], flops)
            self.run("mix_values", [self.of(y), weights], [dv], flops)
            self.run("softmax_back", [dw, weights], [ds], 5.0 * math.prod(scores.shape))
            self.run("scores_q", [ds, k], [dq], flops)
            self.run("scores_k", [ds, q], [dk], flops)
            for value, gradient in ((q, dq), (k, dk), (v, dv)):
                self.give(value, gradient)

        self.back.append(back)
        return y

    def adam(self) -> None:
        """One fused update for every weight, in place."""
        weights = [i for i, tensor in enumerate(self.tensors) if tensor.kind is WEIGHT]
        gradients = [i for i, tensor in enumerate(self.tensors) if tensor.kind is OUTPUT]
        for weight, gradient in zip(weights, reversed(gradients), strict=False):
            shape = (self.tensors[weight].bytes // 4,)
            state = tuple(self.tensor(shape, WEIGHT) for _ in range(2))
            self.run(
                "adam",
                [Value(gradient, shape)],
                [],
                10.0 * shape[0],
                (Value(weight, shape), *state),
            )


def resnet(
    blocks: tuple[int, ...] = (3, 24, 36, 3),
    batch: int = 512,
    machine: Machine = OPTANE,
    image: int = 224,
) -> KernelSequence:
    """ResNet-200 with the default blocks."""
    tape = Tape(f"resnet{3 * sum(blocks) + 2}", machine)
    x = tape.tensor((batch, 3, image, image), INPUT)
    x = tape.pool(tape.relu(tape.norm(tape.conv(x, 64, 7, 2), 64)), 2)
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = tape.relu(tape.norm(tape.conv(x, width, 1), width))
            y = tape.relu(tape.norm(tape.conv(y, width, 3, stride), width))
            y = tape.norm(tape.conv(y, 4 * width, 1), 4 * width)
            skip = x if block else tape.norm(tape.conv(x, 4 * width, 1, stride), 4 * width)
            x = tape.relu(tape.add(y, skip))
    return _finish(tape, x)


def densenet(
    blocks: tuple[int, ...] = (6, 12, 64, 48),
    batch: int = 512,
    machine: Machine = OPTANE,
    growth: int = 32,
) -> KernelSequence:
    """DenseNet-264 with the default blocks."""
    tape = Tape(f"densenet{2 * sum(blocks) + 4}", machine)
    x = tape.tensor((batch, 3, 224, 224), INPUT)
    x = tape.pool(tape.relu(tape.norm(tape.conv(x, 64, 7, 2), 64)), 2)
    for stage, count in enumerate(blocks):
        parts = [x]
        for _ in range(count):
            x = tape.concat(parts) if len(parts) > 1 else x
            y = tape.conv(tape.relu(tape.norm(x, x.shape[1])), 4 * growth, 1)
            parts.append(tape.conv(tape.relu(tape.norm(y, 4 * growth)), growth, 3))
        x = tape.concat(parts)
        if stage < len(blocks) - 1:
            x = tape.pool(tape.conv(tape.relu(tape.norm(x, x.shape[1])), x.shape[1] // 2, 1), 2)
    return _finish(tape, x)


def vgg(
    counts: tuple[int, ...] = (2, 2, 4, 4, 4), batch: int = 2048, machine: Machine = OPTANE
) -> KernelSequence:
    """VGG 19 with the default counts."""
    tape = Tape(f"vgg{sum(counts) + 3}", machine)
    x = tape.tensor((batch, 3, 224, 224), INPUT)
    for stage, count in enumerate(counts):
        for _ in range(count):
            x = tape.relu(tape.conv(x, min(64 << stage, 512), 3))
        x = tape.pool(x, 2)
    return _finish(tape, x)


def transformer(
    layers: int = 24,
    batch: int = 32,
    length: int = 512,
    width: int = 1024,
    machine: Machine = OPTANE,
) -> KernelSequence:
    """Decoder blocks with an optimiser: 42 kernels a layer."""
    tape = Tape(f"transformer{layers}", machine)
    x = tape.tensor((batch, length, width), INPUT)
    x = tape.product(x, width)
    for _ in range(layers):
        y = tape.norm(x, width)
        x = tape.add(
            x,
            tape.product(
                tape.attention(*(tape.product(y, width) for _ in range(3)), width // 64), width
            ),
        )
        x = tape.add(
            x, tape.product(tape.relu(tape.product(tape.norm(x, width), 4 * width)), width)
        )
    tape.backward(x)
    tape.adam()
    return tape.sequence()


def _finish(tape: Tape, x: Value) -> KernelSequence:
    x = tape.pool(x, x.shape[2])
    tape.backward(tape.conv(x, 1000, 1))
    return tape.sequence()
