"""Small TensorFlow Lite models, written table by table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tests.support.onnx_builder import sizes

import loadmaster as lm
from loadmaster.integrations.tflite.flatbuffer_writer import (
    Number,
    Numbers,
    Table,
    write_before,
)
from loadmaster.workloads.frontends.tflite.schema import IDENTIFIER, OPERATORS, TYPES

OPTIONS = {
    "CONV_2D": 1,
    "DEPTHWISE_CONV_2D": 2,
    "AVERAGE_POOL_2D": 5,
    "MAX_POOL_2D": 5,
    "SVDF": 6,
    "FULLY_CONNECTED": 8,
    "SOFTMAX": 9,
    "CONCATENATION": 10,
    "ADD": 11,
    "RESIZE_BILINEAR": 15,
    "RESHAPE": 17,
    "MUL": 21,
    "GATHER": 23,
    "PAD": 22,
    "TRANSPOSE": 26,
    "MEAN": 27,
    "SUB": 28,
    "STRIDED_SLICE": 32,
    "ARG_MAX": 40,
    "ARG_MIN": 57,
    "RESIZE_NEAREST_NEIGHBOR": 74,
    "TRANSPOSE_CONV": 49,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": 71,
    "IF": 92,
    "DEPTH_TO_SPACE": 94,
    "WHILE": 93,
    "BATCH_MATMUL": 101,
    "CALL_ONCE": 103,
    "VAR_HANDLE": 111,
    "READ_VARIABLE": 112,
    "ASSIGN_VARIABLE": 113,
}
"""Numbers of the types of options (``BuiltinOptions``)."""
BYTES = {
    **dict.fromkeys(("ADD", "ARG_MAX", "ARG_MIN", "FULLY_CONNECTED", "MEAN", "MUL", "SUB"), (0,)),
    **dict.fromkeys(("DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D"), (0,)),
    **dict.fromkeys(("BATCH_MATMUL", "RESIZE_NEAREST_NEIGHBOR"), (0, 1)),
    **dict.fromkeys(("CONV_2D", "UNIDIRECTIONAL_SEQUENCE_LSTM"), (0, 3)),
    "RESIZE_BILINEAR": (2, 3),
    "SVDF": (1,),
    "TRANSPOSE_CONV": (0,),
}
"""Options that are bytes; other whole numbers have 32 bits."""


def i(value):
    return Number("i", value)


def b(value):
    return Number("b", value)


@dataclass
class Subgraph:
    model: Model
    tensors: list[Table] = field(default_factory=list)
    operators: list[Table] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def tensor(
        self,
        shape,
        dtype="float32",
        data=None,
        variable=False,
        scale=(),
        zero=0,
        axis=0,
        name=None,
        buffer=0,
    ):
        """A tensor; with ``data`` it is a constant, of one number throughout or of an array. Its
        shape may be text, such as ``1x8``."""
        index, shape = len(self.tensors), sizes(shape) if isinstance(shape, str) else tuple(shape)
        if data is not None:
            full = np.full(shape, data, dtype) if np.ndim(data) == 0 else np.array(data, dtype)
            buffer = self.model.buffer(full.tobytes())
        fields = {
            0: Numbers("i", shape),
            1: b(TYPES.index(dtype)),
            2: Number("I", buffer),
            3: f"t{index}" if name is None else name,
        }
        if scale:
            zeros = Numbers("q", (zero,) * len(scale))
            fields[4] = {2: Numbers("f", tuple(scale)), 3: zeros, 6: i(axis)}
        if variable:
            fields[5] = b(1)
        self.tensors.append(fields)
        self.shapes.append(shape)
        return index

    def input(self, shape, dtype="float32", **more):
        self.inputs.append(self.tensor(shape, dtype, **more))
        return self.inputs[-1]

    def op(self, kind, inputs, outputs, options=None):
        fields = {
            0: Number("I", self.model.code(kind)),
            1: Numbers("i", tuple(inputs)),
            2: Numbers("i", tuple(outputs)),
        }
        if options is not None:
            own = {
                field: Number("b" if field in BYTES.get(kind, ()) else "i", value)
                if isinstance(value, int)
                else value
                for field, value in options.items()
            }
            fields |= {3: Number("B", OPTIONS[kind]), 4: own}
        self.operators.append(fields)

    def out(self, kind, inputs, shape=None, options=None, **more):
        """An operator with one new result, which is returned; of the shape of its first operand
        where no other is given."""
        result = self.tensor(self.shapes[inputs[0]] if shape is None else shape, **more)
        self.op(kind, inputs, (result,), options)
        return result

    def last(self, *given, **more):
        """An operator with one new result, which is the only one of the subgraph."""
        self.outputs = [self.out(*given, **more)]

    def conv(self, value, width, taps=1, stride=1, padding=0):
        """A convolution with weights of one and biases of zero, and with SAME padding or, as 1
        says, VALID."""
        _, *sides, channels = self.shapes[value]
        weights = self.tensor((width, taps, taps, channels), data=1)
        lost = padding * (taps - 1)
        shape = (1, *(-((lost - side) // stride) for side in sides), width)
        options = {0: padding, 1: stride, 2: stride, 4: 1, 5: 1}
        return self.out("CONV_2D", [value, weights, self.tensor((width,), data=0)], shape, options)

    def ints(self, *values):
        """A constant of whole numbers, or of rows of them."""
        return self.tensor(np.shape(values), "int32", values)

    def pad(self, value, rows, columns=(0, 0), **more):
        """An image with so many more rows and columns before it and after it."""
        batch, height, width, channels = self.shapes[value]
        pads = self.ints((0, 0), rows, columns, (0, 0))
        shape = batch, height + sum(rows), width + sum(columns), channels
        return self.out("PAD", [value, pads], shape, {}, **more)

    def mean(self, value, **more):
        """The mean over all rows and columns of an image."""
        operands = [value, self.ints(1, 2)]
        return self.out("MEAN", operands, (1, 1, 1, self.shapes[value][3]), {0: 1}, **more)

    def table(self):
        return {
            0: self.tensors,
            1: Numbers("i", self.inputs),
            2: Numbers("i", self.outputs),
            3: self.operators,
            4: "main",
        }


@dataclass
class Model:
    subgraphs: list[Subgraph] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    buffers: list[Table] = field(default_factory=lambda: [{}])
    metadata: list[Table] = field(default_factory=list)

    def subgraph(self):
        self.subgraphs.append(Subgraph(self))
        return self.subgraphs[-1]

    def buffer(self, data):
        self.buffers.append({0: data})
        return len(self.buffers) - 1

    def code(self, kind):
        if kind not in self.codes:
            self.codes.append(kind)
        return self.codes.index(kind)

    def note(self, name, data):
        """Metadata."""
        self.metadata.append({0: name, 1: Number("I", self.buffer(data))})

    def save(self, folder):
        path = folder / "net.tflite"
        path.write_bytes(self.bytes())
        return path

    def bytes(self, more=None):
        parts = {
            0: Number("I", 3),
            1: [_code(kind) for kind in self.codes],
            2: [subgraph.table() for subgraph in self.subgraphs],
            3: "made for a test",
            4: self.buffers,
        }
        if self.metadata:
            parts[6] = self.metadata
        return write_before(b"", parts | dict(more or {}), IDENTIFIER)


def started():
    """A model and its main subgraph."""
    model = Model()
    return model, model.subgraph()


def one_operator(kind, inputs, weights, result, options):
    """A model of one operator, given the shapes of its operands, with spaces between, and of its
    result; a hyphen is an operand of no dimensions, or of which they are not known. A weight may
    have a type, as in ``int32:4x2``."""
    model, main = started()
    operands = [
        main.input(shape.strip("-"), name=f"x{k}") for k, shape in enumerate(inputs.split())
    ]
    for k, text in enumerate(weights.split()):
        dtype, _, shape = text.rpartition(":")
        operands.append(main.tensor(shape, dtype or "float32", 1, name=f"w{k}"))
    main.outputs = [main.out(kind, operands, result, options, name="y")]
    return model


def graph_of(model, **options):
    with TemporaryDirectory() as folder:
        return lm.load(model.save(Path(folder)), **options)


def op_of(*given):
    """The operator of a model of one."""
    (op,) = graph_of(one_operator(*given)).ops
    return op


def branches(*widths):
    """Branches that make much and keep little, written breadth first."""
    model, net = started()
    value = net.input("1x4x4x4")
    large = [net.conv(value, width) for width in widths]
    means = list(map(net.mean, large))
    net.outputs.append(net.out("CONCATENATION", means, (1, 1, 1, sum(widths)), {0: 3}))
    return model


def _code(kind):
    name, _, custom = kind.partition(":")
    number = OPERATORS.index(name)
    fields = {0: b(min(number, 127)), 2: i(1), 3: i(number)}
    return fields | ({1: custom} if custom else {})
