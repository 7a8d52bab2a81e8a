"""Networks for microcontrollers as ``.tflite`` files of int8, with published shapes and random
weights: MobileNetV1 0.25 for persons and wake words, ResNet-8, and MobileNetV2."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.tflite_bands import Maker
from tests.support.tflite_models import b, i

_SAME, _VALID = 0, 1


class _Network(Maker):
    def __init__(self, size: int, channels: int, *, pads: bool = False) -> None:
        super().__init__(1)
        self.dtype, self.pads = "int8", pads
        self.value = self.net.input((1, size, size, channels), "int8", **self.quantised())

    def window(self, value: int, taps: int, stride: int, width: int | None, deep: int = 1) -> int:
        """A convolution, or a depthwise one where no width is given; with a PAD before it if the
        network has such."""
        _, rows, _, channels = self.net.shapes[value]
        side, padding = -(-rows // stride), _SAME
        if self.pads and taps > 1:
            pads = self.net.tensor((4, 2), "int32", [[0, 0], [1, 1], [1, 1], [0, 0]])
            value = self.out("PAD", [value, pads], (1, rows + 2, rows + 2, channels), {})
            padding = _VALID
        strides = {0: b(padding), 1: i(stride), 2: i(stride)}
        if width is None:
            width = channels * deep
            operands = [value, self.weights(1, taps, taps, width, axis=3), self.bias(width)]
            options = strides | {3: i(deep), 5: i(1), 6: i(1)}
            return self.out("DEPTHWISE_CONV_2D", operands, (1, side, side, width), options)
        operands = [value, self.weights(width, taps, taps, channels, axis=0), self.bias(width)]
        options = strides | {3: b(1), 4: i(1), 5: i(1)}
        return self.out("CONV_2D", operands, (1, side, side, width), options)

    def add(self, one: int, other: int) -> int:
        return self.out("ADD", [one, other], self.net.shapes[other], {0: b(0)})

    def classified(self, value: int, classes: int) -> bytes:
        """The file, with a pool over all that is left and a layer of classes behind it."""
        _, rows, _, channels = self.net.shapes[value]
        options = {0: b(_VALID), 1: i(1), 2: i(1), 3: i(rows), 4: i(rows)}
        value = self.out("AVERAGE_POOL_2D", [value], (1, 1, 1, channels), options)
        self.net.outputs.append(self.window(value, 1, 1, classes))
        return self.model.bytes()


def mobilenet_v1(channels: int) -> bytes:
    """MobileNetV1 0.25 of 96 x 96 pixels; of one channel as TFLM's person detection, of three as
    MLPerf Tiny's visual wake words."""
    net = _Network(96, channels)
    first = (None, 8) if channels == 1 else (8, 1)
    value = net.window(net.value, 3, 2, *first)
    widths = (16, 32, 32, 64, 64, *(128,) * 6, 256, 256)
    for number, width in enumerate(widths):
        stride = 2 if number in (1, 3, 5, 11) else 1
        value = net.window(net.window(value, 3, stride, None), 1, 1, width)
    return net.classified(value, 2)


def resnet8() -> bytes:
    """MLPerf Tiny's network for CIFAR-10."""
    net = _Network(32, 3)
    value = net.window(net.value, 3, 1, 16)
    value = net.add(value, net.window(net.window(value, 3, 1, 16), 3, 1, 16))
    for width in (32, 64):
        made = net.window(net.window(value, 3, 2, width), 3, 1, width)
        value = net.add(net.window(value, 1, 2, width), made)
    return net.classified(value, 10)


def mobilenet_v2(*, pads: bool) -> bytes:
    """MobileNetV2 of 224 x 224 pixels; ``pads``: with a PAD before each window."""
    net = _Network(224, 3, pads=pads)
    value = net.window(net.value, 3, 2, 32)
    blocks = [(6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2)]
    for expansion, width, count, stride in [(1, 16, 1, 1), *blocks, (6, 320, 1, 1)]:
        for number in range(count):
            source, channels = value, net.net.shapes[value][3]
            if expansion > 1:
                value = net.window(value, 1, 1, expansion * channels)
            value = net.window(value, 3, 1 if number else stride, None)
            value = net.window(value, 1, 1, width)
            if number:
                value = net.add(source, value)
    return net.classified(net.window(value, 1, 1, 1280), 1000)


NETWORKS: dict[str, Callable[[], bytes]] = {
    "person detection": lambda: mobilenet_v1(1),
    "visual wake words": lambda: mobilenet_v1(3),
    "ResNet-8": resnet8,
    "MobileNetV2": lambda: mobilenet_v2(pads=False),
    "MobileNetV2 with PAD": lambda: mobilenet_v2(pads=True),
}
