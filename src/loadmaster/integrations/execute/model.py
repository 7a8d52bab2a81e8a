"""A model for the executor of plans: its weights, and functions that run the whole model or a
single node."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from loadmaster.core.arrays import Array
from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.frontend import LoadOptions
from loadmaster.workloads.frontends.onnx.file import walk_onnx
from loadmaster.workloads.frontends.onnx.graph_builder import graph_of
from loadmaster.workloads.frontends.onnx.rules import (
    DTYPE_NUMBERS,
    Node,
    Value,
    describe,
    storage_bytes,
)
from loadmaster.workloads.frontends.onnx.walk import RANDOM, VisitedNode
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import NetworkInfo, OperatorInfo

Arrays = dict[str, Array]
Evaluator = Callable[[Arrays], list[Array]]


def runtime() -> str:
    """Return the name of the runtime: ONNX Runtime if installed, else the onnx package."""
    return "onnxruntime" if importlib.util.find_spec("onnxruntime") else "onnx.reference"


def evaluator(model: onnx.ModelProto) -> Evaluator:
    """Return a function from the inputs of a model to its outputs."""
    kinds = [
        helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)
        for each in (*model.graph.output, *model.graph.input)
    ]
    # ONNX Runtime takes and returns numpy's own types alone.
    if runtime() == "onnx.reference" or {kind.isbuiltin for kind in kinds} != {1}:
        reference = ReferenceEvaluator(model)
        # It computes in wider types where numpy does.
        return lambda given: list(map(np.asarray, reference.run(None, given), kinds))
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # Without optimisations the whole model runs the same kernels as its single nodes.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return lambda given: list(session.run(None, given))


def element_type(value: Value) -> np.dtype[Any]:
    """Return the type of a value's elements at run time. Raises `ModelError` for strings."""
    if value.dtype == "string":
        raise ModelError(f"tensor {value.name!r} holds strings: only numbers can be run")
    return np.dtype(helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[value.dtype]))


@dataclass(frozen=True)
class SourceModel:
    """An ONNX model and its network in a plan. ``drawn`` counts weights that are missing in the
    file and replaced by random ones."""

    source: str
    network: NetworkInfo
    graph: Graph
    steps: Mapping[str, VisitedNode]
    values: Mapping[str, Value]
    proto: onnx.ModelProto
    weights: Arrays
    drawn: int
    _evaluators: dict[object, Evaluator] = field(default_factory=dict)

    @cached_property
    def flows(self) -> dict[str, OperatorInfo]:
        """Operators of the plan by name."""
        return {each.name: each for each in self.network.operators}

    @cached_property
    def makers(self) -> dict[str, VisitedNode]:
        """Nodes by the names of their results."""
        return {value.name: step for step in self.steps.values() for value in step.node.results}

    @cached_property
    def turns(self) -> dict[str, VisitedNode]:
        """Transpositions of weights, by the name of the weight."""
        return {
            step.node.label(0): step
            for step in self.steps.values()
            if step.node.kind == "Transpose" and step.node.operand(0).constant
        }

    def inputs(self, generator: np.random.Generator) -> Arrays:
        """Return arrays for all inputs, random ones where the value is not known."""
        return {
            value.name: random_array(value.shape, element_type(value), generator)
            if value.data is None
            else value.data
            for value in (self.values[each.name] for each in self.proto.graph.input)
            if value.name not in self.weights
        }

    def whole(self, inputs: Arrays) -> Arrays:
        """Run the whole model, and return its outputs and the results of its operators by name.
        Raises `ModelError`."""
        model = onnx.ModelProto()
        model.CopyFrom(self.proto)
        graph = model.graph
        made = {name for node in graph.node for name in node.output} - {
            each.name for each in graph.output
        }
        # What nobody asks for is not rounded to a narrow type between two casts.
        asked = [name for name in self.makers if name in made and not self.values[name].constant]
        graph.output.extend(map(self._value_info, asked))
        # The planned sizes replace those of the file.
        del graph.value_info[:]
        for each in (*graph.input, *graph.output):
            each.CopyFrom(self._value_info(each.name))
        try:
            results = evaluator(model)(inputs)
        except Exception as error:
            raise self._error("the model", error) from error
        return dict(zip((each.name for each in graph.output), results, strict=True))

    def constant(self, name: str) -> Array:
        """Return a constant: a weight of the file, or the result of nodes on weights."""
        value = self.values[name]
        array = self.weights.get(name, value.data)
        if array is None:
            step = self.makers[name]
            # Of what is not constant, its shape or its type alone can matter.
            given = {
                each.name: self.constant(each.name)
                if each.constant
                else np.zeros(each.shape, element_type(each))
                for each in step.node.present
            }
            array = self.node(step, given)[name]
            if not isinstance(array, np.ndarray):
                raise ModelError(f"{self.source}: {name!r} is sparse: make it dense to run it")
            self.weights[name] = array
        return array.reshape(value.shape)

    def node(self, step: VisitedNode, given: Arrays) -> Arrays:
        """Run a node and return its results by name. Operands that are not ``given`` are absent."""
        # Some operators are only loaded with the shapes of their operands, which pieces change.
        key = (step.node.name, *((name, array.shape) for name, array in given.items()))
        made = [value.name for value in step.node.results]
        if not made:
            return {}
        if key not in self._evaluators:
            self._evaluators[key] = self._evaluator(step.node, given, made)
        return dict(zip(made, self._evaluators[key](given), strict=True))

    def _evaluator(self, node: Node, given: Arrays, made: Sequence[str]) -> Evaluator:
        """Return an evaluator that runs one node alone; raise ModelError for random operators and
        control flow."""
        label = describe(node.kind, node.name)
        if node.kind in RANDOM or (node.kind == "Dropout" and node.integers("", 2) == [1]):
            raise ModelError(f"{self.source}: {label} is random: take it out of the model")
        if node.kind in ("If", "Loop", "Scan"):
            raise ModelError(f"{self.source}: {label} depends on operands: make them constants")
        names = [each.name if each and each.name in given else "" for each in node.inputs]
        # Few outputs may be left out by those who need none of them.
        outputs = [value.name if value else f"/{n}" for n, value in enumerate(node.outputs)]
        try:
            own = helper.make_node(node.kind, names, outputs, domain=node.domain, **node.attrs)
            graph = helper.make_graph(
                [own],
                "node",
                [self._value_info(name, array.shape) for name, array in given.items()],
                list(map(self._value_info, made)),
            )
            model = helper.make_model(
                graph, opset_imports=self.proto.opset_import, ir_version=self.proto.ir_version
            )
            return evaluator(model)
        except Exception as error:
            raise self._error(label, error) from error

    def _error(self, label: str, error: Exception) -> ModelError:
        """Return the error for a node that cannot be run, with the cure."""
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        cure = (
            "install onnxruntime, which has more operators"
            if runtime() == "onnx.reference"
            else "export it at the sizes that were planned, with operators that ONNX Runtime has"
        )
        return ModelError(f"{self.source}: {runtime()} cannot run {label} ({text}): {cure}")

    def _value_info(self, name: str, shape: Sequence[int] | None = None) -> onnx.ValueInfoProto:
        """Return a typed value for a graph, by default without a shape."""
        kind = DTYPE_NUMBERS[self.values[name].dtype]
        return helper.make_tensor_value_info(name, kind, shape)


def read_model(
    source: str, network: NetworkInfo, generator: np.random.Generator, options: LoadOptions
) -> SourceModel:
    """Read the ONNX model of a plan's network; missing weights are replaced by random ones. Raises
    `ModelError`."""
    if source.startswith("torch:") or source.endswith(".tflite"):
        raise ModelError(f"{source}: only ONNX models can be run: export it to ONNX")
    walked, proto = walk_onnx(source, options)
    if proto.graph.sparse_initializer:
        raise ModelError(f"{source}: sparse initialisers cannot be run: make them dense")
    weights, drawn = {}, 0
    for tensor in proto.graph.initializer:
        value = walked.values[tensor.name]
        # A file may go on behind a weight whose length it does not tell.
        tensor.external_data.add(key="length", value=str(storage_bytes(value.count, value.dtype)))
        try:
            array = numpy_helper.to_array(tensor, str(Path(source).parent))
        except Exception:
            array = random_array(value.shape, element_type(value), generator, weight=True)
            drawn += 1
        weights[tensor.name] = array
        # Weights from external files are embedded, because the runtime gets only the model.
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return SourceModel(
        source,
        network,
        graph_of(walked, network.name, network.source),
        {step.node.name: step for step in walked.steps},
        walked.values,
        proto,
        weights,
        drawn,
    )


def random_array(
    shape: Sequence[int], kind: np.dtype[Any], generator: np.random.Generator, weight: bool = False
) -> Array:
    """Return random elements. Integers of one byte have any value; wider ones are 0 or 1, valid
    indices of any table. Weights are scaled so that results neither grow nor vanish, and positive
    if they have one dimension, such as variances."""
    if kind.kind in "iub":
        most = 256 if "int8" in kind.name else 2
        return generator.integers(0, most, shape).astype(kind)
    if weight and len(shape) < 2:
        return generator.uniform(0.5, 1.5, shape).astype(kind)
    spread = 1 / math.sqrt(math.prod(shape[1:])) if weight else 1
    return generator.normal(0, spread, shape).astype(kind)
