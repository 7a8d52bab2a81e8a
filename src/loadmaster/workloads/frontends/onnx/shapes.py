"""Sizes of a network's inputs, from the caller's batch and dimensions for what the file leaves
open, and shapes and types of a node's outputs: from onnx's own inference for that node, then from
what the file notes.

Every node becomes a network of its own, whose constants are known, also those that bodies capture.
Types are not checked, because shapes do not depend on them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import onnx
from onnx import defs, helper, shape_inference

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.operators import has_channels_last, moved_channels, rule_of
from loadmaster.workloads.frontends.onnx.order import captured, subgraphs
from loadmaster.workloads.frontends.onnx.rules import (
    DTYPE_NUMBERS,
    MICROSOFT,
    NCHWC,
    KnownShape,
    Node,
    Value,
    describe,
    dtype_name,
)
from loadmaster.workloads.window import Shape

Dimension = onnx.TensorShapeProto.Dimension


@dataclass
class DimensionSizes:
    """Sizes of dimensions by symbol or ``TENSOR.AXIS``; ``old_batch`` and ``batch`` differ where a
    fixed batch is replaced."""

    given: dict[str, int] = field(default_factory=dict)
    old_batch: int = 1
    batch: int = 1

    @property
    def rebatched(self) -> bool:
        """Whether a batch that the file fixes is replaced by another."""
        return self.batch != self.old_batch

    def declared(self, tensor: str, info: onnx.TypeProto) -> KnownShape:
        """Return the shape that the file notes for a tensor, with a replaced batch; ``None``
        without a rank. A size below one in the file counts as unknown."""
        kind = tensor_type(info)
        if not kind.HasField("shape"):
            return None
        shape = [
            dim.dim_value
            if dim.dim_value > 0
            else self.given.get(dim.dim_param, self.given.get(f"{tensor}.{axis}"))
            for axis, dim in enumerate(kind.shape.dim)
        ]
        if self.rebatched and shape and shape[0] == self.old_batch:
            shape[0] = self.batch
        return tuple(shape)


def bind_inputs(
    graph: onnx.GraphProto,
    inputs: Sequence[onnx.ValueInfoProto],
    batch: int | None,
    dims: Mapping[str, int],
    spent: frozenset[str],
) -> tuple[DimensionSizes, dict[str, Shape]]:
    """Return the sizes for the whole file and the shape of each input; inputs in ``spent`` may be
    empty, as nothing needs their elements.

    Raises
    ------
    ModelError
        A size is not positive, a name in ``dims`` does not exist, or dimensions stay unknown (all
        of them are listed).
    """
    for item in inputs:
        _check_tensor(item)
    _require_open(graph, dims)
    sizes = DimensionSizes(dict(dims))
    if batch is not None:
        _set_batch(sizes, inputs, batch)
    shapes = {
        item.name: tuple(max(0, dim.dim_value) for dim in _dims(item))
        if item.name in spent
        and any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in _dims(item))
        else sizes.declared(item.name, item.type) or ()
        for item in inputs
    }
    _require_known(inputs, shapes)
    return sizes, {name: tuple(size or 0 for size in shape) for name, shape in shapes.items()}


def _check_tensor(item: onnx.ValueInfoProto) -> None:
    """Raise ModelError if a network input is not a tensor or has no shape."""
    kind = item.type.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        what = (kind or "unknown").removesuffix("_type").replace("_", " ")
        raise ModelError(
            f"input {item.name!r} is of type {what}: only tensors can be planned, export the"
            " network with tensor inputs"
        )
    if not tensor_type(item.type).HasField("shape"):
        raise ModelError(
            f"input {item.name!r} has no shape: export it with one, symbolic dimensions are enough"
        )


def tensor_type(info: onnx.TypeProto) -> onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor:
    """Return the type of a tensor, which may be sparse."""
    return info.sparse_tensor_type if info.HasField("sparse_tensor_type") else info.tensor_type


def values_given(
    inputs: Sequence[onnx.ValueInfoProto], dims: Mapping[str, int]
) -> dict[str, onnx.TensorProto]:
    """Return the one-element inputs that the caller gives by name, as constants."""
    found = {}
    for item in inputs:
        shape = [dim.dim_value for dim in _dims(item)]
        if item.name in dims and all(size == 1 for size in shape):
            kind = tensor_type(item.type).elem_type
            try:
                found[item.name] = helper.make_tensor(item.name, kind, shape, [dims[item.name]])
            except (OverflowError, TypeError, ValueError):
                raise ModelError(
                    f"--value {item.name}={dims[item.name]}: input {item.name!r} cannot have this"
                    " value"
                ) from None
    return found


def _dims(item: onnx.ValueInfoProto) -> Sequence[Dimension]:
    """Return the dimensions of an input."""
    dims: Sequence[Dimension] = tensor_type(item.type).shape.dim
    return dims


def _require_open(graph: onnx.GraphProto, dims: Mapping[str, int]) -> None:
    """Raise ModelError for a size of the caller's that is not positive, or of no open dimension."""
    everything = [*graph.input, *graph.value_info, *graph.output]
    known = dict.fromkeys(label for item in everything for label in _open_dimensions(item))
    made = {name for node in graph.node for name in node.output}
    for name, size in dims.items():
        if size < 1:
            raise ModelError(f"--dim {name}={size} is not positive: give a size of at least 1")
        tensor, _, axis = name.rpartition(".")
        if name not in known and not (tensor in made and axis.isdecimal()):
            listed = ", ".join([*known][:40]) or "none, all its dimensions are fixed"
            raise ModelError(
                f"--dim {name}={size} names no open dimension of this network: it has {listed}"
            )


def _open_dimensions(item: onnx.ValueInfoProto) -> list[str]:
    """Return the symbols of dimensions without a size, or ``TENSOR.AXIS`` where they have none."""
    return [
        dim.dim_param or f"{item.name}.{axis}"
        for axis, dim in enumerate(_dims(item))
        if dim.dim_value <= 0
    ]


def _set_batch(sizes: DimensionSizes, inputs: Sequence[onnx.ValueInfoProto], batch: int) -> None:
    """Set the batch in ``sizes``: the first dimension of the first input that has dimensions, by
    its symbol or its number, and all unnamed first dimensions."""
    if batch < 1:
        raise ModelError(f"--batch {batch} is not positive: give a size of at least 1")
    ranked = [item for item in inputs if _dims(item)]
    if not ranked:
        raise ModelError(f"--batch {batch} has nothing to set: no input has a dimension")
    first = _dims(ranked[0])[0]
    if first.dim_param:
        if (given := sizes.given.setdefault(first.dim_param, batch)) != batch:
            raise ModelError(
                f"--batch {batch} contradicts --dim {first.dim_param}={given}: give one of the two"
            )
    elif first.dim_value > 0:
        sizes.old_batch, sizes.batch = first.dim_value, batch
    for item in ranked:
        if f"{item.name}.0" in _open_dimensions(item):
            sizes.given.setdefault(f"{item.name}.0", batch)


def _require_known(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int | None, ...]]
) -> None:
    """Raise ModelError with a sentence for each dimension that stays unknown, each symbol only
    once."""
    lead = next((item.name for item in inputs if _dims(item)), "")
    sentences: dict[str, str] = {}
    for item in inputs:
        for axis, (dim, size) in enumerate(zip(_dims(item), shapes[item.name], strict=True)):
            if size is not None:
                continue
            option = dim.dim_param or f"{item.name}.{axis}"
            label = repr(dim.dim_param) if dim.dim_param else str(axis)
            state = f"is {dim.dim_value}" if dim.HasField("dim_value") else "is unknown"
            by_batch = axis == 0 and (item.name == lead or not dim.dim_param)
            advice = f"give --dim {shlex.quote(f'{option}=N')}"
            advice += " or --batch N" if by_batch else ""
            text = f"dimension {label} of input {item.name!r} {state}: {advice}"
            sentences.setdefault(option, text)
    if sentences:
        raise ModelError("; ".join(sentences.values()))


Schema: TypeAlias = Any
"""An ``onnx.defs.OpSchema`` or None; ``Any``, because the type stubs do not know which operators
are functions."""

LARGEST_RANK = 64
"""The most dimensions of a tensor."""
_FIRST_WITH_INFERENCE = 9
"""The opset from which on all operators of opset 1 have definitions that infer shapes."""


_MISFIT = re.compile("incompatible dimensions|mismatch|differ", re.IGNORECASE)
"""Inference's words for operands that do not fit together. Other complaints may be of what runs."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The known part of an output's shape and type.

    ``shape`` is ``None`` without a rank, ``problem`` says why it is not known, and ``tensor`` is
    false for sequences and the like.
    """

    dtype: str = ""
    shape: KnownShape = None
    problem: str = ""
    tensor: bool = True

    @property
    def known(self) -> bool:
        """Whether the type and every dimension are known."""
        return bool(self.dtype) and self.shape is not None and None not in self.shape


@dataclass(frozen=True, slots=True)
class Shapes:
    """Shape inference for one file: its opsets, the sizes the caller gave, and the shapes the file
    notes."""

    opsets: Mapping[str, int]
    sizes: DimensionSizes
    noted: Mapping[str, onnx.TypeProto]

    def opset(self, domain: str) -> int:
        """Return the version of an operator set that the file imports; the newest one if it names
        none."""
        return self.opsets.get(domain, defs.onnx_opset_version())

    def outputs(self, node: Node, proto: onnx.NodeProto, outer: Sequence[Value]) -> list[Guess]:
        """Infer shape and type of each output of ``proto``; ``outer`` are the values its bodies
        capture."""
        problem, inferred = "", {}
        try:
            inferred = self._infer(node, proto, outer)
        except Exception as error:
            # Behind what names the operator, which our own errors do.
            problem = " ".join(str(error).rpartition("): ")[2].split())[:300]
            lenient = proto.domain or self.sizes.rebatched or [*subgraphs(proto)]
            if not lenient and _MISFIT.search(problem):
                shapes = " and ".join(str(list(value.shape)) for value in node.present)
                raise ModelError(
                    f"{describe(node.kind, node.name)}: its operands of shapes {shapes} do not fit"
                    f" together ({problem}): the file is damaged, export it again"
                ) from None
        return [self._merge(name, inferred.get(name), problem) for name in proto.output]

    def damage(self, proto: onnx.NodeProto) -> str:
        """Return the complaint of onnx's checker about a node; empty if none."""
        context = onnx.checker.C.CheckerContext()
        context.ir_version = onnx.IR_VERSION
        context.opset_imports = {**self.opsets, "": self.opset("")}
        try:
            onnx.checker.check_node(proto, context)
        except Exception as error:
            return " ".join(str(error).split())[:300]
        return ""

    def _infer(self, node: Node, proto: onnx.NodeProto, outer: Sequence[Value]) -> dict[str, Guess]:
        """Return the shapes and types of a node's results, by name: from its rule, else from the
        onnx package's inference on a network of this node alone. Empty for unknown operators."""
        rule = rule_of(proto.domain, proto.op_type)
        if rule.shapes is not None:
            results = zip(proto.output, rule.shapes(node), strict=False)
            return {name: Guess(dtype, shape) for name, (dtype, shape) in results}
        schema = _schema(proto.op_type, proto.domain, self.opset(proto.domain))
        if schema is None:
            return {}
        _screen(node, proto)
        values = {value.name: value for value in (*node.present, *outer)}
        if last := has_channels_last(node):
            moved = moved_channels(node.operand(0))
            values[moved.name] = replace(moved, data=None)
        data = {
            name: onnx.numpy_helper.from_array(value.data, name)
            for name, value in values.items()
            if value.data is not None
        }
        # Of an operator that the file's opset is too old for, that of its definition.
        version = max(self.opset(schema.domain), schema.since_version)
        versions = {**self.opsets, schema.domain: version}
        opsets = [helper.make_opsetid(*item) for item in versions.items()]
        graph = helper.make_graph(
            [_as_standard(proto, schema, data)],
            "node",
            [
                helper.make_tensor_value_info(name, DTYPE_NUMBERS[value.dtype], value.shape)
                for name, value in values.items()
                if name not in data
            ],
            [onnx.ValueInfoProto(name=name) for name in proto.output if name],
            list(data.values()),
        )
        model = helper.make_model(graph, opset_imports=opsets)
        whole = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        found = {item.name: _guess(item.name, item.type) for item in whole.graph.output}
        if rule.corrected is not None:
            (name, guess), *_ = found.items()
            found[name] = replace(guess, shape=rule.corrected(node, guess.shape))
        return {name: _channels_back(guess) if last else guess for name, guess in found.items()}

    def _merge(self, name: str, inferred: Guess | None, problem: str) -> Guess:
        """Return an output's shape and type from inference, completed by the file's value infos and
        the caller's ``TENSOR.AXIS``."""
        guess = inferred or Guess(problem=problem)
        if problem and self.sizes.rebatched:
            # What the file notes may be of what contradicts the new batch.
            return replace(guess, problem=f"{problem}, with a batch of {self.sizes.batch}")
        info = self.noted.get(name)
        if info is not None and not guess.known:
            noted = _guess(name, info)
            declared = self.sizes.declared(name, info)
            guess = replace(
                noted,
                dtype=guess.dtype or noted.dtype,
                shape=_fill(guess.shape, declared),
                problem=problem or noted.problem,
            )
        if guess.shape is None:
            return guess
        shape = tuple(
            self.sizes.given.get(f"{name}.{axis}") if size is None else size
            for axis, size in enumerate(guess.shape)
        )
        return replace(guess, shape=shape)


@lru_cache(maxsize=1024)
def _schema(kind: str, domain: str, version: int) -> Schema:
    """The operator's definition: the newest one where the file's opset is older than the operator
    (some exporters run ahead).

    The definitions of the first opset infer nothing; then it is the next one that does. Those of
    pooling before opset 22 infer windows that begin behind the operand, which nobody makes.
    """
    like = rule_of(domain, kind).like or (kind if domain in (MICROSOFT, NCHWC) else "")
    newest = defs.onnx_opset_version()
    if like:
        return _schema(like, "", newest)
    if kind.endswith("Pool"):
        version = newest
    for since in (version, *range(version + 1, _FIRST_WITH_INFERENCE + 1), 10_000):
        try:
            schema: Schema = defs.get_schema(kind, since, domain)
        except defs.SchemaError:
            continue
        if (
            schema.has_type_and_shape_inference_function
            or schema.has_function
            or schema.has_context_dependent_function
            or since == 10_000
        ):
            return schema
    return None


def _channels_back(guess: Guess) -> Guess:
    """Return a shape with dimension 1 as the last one."""
    shape = guess.shape
    return replace(guess, shape=(shape[0], *shape[2:], shape[1])) if shape else guess


def _screen(node: Node, proto: onnx.NodeProto) -> None:
    """Raise ModelError for attributes with which onnx's inference aborts the process instead of
    raising."""
    for name, lowest in (("axis", -LARGEST_RANK), ("batch_dims", 0)):
        value = node.attrs.get(name, 0)
        if not isinstance(value, int) or not lowest <= value <= LARGEST_RANK:
            raise ModelError(f"its {name} {value} is out of range")
    pieces = node.attrs.get("num_outputs", len(proto.output))
    if node.kind == "Split" and pieces != len(proto.output):
        raise ModelError(f"it has {len(proto.output)} outputs and says that it has {pieces}")


def _as_standard(
    proto: onnx.NodeProto, schema: Schema, data: Mapping[str, onnx.TensorProto]
) -> onnx.NodeProto:
    """Return a copy of a node for inference, with explicit defaults where inference assumes others,
    and without values of the surrounding graph in its bodies. A vendor's variant becomes the
    standard operator with the same shapes."""
    standard = onnx.NodeProto()
    standard.CopyFrom(proto)
    if (proto.op_type, proto.domain) != (schema.name, schema.domain):
        standard.op_type, standard.domain = schema.name, schema.domain
        operands = rule_of(proto.domain, proto.op_type).operands
        taken = [name for index, name in enumerate(proto.input) if index in operands]
        standard.input[:] = taken[: schema.max_input]
        kept = [each for each in proto.attribute if each.name in schema.attributes]
        del standard.attribute[:]
        standard.attribute.extend(kept)
    given = {item.name: item.ints for item in standard.attribute}
    defaults = [each.default_value for name, each in schema.attributes.items() if name not in given]
    standard.attribute.extend(each for each in defaults if each.name)
    names = sorted(captured(proto) & data.keys())
    for graph in subgraphs(standard):
        graph.initializer.extend(data[name] for name in names)
    if proto.op_type == "Slice" and "axes" in given:
        # Of the first opsets, whose axes may be in any order.
        own = [given[name] for name in ("axes", "starts", "ends")]
        rows = sorted(zip(*own, strict=True))
        for numbers, ordered in zip(own, zip(*rows, strict=True), strict=True):
            numbers[:] = ordered
    return standard


def _guess(name: str, info: onnx.TypeProto) -> Guess:
    """Return the element type and shape that a type declares; dimensions without a size are
    None."""
    kind = info.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return (
            Guess(problem=f"of type {kind.removesuffix('_type')}", tensor=False)
            if kind
            else Guess()
        )
    tensor = tensor_type(info)
    dtype = dtype_name(tensor.elem_type, name) if tensor.elem_type else ""
    if not tensor.HasField("shape"):
        return Guess(dtype)
    return Guess(
        dtype,
        tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
            for dim in tensor.shape.dim
        ),
    )


def _fill(shape: KnownShape, noted: KnownShape) -> KnownShape:
    """``shape`` with its gaps filled from ``noted`` where both have the same rank."""
    if shape is None or noted is None or len(shape) != len(noted):
        return shape if shape is not None else noted
    return tuple(other if size is None else size for size, other in zip(shape, noted, strict=True))


def unshaped(node: Node, proto: onnx.NodeProto, output: str, guess: Guess) -> ModelError:
    """Make the error for an output that something needs and whose shape is unknown."""
    why = f" ({guess.problem})" if guess.problem else ""
    kind = ".".join(filter(None, (proto.domain, proto.op_type)))
    if not guess.tensor:
        text = f"{output!r}, output of {describe(kind, proto.name)}, is {guess.problem}"
        return ModelError(f"{text}: only tensors can be planned, export the network without it")
    text = f"the shape of {output!r}, output of {describe(kind, proto.name)}, is unknown{why}"
    planning = [node.optional(index) for index in rule_of(node.domain, node.kind).planning]
    absent = [value for value in planning if value and value.constant and value.data is None]
    if absent:
        return ModelError(
            f"{text}: the elements of {absent[0].name!r} are missing: put the file with the"
            " external data beside the model"
        )
    if guess.shape is not None:
        options = " ".join(
            f"--dim {output}.{axis}=N" for axis, size in enumerate(guess.shape) if size is None
        )
        return ModelError(f"{text}: give {options}, or add it to the file's value_info")
    return ModelError(
        f"{text}: run shape inference before loading, or add it to the file's value_info; with a"
        " batch other than the file's, export the network with that batch"
    )
