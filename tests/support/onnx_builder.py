"""Literal small ONNX networks for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.frontends.onnx.graph_builder import build_graph
from loadmaster.workloads.graph import Graph, Op

Size = int | str | None
F32 = TensorProto.FLOAT


def node(
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str] | str,
    name: str = "",
    domain: str = "",
    **attrs: Any,
) -> onnx.NodeProto:
    return helper.make_node(
        kind,
        inputs,
        [outputs] if isinstance(outputs, str) else outputs,
        name=name,
        domain=domain,
        **attrs,
    )


def parsed(nodes: Iterable[onnx.NodeProto | str]) -> list[onnx.NodeProto]:
    """Nodes, of which some may be in ONNX's text form."""
    return [parser.parse_node(each) if isinstance(each, str) else each for each in nodes]


def operator(text: str) -> tuple[str, dict[str, Any]]:
    """Kind and attributes of an operator in ONNX's text form."""
    made = parser.parse_node(f"y = {text}()")
    values = {each.name: helper.get_attribute_value(each) for each in made.attribute}
    return made.op_type, {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def sizes(text: str) -> tuple[int, ...]:
    """A shape such as ``2x3``."""
    return tuple(map(int, text.split("x")))


def info(name: str, shape: Sequence[Size] | None, dtype: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def absent(name: str, dims: Sequence[int], dtype: int = F32) -> onnx.TensorProto:
    """An initialiser whose bytes are in a file that does not exist."""
    tensor = TensorProto(name=name, data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="nowhere.bin")
    return tensor


def constant(name: str, values: Any, dtype: Any = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


def constants(**values: Any) -> list[onnx.TensorProto]:
    """Truth values, whole numbers of 64 bits, and floats of 32 bits, by their names."""
    arrays = {name: np.array(value) for name, value in values.items()}
    return [
        constant(name, array, np.float32 if array.dtype == np.float64 else array.dtype)
        for name, array in arrays.items()
    ]


def model(
    nodes: Sequence[onnx.NodeProto | str],
    inputs: Mapping[str, Sequence[Size]] | Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    weights: Mapping[str, Sequence[int]] | Sequence[onnx.TensorProto] = (),
    opset: int = 21,
    **rest: Any,
) -> onnx.ModelProto:
    """A model with float inputs and weights unless they are given as protos; its outputs are
    declared without a shape, and nodes may be in ONNX's text form."""
    ins = (
        [info(name, shape) for name, shape in inputs.items()]
        if isinstance(inputs, Mapping)
        else list(inputs)
    )
    initialisers = (
        [absent(name, dims) for name, dims in weights.items()]
        if isinstance(weights, Mapping)
        else list(weights)
    )
    outs = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(
        parsed(nodes), "g", ins, outs, initialisers, value_info=rest.pop("value_info", ())
    )
    domains = {
        "": opset,
        "com.microsoft": 1,
        "com.microsoft.nchwc": 1,
        "ai.onnx.preview": 1,
        "acme": 1,
    }
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, **rest)


def save(tmp_path: Path, proto: onnx.ModelProto, name: str = "net.onnx") -> Path:
    path = tmp_path / name
    path.write_bytes(proto.SerializeToString())
    return path


def graph_of(*args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any) -> Graph:
    """The graph of a literal model; ``options`` are those of
    :func:`loadmaster.workloads.frontends.load.load`."""
    with TemporaryDirectory() as folder:
        return load(save(Path(folder), model(*args, **kwargs)), **(options or {}))


def int8_graph(*parts: Any, name: str = "tiny") -> Graph:
    """The graph of a literal model at eight bits, without a file."""
    proto = model(*parts, opset=17, ir_version=9)
    given: dict[str, Any] = {"batch": None, "dims": {}, "precision": "int8"}
    return build_graph(proto, name=name, source="made for a test", **given)


def only(graph: Graph, kind: str) -> Op:
    (op,) = [op for op in graph.ops if op.kind == kind]
    return op


def reads(op: Op) -> dict[str, int]:
    return {access.tensor: access.bytes for access in op.reads}
