"""Random convolutional networks, int8, int16 and float, whose regions can run in bands."""

import random

import numpy as np
from tests.support.tflite_models import Model

_SAME, _VALID = 0, 1


class Maker:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.numpy = np.random.default_rng(seed)
        self.model = Model()
        self.net = self.model.subgraph()
        self.dtype = self.rng.choice(("int8", "int8", "int8", "int16", "float32", "float32"))

    def quantised(self, scale=0.05):
        if self.dtype == "float32":
            return {}
        return {"scale": (scale,), "zero": 3 if self.dtype == "int8" else 0}

    def weights(self, *shape, axis):
        channels = shape[axis]
        if self.dtype == "float32":
            return self.net.tensor(shape, "float32", self.numpy.normal(0, 0.4, shape))
        values = self.numpy.integers(-90, 90, shape)
        scales = tuple(self.numpy.uniform(0.005, 0.02, channels).tolist())
        return self.net.tensor(
            shape, "int8", values, scale=scales, axis=axis, name=f"w{len(self.net.tensors)}"
        )

    def bias(self, channels):
        if self.dtype == "float32":
            return self.net.tensor((channels,), "float32", self.numpy.normal(0, 1, channels))
        scales = (0.0005,) * channels
        values = self.numpy.integers(-200, 200, channels)
        dtype = "int32" if self.dtype == "int8" else "int64"
        return self.net.tensor((channels,), dtype, values, scale=scales)

    @property
    def typed(self):
        """Type and scale of values."""
        return {"dtype": self.dtype, **self.quantised()}

    def window(self, height, width):
        """Taps, options of padding, stride and activation, dilation, and the rows and columns that
        come of it."""
        taps, stride = self.rng.choice((1, 3, 3, 5)), self.rng.choice((1, 1, 2))
        spread = self.rng.choice((1, 1, 2)) if stride == 1 else 1
        extent = (taps - 1) * spread + 1
        padding = self.rng.choice((_SAME, _SAME, _VALID))
        if padding == _VALID and min(height, width) < extent + 2:
            padding = _SAME
        lost = extent - 1 if padding == _VALID else 0
        sides = [-((lost - side) // stride) for side in (height, width)]
        return taps, {0: padding, 1: stride, 2: stride, 3: 1}, spread, sides

    def layer(self, value):
        _, height, width, channels = self.net.shapes[value]
        kinds = ["conv", "conv", "depthwise", "pool", "pad", "residual", "branches"]
        # TFLM has no kernels of 16 bits for these.
        kinds += ["relu", "prelu"] if self.dtype != "int16" else []
        return getattr(self, self.rng.choice(kinds))(value, height, width, channels)

    def conv(self, value, height, width, channels):
        taps, options, spread, sides = self.window(height, width)
        out = self.rng.choice((4, 8))
        operands = [value, self.weights(out, taps, taps, channels, axis=0), self.bias(out)]
        return self.out("CONV_2D", operands, (1, *sides, out), options | {4: spread, 5: spread})

    def depthwise(self, value, height, width, channels):
        taps, options, spread, sides = self.window(height, width)
        options |= {5: spread, 6: spread}
        operands = [value, self.weights(1, taps, taps, channels, axis=3), self.bias(channels)]
        return self.out("DEPTHWISE_CONV_2D", operands, (1, *sides, channels), options)

    def pool(self, value, height, width, channels):
        kind = self.rng.choice(("MAX_POOL_2D", "AVERAGE_POOL_2D"))
        taps, stride = self.rng.choice(((2, 2), (3, 1), (3, 2)))
        options = {0: _SAME, 1: stride, 2: stride, 3: taps, 4: taps}
        shape = (1, -(-height // stride), -(-width // stride), channels)
        return self.out(kind, [value], shape, options)

    def pad(self, value, *_):
        top, bottom = self.rng.randrange(3), self.rng.randrange(3)
        return self.net.pad(value, (top, bottom), (1, 0), **self.typed)

    def relu(self, value, *_):
        return self.out("RELU", [value])

    def prelu(self, value, height, width, channels):
        slopes = self.numpy.integers(-20, 60, (1, 1, channels))
        more = {"scale": (0.01,), "zero": 0} if self.dtype == "int8" else {}
        operands = [value, self.net.tensor((1, 1, channels), self.dtype, slopes, **more)]
        return self.out("PRELU", operands)

    def branches(self, value, height, width, channels):
        """Two branches, whose operators can run in other orders."""
        ends = []
        for taps in (3, 1):
            options = {0: _SAME, 1: 1, 2: 1, 3: 0, 4: 1, 5: 1}
            weights = self.weights(channels, taps, taps, channels, axis=0)
            made = self.out("CONV_2D", [value, weights, self.bias(channels)], options=options)
            pool = {0: _SAME, 1: 1, 2: 1, 3: 3, 4: 3}
            ends.append(self.out("MAX_POOL_2D", [made], options=pool))
        return self.out("ADD", ends, options={0: 0})

    def residual(self, value, height, width, channels):
        options = {0: _SAME, 1: 1, 2: 1, 3: 1, 5: 1, 6: 1}
        operands = [value, self.weights(1, 3, 3, channels, axis=3), self.bias(channels)]
        made = self.out("DEPTHWISE_CONV_2D", operands, options=options)
        return self.out("ADD", [value, made], options={0: 0})

    def out(self, kind, operands, shape=None, options=None):
        return self.net.out(kind, operands, shape, options, **self.typed)


def another_order(main, rng):
    """Operators in a random order in which each comes after what makes its operands."""
    made, left, order = {*main.inputs}, list(range(len(main.operators))), []
    results = {tensor for op in main.operators for tensor in op.outputs}
    while left:
        ready = [n for n in left if not ({*main.operators[n].inputs} & results) - made]
        order.append(rng.choice(ready))
        left.remove(order[-1])
        made |= {*main.operators[order[-1]].outputs}
    return order


def convolutional(seed):
    """A network of a few layers on an image of up to 20 x 12."""
    maker = Maker(seed)
    rows, columns = maker.rng.choice((8, 12, 15, 16, 20)), maker.rng.choice((4, 7, 12))
    value = maker.net.input((1, rows, columns, maker.rng.choice((4, 8))), **maker.typed)
    for _ in range(maker.rng.randint(2, 6)):
        value = maker.layer(value)
    maker.net.outputs.append(value)
    return maker.model.bytes()
