"""Literal small ONNX networks for the tests of this folder."""

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import loadmaster as lm
from loadmaster.workloads.frontends.frontend import LoadOptions
from loadmaster.workloads.frontends.onnx import graph_builder
from loadmaster.workloads.window import operand_box

F32 = TensorProto.FLOAT


def node(kind, inputs, outputs, name="", domain="", **attrs):
    return helper.make_node(
        kind,
        inputs,
        [outputs] if isinstance(outputs, str) else outputs,
        name=name,
        domain=domain,
        **attrs,
    )


def either(condition, result, then, other=None, name=""):
    """A choice between two bodies, or of one body either way."""
    branches = {"then_branch": then, "else_branch": other or then}
    return node("If", [condition], result, name, **branches)


def parsed(nodes):
    """Nodes, of which some may be in ONNX's text form, one a line or with semicolons between."""
    if isinstance(nodes, str):
        return [parser.parse_node(each) for each in re.split("[;\n]", nodes) if each.strip()]
    return [node for each in nodes for node in (parsed(each) if isinstance(each, str) else [each])]


def operator(text):
    """Kind and attributes of an operator in ONNX's text form."""
    made = parser.parse_node(f"y = {text}()")
    values = {each.name: helper.get_attribute_value(each) for each in made.attribute}
    return made.op_type, {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def sizes(text):
    """A shape such as ``2x3``."""
    return tuple(map(int, filter(None, text.split("x"))))


def needed(access, part, shape):
    """The part of an operand that a part of the result needs, both such as ``0-1 2-4``."""
    box = tuple(tuple(map(int, span.split("-"))) for span in part.split())
    found = operand_box(access.windows, box, sizes(shape))
    return " ".join(f"{first}-{last}" for first, last in found)


def info(name, shape, dtype=F32):
    return helper.make_tensor_value_info(name, dtype, shape)


def absent(name, dims, dtype=F32):
    """An initialiser whose bytes are in a file that does not exist."""
    tensor = TensorProto(name=name, data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="nowhere.bin")
    return tensor


def constant(name, values, dtype=np.int64):
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


def constants(**values):
    """Truth values, whole numbers of 64 bits, and floats of 32 bits, by their names."""
    arrays = {name: np.array(value) for name, value in values.items()}
    return [
        constant(name, array, np.float32 if array.dtype == np.float64 else array.dtype)
        for name, array in arrays.items()
    ]


def infos(text):
    """Tensors in ONNX's text form, such as ``float[4,n] x, bool c``."""
    return list(parser.parse_graph(f"g ({text}) => () {{}}").input)


def body(nodes, inputs="", outputs="", weights=(), value_info=()):
    """A graph whose outputs are declared without a shape; inputs and weights that a mapping
    declares are floats, and nodes, tensors and the outputs' names may be text."""
    if isinstance(inputs, Mapping):
        inputs = [info(name, shape) for name, shape in inputs.items()]
    if isinstance(weights, Mapping):
        weights = [absent(name, dims) for name, dims in weights.items()]
    elif isinstance(weights, str):
        kinds = [(each.name, each.type.tensor_type) for each in infos(weights)]
        weights = [
            absent(name, [dim.dim_value for dim in kind.shape.dim], kind.elem_type)
            for name, kind in kinds
        ]
    names = outputs.split(", ") if isinstance(outputs, str) else outputs
    return helper.make_graph(
        parsed(nodes),
        "g",
        infos(inputs) if isinstance(inputs, str) else inputs,
        [onnx.ValueInfoProto(name=name) for name in names],
        weights,
        value_info=infos(value_info) if isinstance(value_info, str) else value_info,
    )


def model(nodes, inputs, outputs, weights=(), opset=21, *, value_info=(), **rest):
    """A model whose graph is that of :func:`body`."""
    domains = ["com.microsoft", "com.microsoft.nchwc", "ai.onnx.preview", "acme"]
    versions = {"": opset} | dict.fromkeys(domains, 1)
    return helper.make_model(
        body(nodes, inputs, outputs, weights, value_info),
        opset_imports=[helper.make_opsetid(*each) for each in versions.items()],
        **rest,
    )


def save(tmp_path, proto, name="net.onnx"):
    path = tmp_path / name
    path.write_bytes(proto.SerializeToString())
    return path


def graph_of(*args, options=None, **kwargs):
    """The graph of a literal model; ``options`` are those of
    :func:`loadmaster.workloads.frontends.load.load`."""
    with TemporaryDirectory() as folder:
        return lm.load(save(Path(folder), model(*args, **kwargs)), **(options or {}))


def int8_graph(*parts, name="net"):
    """The graph of a literal model at eight bits, without a file."""
    proto = model(*parts, opset=17, ir_version=9)
    network = graph_builder.walk_network(proto, LoadOptions(precision="int8"))
    return graph_builder.graph_of(network, name, "made for a test")


def complaint(path, read=lm.load, **options):
    """The error of reading a file: one line that begins with its name."""
    with pytest.raises(lm.LoadmasterError) as caught:
        read(path, **options)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


def classes(graph):
    """Classes of all operators, in order."""
    return " ".join(op.op_class.value for op in graph.ops)


def shapes(graph, names=None):
    """Shapes of tensors, or of all outputs, such as ``2x3 4``."""
    found = names.split() if names else graph.outputs
    return " ".join("x".join(map(str, graph.tensors[name].shape)) for name in found)


def only(graph, kind):
    (op,) = [op for op in graph.ops if op.kind == kind]
    return op


def reads(op):
    return {access.tensor: access.bytes for access in op.reads}
