"""Walks a network in execution order and finds for each node its outputs' shapes, types and
storage, and its work."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from loadmaster.core.arrays import WHOLE_LIMIT, Array
from loadmaster.core.errors import ModelError, defect
from loadmaster.core.names import free_name
from loadmaster.workloads.frontends.onnx.control_flow import Expansion, expanded
from loadmaster.workloads.frontends.onnx.operators import is_view, work_of
from loadmaster.workloads.frontends.onnx.order import (
    captured,
    dependencies,
    initialisers,
    nested_nodes,
    subgraphs,
)
from loadmaster.workloads.frontends.onnx.rules import (
    DTYPE_NUMBERS,
    ELEMENT_BITS,
    Division,
    Node,
    Value,
    Work,
    describe,
    dtype_name,
    kinds_in,
    stored_as,
)
from loadmaster.workloads.frontends.onnx.shapes import DimensionSizes, Guess, Shapes, unshaped
from loadmaster.workloads.graph import OpClass, TensorKind
from loadmaster.workloads.window import Shape

LARGEST_COMPUTED = 2**40
"""Most bytes of a constant that a network computes; larger ones are errors or attacks."""

RANDOM = kinds_in(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli Multinomial"
)
_CONSTANT_TYPES = {"value_int": np.int64, "value_float": np.float32, "value_string": np.object_}
"""Element types of constants that are attributes of a node."""
_SHAPE_ONLY = ("Shape", "Size", "EyeLike")


@dataclass(frozen=True, slots=True)
class VisitedNode:
    """One visited node with its work and outputs; ``outer`` are the values that its bodies capture.

    Frontends of other formats, which translate operators to ONNX, set ``kind``, the operator's name
    in the file, and ``division``, in the file's order of dimensions.
    """

    node: Node
    work: Work
    outer: tuple[Value, ...] = ()
    kind: str = ""
    division: Division | None = None


@dataclass
class WalkedNetwork:
    """A network after all operators have been visited: steps, values by name, and numbers of
    operators in bodies; ``inputs`` are the inputs that hold elements."""

    values: dict[str, Value] = field(default_factory=dict)
    steps: list[VisitedNode] = field(default_factory=list)
    subgraph_ops: Counter[str] = field(default_factory=Counter)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def add(self, value: Value) -> Value:
        """Register a value. Raises `ModelError` if its shape cannot be planned."""
        self.values[value.name] = checked(value)
        return value


@dataclass(kw_only=True)
class Walk(WalkedNetwork):
    """One pass over a network; every value that a node reads is in ``values`` before the node is
    visited."""

    shapes: Shapes
    precision: str | None
    needed: set[str]
    delivered: frozenset[str]
    operators: set[str]

    def add_input(self, name: str, dtype: str, shape: Shape) -> None:
        """Register an input of the network; one without elements is known beforehand."""
        value = Value(name, shape, dtype, stored_as(dtype, self.precision), TensorKind.INPUT)
        if 0 in shape:
            data = np.empty(shape, helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[dtype]))
            value = replace(value, kind=TensorKind.WEIGHT, data=data)
        self.add(value)

    def add_constant(
        self, name: str, tensor: onnx.TensorProto, shape: Sequence[int] | None = None
    ) -> Value:
        """Register an initialiser; ``shape`` is that of a sparse one, whose ``tensor`` holds only
        the values present."""
        dims = tuple(tensor.dims if shape is None else shape)
        dtype = dtype_name(tensor.data_type, name)
        data = tensor_data(tensor) if shape is None else None
        stored = stored_as(dtype, self.precision)
        return self.add(Value(name, dims, dtype, stored, TensorKind.WEIGHT, data))

    def visit(self, proto: onnx.NodeProto, name: str) -> None:
        """Find the next node's work and register its outputs. Errors name the node, however
        malformed it is."""
        try:
            self._visit(proto, name)
        except ModelError:
            raise
        except Exception as error:
            where = describe(proto.op_type, proto.name)
            damage = self.shapes.damage(proto)
            raise ModelError(
                f"{where} is not valid: {damage}" if damage else defect(where, error)
            ) from error

    def _visit(self, proto: onnx.NodeProto, name: str) -> None:
        """Append the steps of a node: a constant, an unrolled body, or one operator with its
        inferred results."""
        if proto.op_type == "Constant" and not proto.domain:
            made = (self._constant(proto, proto.output[0]),)
            node = Node(name, "Constant", "", _attributes(proto), (), made)
            self.steps.append(VisitedNode(node, Work(OpClass.SHAPE)))
            return
        inner = (
            expanded(proto, name, self.values, self.shapes.opset(""), self.needed)
            if not proto.domain and subgraphs(proto)
            else None
        )
        if inner is not None and inner.runs == 1:
            self._visit_all(inner.nodes)
            return
        inputs = tuple(self._value(proto, item) if item else None for item in proto.input)
        node = Node(
            name,
            proto.op_type,
            proto.domain,
            _attributes(proto),
            inputs,
            opset=self.shapes.opset(proto.domain),
        )
        outer = tuple(self.values[item] for item in sorted(captured(proto)))
        repeated = self._work_of_all_runs(inner, proto) if inner is not None else None
        if repeated is None:
            self.subgraph_ops.update(
                inner.op_type for inner in nested_nodes([proto]) if inner is not proto
            )
        node = replace(node, outputs=self._outputs(node, proto, outer))
        outer += self._inner_weights(proto, name)
        work = repeated or self._work(node, bool(subgraphs(proto)))
        if work.op_class is OpClass.VIEW:
            node = replace(node, outputs=(_alias(node), *node.outputs[1:]))
        if work.op_class is OpClass.MOVEMENT and not self._converts(node):
            node = replace(
                node, outputs=tuple(_as_quantised(node, value) for value in node.outputs)
            )
        self.values.update((value.name, value) for value in node.results)
        self.steps.append(VisitedNode(node, work, outer))

    def _visit_all(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Append the steps of all nodes, in order and under unused names."""
        self.needed |= {item for each in nodes for item in dependencies(each)}
        for each in nodes:
            label = free_name(each.name, self.operators)
            self.operators.add(label)
            self.visit(each, label)

    def _work_of_all_runs(self, expansion: Expansion, proto: onnx.NodeProto) -> Work | None:
        """Return the work of all runs of a long loop, each taken to be that of the first, whose
        intermediate results never leave the core. None if some of it is unknown."""
        values = dict(self.values)
        for value in (values.get(name) for name in proto.input[expansion.data :]):
            # A state that is known before the first run is not known before the others.
            if value is not None and value.dtype.startswith("float"):
                values[value.name] = replace(value, kind=TensorKind.ACTIVATION, data=None)
        run = replace(
            self,
            needed=set(self.needed),
            operators=set(self.operators),
            values=values,
            steps=[],
            subgraph_ops=Counter(),
        )
        run._visit_all(expansion.nodes)
        work = [step.work for step in run.steps]
        if {OpClass.CONTROL_FLOW, OpClass.UNKNOWN} & {each.op_class for each in work}:
            return None
        nests = tuple(
            replace(nest, repeats=nest.repeats * expansion.runs, input="", weight="", output="")
            for each in work
            for nest in each.nests
        )
        elements = expansion.runs * sum(each.elements for each in work)
        if elements + sum(nest.macs for nest in nests) >= WHOLE_LIMIT:
            return None
        kind = OpClass.PRODUCT if nests else OpClass.REDUCTION
        return Work(kind, nests, elements, data=expansion.data)

    def _value(self, proto: onnx.NodeProto, name: str) -> Value:
        """Return the value that a node reads; raise ModelError if an expanded body reads an unknown
        tensor."""
        if name not in self.values:
            raise ModelError(
                f"{describe(proto.op_type, proto.name)} reads tensor {name!r}, which nothing"
                " produces before: export the network again"
            )
        return self.values[name]

    def _inner_weights(self, proto: onnx.NodeProto, name: str) -> tuple[Value, ...]:
        """Return the constants of all bodies of a node, registered under the node's name because
        bodies may use a name twice."""
        found = []
        for inner in nested_nodes([proto]):
            for graph in subgraphs(inner):
                found += [
                    self.add_constant(self._free(f"{name}/{item.name}"), item, dims)
                    for item, dims in initialisers(graph)
                ]
            if inner.op_type == "Constant" and not inner.domain:
                found.append(self._constant(inner, self._free(f"{name}/{inner.output[0]}")))
        return tuple(found)

    def _free(self, name: str) -> str:
        """Return ``name``, or a variant of it that is not used in the network."""
        return free_name(name, self.values, self.needed)

    def _converts(self, node: Node) -> bool:
        """Whether a network result has to be converted to its declared type, because it is stored
        in another (quantised) one."""
        first = next(iter(node.outputs), None)
        source = node.optional(0)
        return bool(
            first and source and first.name in self.delivered and first.stored != source.stored
        )

    def _constant(self, proto: onnx.NodeProto, name: str) -> Value:
        """Return a constant's value under ``name``, from whichever attribute holds it."""
        for attribute in proto.attribute:
            if attribute.name == "value":
                return self.add_constant(name, attribute.t)
            if attribute.name == "sparse_value":
                return self.add_constant(
                    name, attribute.sparse_tensor.values, attribute.sparse_tensor.dims
                )
            kind = _CONSTANT_TYPES.get(attribute.name.removesuffix("s"))
            if kind is not None:
                array: Array = np.array(helper.get_attribute_value(attribute), kind)
                return self.add_constant(name, numpy_helper.from_array(array, name))
        raise ModelError(
            f"{describe('Constant', proto.name)} holds no value: the file is damaged, export it"
            " again"
        )

    def _outputs(
        self, node: Node, proto: onnx.NodeProto, outer: Sequence[Value]
    ) -> tuple[Value | None, ...]:
        """Return the values of the outputs that are needed, with their data if they are small
        constants."""
        reshaped = rebatched_shape(node, self.shapes.sizes)
        guesses = (
            [Guess(node.operand(0).dtype, reshaped)]
            if reshaped
            else self.shapes.outputs(node, proto, outer)
        )
        given = bool(node.present) and all(value.constant for value in node.present)
        # Random numbers, and what bodies compute, are not known at planning time.
        constant = (given or node.kind in _SHAPE_ONLY) and not (
            node.domain or node.kind in RANDOM or subgraphs(proto)
        )
        outputs = []
        for name, guess in zip(proto.output, guesses, strict=True):
            if name in self.needed and not guess.known:
                raise unshaped(node, proto, name, guess)
            outputs.append(
                self._output_value(node, name, guess, constant) if name and guess.known else None
            )
        if constant:
            data = fold(replace(node, outputs=tuple(outputs)), proto) or []
            outputs = [
                _with_data(value, array) for value, array in itertools.zip_longest(outputs, data)
            ]
        # A node none of whose outputs are read keeps all of them.
        wanted = [value if value and value.name in self.needed else None for value in outputs]
        return tuple(wanted if any(wanted) else outputs)

    def _output_value(self, node: Node, name: str, guess: Guess, constant: bool) -> Value:
        """Return a node's result as a weight, if constant or empty, or an activation. Raise
        ModelError for a computed constant larger than LARGEST_COMPUTED."""
        shape = tuple(size for size in guess.shape or () if size is not None)
        empty = 0 in shape and name not in self.delivered
        kind = TensorKind.WEIGHT if constant or empty else TensorKind.ACTIVATION
        value = checked(
            Value(name, shape, guess.dtype, stored_as(guess.dtype, self.precision), kind)
        )
        if constant and value.bytes > LARGEST_COMPUTED:
            raise ModelError(
                f"{describe(node.kind, node.name)} computes a constant of {value.bytes} bytes,"
                f" {name!r}: check the sizes that it is computed from"
            )
        return value

    def _work(self, node: Node, has_bodies: bool) -> Work:
        """Return the work of a node."""
        first = next(iter(node.outputs), None)
        made = node.results
        constant = bool(made) and all(value.constant for value in made)
        if constant and (first is None or first.integers() is not None):
            return Work(OpClass.SHAPE)
        converts = self._converts(node)
        if is_view(node) and not (constant and converts):
            return (
                Work(OpClass.ELEMENTWISE, elements=node.result.count)
                if converts
                else Work(OpClass.VIEW, touched=work_of(node).touched)
            )
        if constant:
            return Work(OpClass.SHAPE)
        try:
            work = work_of(node) if made else Work(OpClass.UNKNOWN)
            return (
                Work(OpClass.CONTROL_FLOW)
                if has_bodies and work.op_class is OpClass.UNKNOWN
                else work
            )
        except ModelError as error:
            raise ModelError(f"{describe(node.kind, node.name)}: {error}") from None
        except ZeroDivisionError:
            # Rules divide by sizes alone.
            empty = next((value for value in node.present if not value.count), None)
            if empty is None:
                raise
            raise ModelError(
                f"{describe(node.kind, node.name)} cannot work on tensor {empty.name!r}, which is"
                f" empty, of shape {list(empty.shape)}: export the network again"
            ) from None


def checked(value: Value) -> Value:
    """Return ``value`` if its shape can be planned, else raise; only values that no operator reads
    may be empty."""
    shape = list(value.shape)
    if min(shape, default=1) < 0:
        raise ModelError(
            f"tensor {value.name!r} has a negative dimension, {shape}: export the network again"
        )
    if 0 in shape and not value.constant:
        raise ModelError(
            f"tensor {value.name!r} is empty, its shape is {shape}: export the network with sizes"
            " of at least 1"
        )
    if value.bytes >= WHOLE_LIMIT:
        raise ModelError(
            f"tensor {value.name!r} of shape {shape} would take 2^62 bytes or more: give smaller"
            " sizes"
        )
    return value


def rebatched_shape(node: Node, sizes: DimensionSizes) -> Shape | None:
    """Return the target of a ``Reshape``, or of a ``Resize`` by sizes, with the old batch replaced;
    ``None`` if the file's own target is right.

    With an open dimension in the target, any element count fits; then the leading dimension is the
    batch if it was the old one and the operand leads with a multiple of the new one.
    """
    operand = {"Reshape": ("shape", 1), "Resize": ("sizes", 3)}.get(node.kind)
    target = node.integers(*operand) if operand and sizes.rebatched else None
    source = node.optional(0)
    if not target or source is None or source.constant or not source.shape:
        return None
    if node.kind == "Resize":
        found = [*source.shape]
        axes = [axis % len(found) for axis in node.integers("axes") or range(len(found))]
        for axis, size in zip(axes, target, strict=True):
            found[axis] = size
        stretched = node.attrs.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        if not stretched or (source.shape[0], found[0]) != (sizes.batch, sizes.old_batch):
            return None
        return (sizes.batch, *found[1:])
    if not node.attrs.get("allowzero"):
        target = [
            source.shape[axis] if size == 0 and axis < len(source.shape) else size
            for axis, size in enumerate(target)
        ]
    if target[0] < 1 or target[0] * sizes.batch % sizes.old_batch:
        return None
    lead, rest = target[0] * sizes.batch // sizes.old_batch, target[1:]
    known = lead * math.prod(size for size in rest if size != -1)
    if -1 not in rest:
        fits = source.count == known
    else:
        fits = lead == sizes.batch and not (source.shape[0] % sizes.batch or source.count % known)
    if not fits:
        return None
    return (lead, *(source.count // known if size == -1 else size for size in rest))


def _with_data(value: Value | None, data: Array | None) -> Value | None:
    """Attach the elements to a value if shape and type match."""
    if value is None or data is None or data.shape != value.shape:
        return value
    return replace(
        value, data=data.astype(helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[value.dtype]))
    )


def _alias(node: Node) -> Value:
    """Return the output of a view: its own name and shape, with the operand's storage.

    Scales are stored beside the elements that they scale; a few constant ones are not counted.
    """
    source = node.operand(0)
    scales = tuple(replace(value, shape=(value.count,)) for value in source.scales)
    if node.kind == "DequantizeLinear":
        blocks = node.attrs.get("block_size")
        scales = tuple(each for each in node.present[1:] if blocks or not each.constant)
    return replace(
        node.result,
        stored=source.stored,
        kind=source.kind,
        alias_of=source.storage,
        scales=scales,
        order=_order(node, source),
    )


def _order(node: Node, source: Value) -> tuple[int, ...] | None:
    """Return the owner's dimension of each dimension of a view; None if they do not correspond."""
    order = source.order if source.alias_of else tuple(range(len(source.shape)))
    if node.kind == "Transpose":
        permutation, moves = node.permutation(source.shape)
        if order is None and not moves:
            return None
        return tuple(order[axis] for axis in permutation) if order else ()
    if node.result.shape == source.shape:
        return order
    return None if order is None or (order and list(order) == sorted(order)) else ()


def _as_quantised(node: Node, value: Value | None) -> Value | None:
    """Return an output of data movement, stored in the widest quantised type of the operands."""
    copied = [source.stored for source in node.present if value and source.dtype == value.dtype]
    return (
        replace(value, stored=max(copied, key=ELEMENT_BITS.__getitem__))
        if value and copied
        else value
    )


class _Attributes(dict[str, Any]):
    """Attributes of a node by name; a missing one raises ModelError."""

    def __missing__(self, name: str) -> Any:
        raise ModelError(f"attribute {name!r} is missing: the file is damaged, export it again")


def _attributes(proto: onnx.NodeProto) -> dict[str, Any]:
    """Return attributes as Python values, without bodies."""
    attributes = _Attributes()
    for attribute in proto.attribute:
        if attribute.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            content = helper.get_attribute_value(attribute)
            attributes[attribute.name] = (
                content.decode("utf-8", "replace") if isinstance(content, bytes) else content
            )
    return attributes


LARGEST_FOLD = 4096
"""Most elements of a constant whose values are kept: enough for shapes, too few for weights."""

_RENAMED = kinds_in("Identity Reshape Flatten Squeeze Unsqueeze")
"""Views: inference knows the shape of their result, in the spelling of every opset."""
_FOLDED = _RENAMED | kinds_in(
    """
    Abs Add And Cast Ceil Concat ConstantOfShape Div Equal Expand Floor Gather Greater
    GreaterOrEqual Less LessOrEqual Max Min Mod Mul Neg Not Or Pow Range ReduceMax ReduceMin
    ReduceProd ReduceSum Round Shape Sign Size Slice Split Sqrt Sub Tile Transpose Where
    """
)
"""Operators that are folded: exporters use them to compute shapes."""


def tensor_data(tensor: onnx.TensorProto) -> Array | None:
    """Return the elements of a small tensor; ``None`` if it is large, external, text or damaged."""
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if (
        external
        or tensor.data_type == onnx.TensorProto.STRING
        or math.prod(tensor.dims) > LARGEST_FOLD
    ):
        return None
    try:
        return numpy_helper.to_array(tensor)
    except Exception:
        return None


def fold(node: Node, proto: onnx.NodeProto) -> list[Array] | None:
    """Fold a node: compute its outputs if its operands are known constants and these are small,
    else return ``None``."""
    small = all(value and value.count <= LARGEST_FOLD for value in node.outputs)
    if node.kind not in _FOLDED or not small:
        return None
    if node.kind in ("Shape", "Size"):
        # They need only the shape.
        operands = {value.name: np.broadcast_to(False, value.shape) for value in node.present}
    else:
        operands = {value.name: value.data for value in node.present if value.data is not None}
    if any(value.name not in operands for value in node.present):
        return None
    try:
        if node.kind in _RENAMED:
            return [operands[node.label(0)].reshape(node.result.shape)]
        if node.kind == "ConstantOfShape":
            fill = node.attrs.get("value")
            return [np.full(node.result.shape, numpy_helper.to_array(fill) if fill else 0.0)]
        # its import takes longer than reading most networks, which need none of it
        from onnx.reference import ReferenceEvaluator

        run = helper.make_function(
            "fold",
            "fold",
            list(operands),
            [name for name in proto.output if name],
            [proto],
            [helper.make_opsetid(proto.domain, node.opset)],
        )
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(run).run(None, operands, {}))
    except Exception:
        return None
