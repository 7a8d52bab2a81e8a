"""A model as a code generator needs it: its nodes by the names that plans use, shapes of all
values, and the values of constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.file import walk_onnx
from loadmaster.workloads.frontends.onnx.graph_builder import graph_of
from loadmaster.workloads.frontends.onnx.types import Value
from loadmaster.workloads.frontends.onnx.walk import Step
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import NetworkInfo

C_TYPES = {"float32": "FLOAT", "int64": "INT64", "int32": "INT32", "uint8": "UINT8", "bool": "BOOL"}
"""Types of elements that the program knows, and their names in arrays.h."""


class GatherElements(OpRun):
    """Elements chosen along one dimension; the evaluator's own fails where the data are longer than
    the indices."""

    def _run(
        self, data: NDArray[Any], indices: NDArray[Any], axis: int | None = None
    ) -> tuple[NDArray[Any]]:
        # Along the other dimensions indices may be shorter than the data, too.
        kept = tuple(
            slice(None) if d == (axis or 0) % data.ndim else slice(size)
            for d, size in enumerate(indices.shape)
        )
        return (np.take_along_axis(data[kept], indices, axis or 0),)


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
            value.name: (step, index)
            for step in self.steps.values()
            for index, value in enumerate(step.node.outputs)
            if value is not None
        }

    def constants(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Elements of constants, in the types in which the program stores them. Linear in the
        nodes, and in the elements.

        Raises
        ------
        ModelError
            If the file has no elements for one of them, or they cannot be computed.
        """
        found = {name: self._known(name) for name in names}
        found |= self._computed([name for name, array in found.items() if array is None])
        return {name: self._stored(name, array) for name, array in found.items()}

    @cached_property
    def _initialisers(self) -> dict[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    def _known(self, name: str) -> NDArray[Any] | None:
        """Elements of a constant that the file holds or planning has computed: from shapes alone,
        perhaps, of what is not constant."""
        if name in self._initialisers:
            return _elements(self._initialisers[name], self.source)
        return self.values[name].data

    def _computed(self, names: list[str]) -> dict[str, NDArray[Any]]:
        """Elements of constants that nodes make of others."""
        graph = self.proto.graph
        makers = {name: node for node in graph.node for name in node.output if name}
        given: dict[str, NDArray[Any]] = {}
        made: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if not name or name in given or name in made:
                continue
            array = self._known(name)
            if array is not None:
                given[name] = array
            else:
                made.update(makers[name].output)
                waiting += makers[name].input
        if not names:
            return {}
        inputs, outputs = (
            [onnx.helper.make_empty_tensor_value_info(name) for name in both]
            for both in (given, names)
        )
        body = onnx.helper.make_graph(
            [node for node in graph.node if made & {*node.output}], "constants", inputs, outputs
        )
        model = onnx.helper.make_model(
            body, opset_imports=self.proto.opset_import, ir_version=self.proto.ir_version
        )
        try:
            arrays = ReferenceEvaluator(model, new_ops=[GatherElements]).run(None, given)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:200]}"
            raise ModelError(
                f"{self.source}: its constants cannot be computed ({text}): simplify the model"
                " first"
            ) from error
        return dict(zip(names, arrays, strict=True))

    def _stored(self, name: str, array: Any) -> NDArray[Any]:
        value = self.values[name]
        return np.ascontiguousarray(array, dtype=element_type(value, self.source)).reshape(
            value.shape
        )


def read_source_model(
    source: str, network: NetworkInfo, batch: int | None, dims: dict[str, int]
) -> SourceModel:
    """Read the ONNX model of a network of a plan at float32. Raises `ModelError`, which begins with
    the file's name."""
    walked, proto = walk_onnx(source, batch=batch, dims=dims, precision="fp32")
    graph = graph_of(walked, network.name, network.source)
    return SourceModel(
        source,
        graph,
        {step.node.name: step for step in walked.walk.steps},
        walked.walk.values,
        proto,
    )


def element_type(value: Value, source: str) -> np.dtype[Any]:
    """The type of a value's elements. Raises `ModelError` for one that the program does not
    know."""
    if value.stored not in C_TYPES:
        known = ", ".join(C_TYPES)
        raise ModelError(
            f"{source}: tensor {value.name!r} is of type {value.stored}, the program in C knows"
            f" {known}"
        )
    return np.dtype(value.stored)


def _elements(tensor: onnx.TensorProto, source: str) -> NDArray[Any]:
    """Elements of an initialiser, from the file beside the model where they are there."""
    try:
        return onnx.numpy_helper.to_array(tensor, str(Path(source).parent))
    except Exception as error:
        text = (
            f"{source}: the elements of the weight {tensor.name!r} are missing ({str(error)[:200]})"
        )
        raise ModelError(f"{text}: give a model with its weights") from error
