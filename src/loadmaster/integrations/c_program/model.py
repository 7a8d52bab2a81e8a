"""A model as a code generator needs it: its nodes by the names that plans use, shapes of all values, and the values of constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data
from onnx.reference import ReferenceEvaluator

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.file import network_name, walk_onnx
from loadmaster.workloads.frontends.onnx.graph_builder import graph_of
from loadmaster.workloads.frontends.onnx.types import Value
from loadmaster.workloads.frontends.onnx.walk import Step
from loadmaster.workloads.graph import Graph

C_TYPES = {"float32": "FLOAT", "int64": "INT64", "int32": "INT32", "uint8": "UINT8", "bool": "BOOL"}
"""Types of elements that the program knows, and their names in arrays.h."""


@dataclass(frozen=True)
class SourceModel:
    """An ONNX model beside its network as planning sees it."""

    source: str
    graph: Graph
    steps: dict[str, Step]
    values: dict[str, Value]
    proto: onnx.ModelProto

    @cached_property
    def makers(self) -> dict[str, tuple[Step, int]]:
        """The node that makes a value, and which of its results that is."""
        return {
            value.name: (step, index) for step in self.steps.values() for index, value in enumerate(step.node.outputs) if value is not None
        }

    def constants(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Elements of constants, in the types in which the program stores them.

        Raises
        ------
        ModelError
            If the file has no elements for one of them, or they cannot be computed.
        """
        graph = self.proto.graph
        nodes = [node for node in graph.node if node.output and all(self._constant(name) for name in node.output if name)]
        makers = {name: node for node in nodes for name in node.output if name}
        needed, waiting, wanted = set(), list(names), []
        while waiting:
            name = waiting.pop()
            if name in needed or not name:
                continue
            needed.add(name)
            if name in makers:
                waiting += makers[name].input
        wanted = [node for node in nodes if needed & set(node.output)]
        given = [_with_elements(tensor, self.source) for tensor in graph.initializer if tensor.name in needed]
        ends = [onnx.helper.make_empty_tensor_value_info(name) for name in names]
        body = onnx.helper.make_graph(wanted, "constants", [], ends, given)
        model = onnx.helper.make_model(body, opset_imports=self.proto.opset_import, ir_version=self.proto.ir_version)
        try:
            arrays = ReferenceEvaluator(model).run(None, {}) if names else []
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:200]}"
            raise ModelError(f"{self.source}: its constants cannot be computed ({text}): simplify the model first") from error
        return {name: self._stored(name, array) for name, array in zip(names, arrays, strict=True)}

    def _constant(self, name: str) -> bool:
        return name not in self.values or self.values[name].constant

    def _stored(self, name: str, array: Any) -> NDArray[Any]:
        value = self.values[name]
        return np.ascontiguousarray(array, dtype=element_type(value, self.source)).reshape(value.shape)


def read_source_model(source: str, batch: int | None, dims: dict[str, int], precision: str, name: str | None = None) -> SourceModel:
    """Read an ONNX model. Raises `ModelError`, which begins with the file's name."""
    network, proto = walk_onnx(source, batch=batch, dims=dims, precision=precision)
    graph = graph_of(network, name or network_name(source), source)
    return SourceModel(source, graph, {step.node.name: step for step in network.walk.steps}, network.walk.values, proto)


def element_type(value: Value, source: str) -> np.dtype[Any]:
    """The type of a value's elements. Raises `ModelError` for one that the program does not know."""
    if value.stored not in C_TYPES:
        known = ", ".join(C_TYPES)
        raise ModelError(f"{source}: tensor {value.name!r} is of type {value.stored}, the program in C knows {known}")
    return np.dtype(value.stored)


def _with_elements(tensor: onnx.TensorProto, source: str) -> onnx.TensorProto:
    """An initialiser with its elements, from the file beside the model where they are there."""
    if not uses_external_data(tensor):
        return tensor
    loaded = onnx.TensorProto()
    loaded.CopyFrom(tensor)
    try:
        load_external_data_for_tensor(loaded, str(Path(source).parent))
        onnx.numpy_helper.to_array(loaded)
    except Exception as error:
        text = f"{source}: the elements of the weight {tensor.name!r} are missing ({str(error)[:200]})"
        raise ModelError(f"{text}: give a model with its weights") from error
    loaded.data_location = onnx.TensorProto.DEFAULT
    del loaded.external_data[:]
    return loaded
