"""Random small TensorFlow Lite models: layers with branches, control flow, variables, and kernels
that ask for scratch."""

from __future__ import annotations

import random

import numpy as np
from tests.support.tflite_models import Model, Subgraph, b, i

from loadmaster.integrations.tflite.flatbuffer_writer import Number, Text

_SAME = 0
Value = tuple[int, tuple[int, int, int, int]]
"""A tensor by its index, and its shape: one image, height, width, channels."""


class Layers:
    """Adds random layers to a subgraph."""

    def __init__(self, rng: random.Random, subgraph: Subgraph) -> None:
        self.rng, self.subgraph = rng, subgraph

    def weights(self, *shape: int) -> int:
        values = np.random.default_rng(self.rng.randrange(2**32)).normal(0, 0.4, shape)
        return self.subgraph.tensor(shape, "float32", values)

    def grow(self, values: list[Value], layers: int) -> list[Value]:
        """Values and some more, each computed from some of them."""
        kinds = (
            self.convolution,
            self.depthwise,
            self.elementwise,
            self.sum,
            self.pool,
            self.pad,
            self.join,
            self.mean,
            self.softmax,
            self.flat,
        )
        for _ in range(layers):
            values = [*values, self.rng.choice(kinds)(self.rng.choice(values), values)]
        return values

    def convolution(self, value: Value, _: list[Value]) -> Value:
        (index, (_n, height, width, channels)), taps = value, self.rng.choice((1, 3))
        out, stride = self.rng.randint(1, 6), self.rng.choice((1, 1, 2))
        shape = (1, -(-height // stride), -(-width // stride), out)
        options = {0: b(_SAME), 1: i(stride), 2: i(stride), 4: i(1), 5: i(1)}
        return self.subgraph.out(
            "CONV_2D",
            [index, self.weights(out, taps, taps, channels), self.weights(out)],
            shape,
            options,
        ), shape

    def depthwise(self, value: Value, _: list[Value]) -> Value:
        index, shape = value
        options = {0: b(_SAME), 1: i(1), 2: i(1), 3: i(1), 5: i(1), 6: i(1)}
        filters = self.weights(1, 3, 3, shape[3])
        return self.subgraph.out(
            "DEPTHWISE_CONV_2D", [index, filters, self.weights(shape[3])], shape, options
        ), shape

    def elementwise(self, value: Value, _: list[Value]) -> Value:
        kind = self.rng.choice(("RELU", "RELU6", "TANH", "LOGISTIC", "ABS", "NEG", "FLOOR", "ELU"))
        return self.subgraph.out(kind, [value[0]], value[1]), value[1]

    def sum(self, value: Value, values: list[Value]) -> Value:
        other = self.rng.choice([each for each in values if each[1] == value[1]])
        kind = self.rng.choice(("ADD", "MUL", "SUB"))
        return self.subgraph.out(kind, [value[0], other[0]], value[1], {0: b(0)}), value[1]

    def pool(self, value: Value, _: list[Value]) -> Value:
        index, (_n, height, width, channels) = value
        shape = (1, -(-height // 2), -(-width // 2), channels)
        kind = self.rng.choice(("MAX_POOL_2D", "AVERAGE_POOL_2D"))
        return self.subgraph.out(
            kind, [index], shape, {0: b(_SAME), 1: i(2), 2: i(2), 3: i(2), 4: i(2)}
        ), shape

    def pad(self, value: Value, _: list[Value]) -> Value:
        index, (_n, height, width, channels) = value
        if height * width > 200:
            return self.elementwise(value, [])
        shape = (1, height + 1, width + 2, channels)
        return self.subgraph.out(
            "PAD",
            [index, self.subgraph.tensor((4, 2), "int32", [0, 0, 1, 0, 1, 1, 0, 0])],
            shape,
            {},
        ), shape

    def join(self, value: Value, values: list[Value]) -> Value:
        other = self.rng.choice([each for each in values if each[1][:3] == value[1][:3]])
        shape = (*value[1][:3], value[1][3] + other[1][3])
        return self.subgraph.out("CONCATENATION", [value[0], other[0]], shape, {0: i(3)}), shape

    def mean(self, value: Value, _: list[Value]) -> Value:
        shape = (1, 1, 1, value[1][3])
        return self.subgraph.out(
            "MEAN", [value[0], self.subgraph.tensor((2,), "int32", [1, 2])], shape, {0: b(1)}
        ), shape

    def softmax(self, value: Value, _: list[Value]) -> Value:
        return self.subgraph.out("SOFTMAX", [value[0]], value[1], {0: Number("f", 1.0)}), value[1]

    def flat(self, value: Value, _: list[Value]) -> Value:
        """All elements in a row, and a fully connected layer."""
        index, shape = value
        count, out = int(np.prod(shape)), self.rng.randint(2, 12)
        target = self.subgraph.tensor((2,), "int32", [1, count])
        row = self.subgraph.out("RESHAPE", [index, target], (1, count), {})
        result = self.subgraph.out(
            "FULLY_CONNECTED", [row, self.weights(out, count), self.weights(out)], (1, out), {}
        )
        image = (1, 1, 1, out)
        return self.subgraph.out(
            "RESHAPE", [result, self.subgraph.tensor((4,), "int32", image)], image, {}
        ), image


def random_model(seed: int) -> Model:
    """A model of 3 to 25 operators, about half of them with control flow or variables,
    deterministic for a seed."""
    rng = random.Random(seed)
    model = Model()
    main = model.subgraph()
    layers = Layers(rng, main)
    first = (1, rng.randint(3, 9), rng.randint(3, 9), rng.randint(1, 5))
    values: list[Value] = [(main.input(first), first)]
    if rng.random() < 0.3:
        values.append((main.input(first), first))
    values = layers.grow(values, rng.randint(1, 8))
    for add in rng.choice(
        ((), (), (_branch,), (_loop,), (_branch, _loop), (_memory,), (_memory, _loop))
    ):
        values = layers.grow(
            [*values, add(rng, model, main, rng.choice(values))], rng.randint(0, 3)
        )
    values = layers.grow(values, rng.randint(1, 8))
    if rng.random() < 0.2:
        main.tensor((1, 40), name="unused")
        main.tensor((1, 30), name="unused as well")
    main.outputs = [values[-1][0]] + ([rng.choice(values)[0]] if rng.random() < 0.3 else [])
    main.outputs = list(dict.fromkeys(main.outputs))
    return model


def _body(
    rng: random.Random, model: Model, shape: tuple[int, int, int, int]
) -> tuple[int, Subgraph, int, int]:
    """A subgraph from a value of a shape to one of the same shape: its number, itself, its input
    and output."""
    number, subgraph = len(model.subgraphs), model.subgraph()
    index = subgraph.input(shape)
    values = Layers(rng, subgraph).grow([(index, shape)], rng.randint(0, 4))
    last = rng.choice([value for value, its in values if its == shape])
    return number, subgraph, index, subgraph.out("TANH", [last], shape)


def _branch(rng: random.Random, model: Model, main: Subgraph, value: Value) -> Value:
    condition = main.input((1,), "bool")
    numbers = []
    for _ in range(2):
        number, subgraph, _, result = _body(rng, model, value[1])
        subgraph.outputs = [result]
        numbers.append(number)
    return main.out(
        "IF", [condition, value[0]], value[1], {0: i(numbers[0]), 1: i(numbers[1])}
    ), value[1]


def _loop(rng: random.Random, model: Model, main: Subgraph, value: Value) -> Value:
    """Three rounds."""
    start = main.tensor((1,), "float32", [0.0])
    number, condition = len(model.subgraphs), model.subgraph()
    counter = condition.input((1,))
    condition.input(value[1])
    condition.outputs = [
        condition.out(
            "LESS", [counter, condition.tensor((1,), "float32", [3.0])], (1,), dtype="bool"
        )
    ]
    body_number, body, _, result = _body(rng, model, value[1])
    count = body.tensor((1,))
    body.inputs.insert(0, count)
    more = body.out("ADD", [count, body.tensor((1,), "float32", [1.0])], (1,), {0: b(0)})
    body.outputs = [more, result]
    counted, looped = main.tensor((1,)), main.tensor(value[1])
    main.op("WHILE", [start, value[0]], [counted, looped], {0: i(number), 1: i(body_number)})
    return looped, value[1]


def _memory(rng: random.Random, model: Model, main: Subgraph, value: Value) -> Value:
    """A variable that is set once, added to at every inference, and read."""
    names = {0: Text(""), 1: Text(f"state {len(model.subgraphs)}")}
    number, first = len(model.subgraphs), model.subgraph()
    handle = first.out("VAR_HANDLE", [], (1,), names, dtype="resource")
    first.op(
        "ASSIGN_VARIABLE",
        [handle, first.tensor(value[1], "float32", np.full(value[1], 0.25))],
        [],
        {},
    )
    main.op("CALL_ONCE", [], [], {0: i(number)})
    own = main.out("VAR_HANDLE", [], (1,), names, dtype="resource")
    old = main.out("READ_VARIABLE", [own], value[1], {})
    new = main.out("ADD", [old, value[0]], value[1], {0: b(0)})
    main.op("ASSIGN_VARIABLE", [own, new], [], {})
    return new, value[1]
