"""A model as an executor of plans needs it: its weights, the whole of it, and every node alone."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.file import walk_onnx
from loadmaster.workloads.frontends.onnx.graph_builder import graph_of, operator_names
from loadmaster.workloads.frontends.onnx.types import DTYPE_NUMBERS, Value
from loadmaster.workloads.frontends.onnx.walk import RANDOM, Step
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import NetworkInfo, OperatorInfo

AnyArray = NDArray[Any]
Arrays = dict[str, AnyArray]
Evaluator = Callable[[Mapping[str, AnyArray]], list[AnyArray]]


class GatherElements(OpRun):
    """Elements chosen along one dimension; the evaluator's own fails where the data are longer than
    the indices."""

    def _run(self, data: AnyArray, indices: AnyArray, axis: int | None = None) -> tuple[AnyArray]:
        kept = tuple(
            slice(None) if d == (axis or 0) % data.ndim else slice(size)
            for d, size in enumerate(indices.shape)
        )
        return (np.take_along_axis(data[kept], indices, axis or 0),)


def runtime() -> str:
    """What runs nodes: ONNX Runtime where it is installed, else the onnx package."""
    return "onnxruntime" if importlib.util.find_spec("onnxruntime") else "onnx.reference"


def evaluator(model: onnx.ModelProto) -> Evaluator:
    """A function from the inputs of a model to its outputs."""
    if runtime() == "onnx.reference":
        reference = ReferenceEvaluator(model, new_ops=[GatherElements])
        return lambda feeds: [np.asarray(each) for each in reference.run(None, dict(feeds))]
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # So that the whole model runs the same kernels as its nodes alone.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    return lambda feeds: list(session.run(None, {name: feeds[name] for name in names}))


def element_type(value: Value) -> np.dtype[Any]:
    """The type of a value's elements when the model runs."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[value.dtype]))


@dataclass(frozen=True)
class SourceModel:
    """An ONNX model beside its network in a plan. ``drawn`` counts the weights that the file lacks
    and that are random."""

    source: str
    network: NetworkInfo
    graph: Graph
    steps: dict[str, Step]
    values: dict[str, Value]
    proto: onnx.ModelProto
    drawn: int
    _evaluators: dict[object, Evaluator] = field(default_factory=dict)
    _constants: Arrays = field(default_factory=dict)

    @cached_property
    def outputs(self) -> dict[str, str]:
        """Outputs that jobs make, and the storages that hold them."""
        held = {name: self.graph.tensors[name].storage for name in self.graph.outputs}
        return {name: own for name, own in held.items() if own in self.network.outputs}

    @cached_property
    def flows(self) -> dict[str, OperatorInfo]:
        """Operators of the plan, with what they read and write."""
        return {each.name: each for each in self.network.operators}

    @cached_property
    def makers(self) -> dict[str, Step]:
        """The node that makes a value."""
        return {
            value.name: step for step in self.steps.values() for value in step.node.outputs if value
        }

    @cached_property
    def _weights(self) -> dict[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    @cached_property
    def _protos(self) -> dict[str, onnx.NodeProto]:
        return dict(zip(operator_names(self.proto.graph)[0], self.proto.graph.node, strict=True))

    def inputs(self, generator: np.random.Generator) -> Arrays:
        """Random elements for every input but those that are known."""
        values = [
            self.values[each.name]
            for each in self.proto.graph.input
            if each.name not in self._weights
        ]
        return {
            value.name: _random(value.shape, element_type(value), generator)
            if value.data is None
            else value.data
            for value in values
        }

    def whole(self, inputs: Arrays) -> Arrays:
        """Outputs of the model, run in one go, and of its operators."""
        model = onnx.ModelProto()
        model.CopyFrom(self.proto)
        made = {name for node in model.graph.node for name in node.output}
        made -= {each.name for each in model.graph.output}
        written = [name for flow in self.flows.values() for name in flow.writes if name in made]
        model.graph.output.extend(self._typed(written))
        names = [each.name for each in model.graph.output]
        try:
            if "" not in self._evaluators:
                self._evaluators[""] = evaluator(model)
            with np.errstate(all="ignore"):
                return dict(zip(names, self._evaluators[""](inputs), strict=True))
        except Exception as error:
            raise self._refused("the model", error) from error

    def _typed(self, names: Iterable[str]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, DTYPE_NUMBERS[self.values[name].dtype], None)
            for name in names
        ]

    def constant(self, name: str) -> AnyArray:
        """Elements of a constant: the file's, or what nodes make of those."""
        if name not in self._constants:
            value = self.values[name]
            if name in self._weights:
                found = numpy_helper.to_array(self._weights[name])
            elif value.data is not None:
                found = value.data
            else:
                step = self.makers[name]
                names = [each.name if each else "" for each in step.node.inputs]
                known = {each: self.constant(each) for each in names if each}
                found = self.node(step, names, known, {})[name]
            self._constants[name] = found.reshape(value.shape)
        return self._constants[name]

    def node(self, step: Step, names: Sequence[str], known: Arrays, given: Arrays) -> Arrays:
        """Results of a node. ``names`` are its operands, empty where one is absent; ``known`` those
        operands that are always the same, and ``given`` the others."""
        key = (step.node.name, *names, *given)
        if key not in self._evaluators:
            self._evaluators[key] = self._evaluator(step, names, known, given)
        made = [value.name for value in step.node.outputs if value]
        return dict(zip(made, self._evaluators[key](given), strict=True))

    def _evaluator(
        self, step: Step, names: Sequence[str], known: Arrays, given: Arrays
    ) -> Evaluator:
        node, own = step.node, onnx.NodeProto()
        label = f"operator {node.name!r} ({node.kind})"
        if node.kind in RANDOM:
            raise ModelError(f"{self.source}: {label} is random: take it out of the model")
        own.CopyFrom(
            self._protos.get(node.name)
            or helper.make_node(
                node.kind,
                [],
                [value.name if value else "" for value in node.outputs],
                domain=node.domain,
                **node.attrs,
            )
        )
        del own.input[:]
        own.input.extend(names)
        made = [value.name for value in node.outputs if value]
        weights = [numpy_helper.from_array(array, name) for name, array in known.items()]
        model = helper.make_model(
            helper.make_graph([own], "node", self._typed(given), self._typed(made), weights),
            opset_imports=self.proto.opset_import,
            ir_version=self.proto.ir_version,
        )
        try:
            return evaluator(model)
        except Exception as error:
            raise self._refused(label, error) from error

    def _refused(self, what: str, error: Exception) -> ModelError:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        cure = (
            "export the model with operators that ONNX Runtime has"
            if runtime() == "onnxruntime"
            else "install onnxruntime, which has more operators"
        )
        return ModelError(f"{self.source}: {what} cannot be run ({text}): {cure}")


def read_model(
    source: str,
    network: NetworkInfo,
    generator: np.random.Generator,
    *,
    batch: int | None,
    dims: Mapping[str, int],
    precision: str | None,
) -> SourceModel:
    """Read the ONNX model of a plan's network; random weights stand for those that it lacks."""
    if source.startswith("torch:") or source.endswith(".tflite"):
        raise ModelError(f"{source}: only ONNX models can be run: export it to ONNX")
    walked, proto = walk_onnx(source, batch=batch, dims=dims, precision=precision)
    drawn = 0
    for tensor in proto.graph.initializer:
        try:
            array = numpy_helper.to_array(tensor, str(Path(source).parent))
        except Exception:
            array = _random_weight(tensor, generator)
            drawn += 1
        # From a file beside the model, too: what runs it has the model's bytes alone.
        if array.size > 1:
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return SourceModel(
        source,
        network,
        graph_of(walked, network.name, network.source),
        {step.node.name: step for step in walked.walk.steps},
        walked.walk.values,
        proto,
        drawn,
    )


def _random(shape: Sequence[int], kind: np.dtype[Any], generator: np.random.Generator) -> AnyArray:
    """Random elements: integers of 8 bits of all values, others 0 or 1, which are indices of any
    table."""
    if kind.kind in "iub":
        most = 1 if kind.kind == "b" or kind.itemsize > 1 else int(np.iinfo(kind).max)
        least = int(np.iinfo(kind).min) if kind == np.int8 else 0
        return generator.integers(least, most, shape, endpoint=True).astype(kind)
    return generator.normal(size=shape).astype(kind)


def _random_weight(tensor: onnx.TensorProto, generator: np.random.Generator) -> AnyArray:
    """Weights with which results are neither large nor all alike: what has one dimension, such as a
    variance, is above zero."""
    kind, shape = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)), tuple(tensor.dims)
    array = _random(shape, kind, generator)
    if kind.kind in "iub":
        return array
    if len(shape) < 2:
        return (1 + 0.2 * np.tanh(array)).astype(kind)
    terms = math.prod(shape[1:]) if len(shape) > 2 else min(shape)
    return (array / math.sqrt(terms)).astype(kind)
