"""Random small TensorFlow Lite models: layers with branches, control flow, variables, and kernels
that ask for scratch."""

import random

import numpy as np
from tests.support.tflite_bands import Maker
from tests.support.tflite_models import Model

from loadmaster.integrations.tflite.flatbuffer_writer import Number


class Layers(Maker):
    """Adds random layers of floats to a subgraph."""

    def __init__(self, rng, subgraph):
        self.rng, self.net, self.dtype = rng, subgraph, "float32"
        self.numpy = np.random.default_rng(rng.randrange(2**32))

    def grow(self, values, layers):
        """Values and some more, each computed from some of them."""
        for _ in range(layers):
            values = [*values, self.computed(values)]
        return values

    def computed(self, values):
        value = self.rng.choice(values)
        _, height, width, channels = shape = self.net.shapes[value]
        beside = [other for other in values if self.net.shapes[other][:3] == shape[:3]]
        alike = [other for other in beside if self.net.shapes[other] == shape]
        makers = [
            *(self.conv, self.depthwise, self.pool, self.mean, self.flat),
            *(self.elementwise,) * 2,
            *(self.pad,) * (height * width <= 200),
            lambda *_: self.join(value, self.rng.choice(beside)),
            lambda *_: self.sum(value, self.rng.choice(alike)),
        ]
        return self.rng.choice(makers)(value, height, width, channels)

    def elementwise(self, value, *_):
        kind = self.rng.choice(
            ("RELU", "RELU6", "TANH", "LOGISTIC", "ABS", "NEG", "FLOOR", "ELU", "SOFTMAX")
        )
        options = {0: Number("f", 1.0)} if kind == "SOFTMAX" else None
        return self.out(kind, [value], options=options)

    def sum(self, value, other):
        kind = self.rng.choice(("ADD", "MUL", "SUB"))
        return self.out(kind, [value, other], options={0: 0})

    def join(self, value, other):
        *image, channels = self.net.shapes[value]
        shape = (*image, channels + self.net.shapes[other][3])
        return self.out("CONCATENATION", [value, other], shape, {0: 3})

    def mean(self, value, *_):
        return self.net.mean(value)

    def flat(self, value, height, width, channels):
        """All elements in a row, and a fully connected layer."""
        count, out = height * width * channels, self.rng.randint(2, 12)
        row = self.shaped(value, (1, count))
        operands = [row, self.weights(out, count, axis=0), self.bias(out)]
        return self.shaped(self.out("FULLY_CONNECTED", operands, (1, out)), (1, 1, 1, out))

    def shaped(self, value, shape):
        return self.net.out("RESHAPE", [value, self.net.ints(*shape)], shape, {})


def random_model(seed):
    """A model of 3 to 25 operators, about half of them with control flow or variables,
    deterministic for a seed."""
    rng = random.Random(seed)
    model = Model()
    main = model.subgraph()
    layers = Layers(rng, main)
    first = (1, rng.randint(3, 9), rng.randint(3, 9), rng.randint(1, 5))
    values = [main.input(first) for _ in range(rng.choice((1, 1, 2)))]
    values = layers.grow(values, rng.randint(1, 8))
    for add in rng.choice(
        ((), (), (_branch,), (_loop,), (_branch, _loop), (_memory,), (_memory, _loop))
    ):
        values = layers.grow(
            [*values, add(rng, model, main, rng.choice(values))], rng.randint(0, 3)
        )
    values = layers.grow(values, rng.randint(1, 8))
    if rng.random() < 0.2:
        main.tensor("1x40", name="unused")
        main.tensor("1x30", name="unused as well")
    main.outputs = list({values[-1], rng.choice(values if rng.random() < 0.3 else values[-1:])})
    return model


def _body(rng, model, shape):
    """A subgraph from a value of a shape to one of the same shape: its number and itself."""
    number, subgraph = len(model.subgraphs), model.subgraph()
    values = Layers(rng, subgraph).grow([subgraph.input(shape)], rng.randint(0, 4))
    last = rng.choice([value for value in values if subgraph.shapes[value] == shape])
    subgraph.last("TANH", [last], shape)
    return number, subgraph


def _branch(rng, model, main, value):
    condition = main.input("1", "bool")
    options = {way: _body(rng, model, main.shapes[value])[0] for way in range(2)}
    return main.out("IF", [condition, value], main.shapes[value], options)


def _loop(rng, model, main, value):
    """Three rounds."""
    shape = main.shapes[value]
    start = main.tensor("1", "float32", [0.0])
    number, condition = len(model.subgraphs), model.subgraph()
    counter = condition.input("1")
    condition.input(shape)
    condition.outputs = [
        condition.out("LESS", [counter, condition.tensor("1", "float32", [3.0])], "1", dtype="bool")
    ]
    body_number, body = _body(rng, model, shape)
    count = body.tensor("1")
    body.inputs.insert(0, count)
    more = body.out("ADD", [count, body.tensor("1", "float32", [1.0])], "1", {0: 0})
    body.outputs.insert(0, more)
    counted, looped = main.tensor("1"), main.tensor(shape)
    main.op("WHILE", [start, value], [counted, looped], {0: number, 1: body_number})
    return looped


def _memory(rng, model, main, value):
    """A variable that is set once, added to at every inference, and read."""
    shape = main.shapes[value]
    names = {0: "", 1: f"state {len(model.subgraphs)}"}
    number, first = len(model.subgraphs), model.subgraph()
    handle = first.out("VAR_HANDLE", [], "1", names, dtype="resource")
    first.op(
        "ASSIGN_VARIABLE", [handle, first.tensor(shape, "float32", np.full(shape, 0.25))], [], {}
    )
    main.op("CALL_ONCE", [], [], {0: number})
    own = main.out("VAR_HANDLE", [], "1", names, dtype="resource")
    old = main.out("READ_VARIABLE", [own], shape, {})
    new = main.out("ADD", [old, value], shape, {0: 0})
    main.op("ASSIGN_VARIABLE", [own, new], [], {})
    return new
