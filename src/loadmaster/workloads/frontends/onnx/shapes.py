"""Shapes and types of a node's outputs: from onnx's own inference for that node, then from what the file notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import onnx
from onnx import defs, shape_inference

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.contrib import CONTRIB_SHAPES, STANDARD_TWINS
from loadmaster.workloads.frontends.onnx.inputs import Sizes
from loadmaster.workloads.frontends.onnx.types import DTYPE_NUMBERS, Array, Node, Value, describe, dtype_name

STANDARD_DOMAINS = ("", "ai.onnx")
LARGEST_RANK = 64
"""More dimensions than any tensor has."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What is known of an output.

    ``shape`` is ``None`` without a rank, ``problem`` says why it is not known, and ``tensor`` is false for sequences and the like.
    """

    dtype: str = ""
    shape: tuple[int | None, ...] | None = None
    problem: str = ""
    tensor: bool = True

    @property
    def known(self) -> bool:
        """Whether type and every dimension are there."""
        return bool(self.dtype) and self.shape is not None and None not in self.shape


@dataclass
class Shapes:
    """Shape inference for one file: its opsets, the sizes the caller gave, and the shapes the file notes."""

    opsets: Mapping[str, int]
    sizes: Sizes
    noted: Mapping[str, onnx.TypeProto]
    _types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    _data: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def opset(self, domain: str) -> int:
        """Version of an operator set that the file imports; the newest one if it does not say."""
        names = STANDARD_DOMAINS if domain in STANDARD_DOMAINS else (domain,)
        return next((self.opsets[name] for name in names if name in self.opsets), defs.onnx_opset_version())

    def outputs(self, node: Node, proto: onnx.NodeProto, outer: Sequence[Value]) -> list[Guess]:
        """What is known of each output of ``proto``; ``outer`` are the values its bodies capture."""
        problem, inferred = "", {}
        try:
            inferred = self._infer(node, proto, outer)
        except Exception as error:
            problem = " ".join(str(error).split())[:300]
        return [self._merged(name, inferred.get(name), problem) for name in proto.output]

    def _infer(self, node: Node, proto: onnx.NodeProto, outer: Sequence[Value]) -> dict[str, Guess]:
        shapes = CONTRIB_SHAPES.get((proto.domain, proto.op_type))
        if shapes is not None:
            results = shapes(node)
            return {name: Guess(dtype, shape) for name, (dtype, shape) in zip(proto.output, results, strict=False)}
        schema = _schema(proto.op_type, proto.domain, self.opset(proto.domain))
        if schema is None:
            return {}
        _screen(node, proto)
        values = {value.name: value for value in (*node.present, *outer)}
        found = shape_inference.infer_node_outputs(
            schema,
            _as_standard(proto, schema),
            {name: self._type(value) for name, value in values.items()},
            {name: self._tensor(name, value.data) for name, value in values.items() if value.data is not None},
            opset_imports=[onnx.helper.make_opsetid(domain, version) for domain, version in self.opsets.items()],
        )
        return {name: _guess(name, info) for name, info in found.items()}

    def _type(self, value: Value) -> onnx.TypeProto:
        if value.name not in self._types:
            self._types[value.name] = onnx.helper.make_tensor_type_proto(DTYPE_NUMBERS[value.dtype], value.shape)
        return self._types[value.name]

    def _tensor(self, name: str, data: Array) -> onnx.TensorProto:
        if name not in self._data:
            self._data[name] = onnx.numpy_helper.from_array(data, name)
        return self._data[name]

    def _merged(self, name: str, inferred: Guess | None, problem: str) -> Guess:
        """Inference first; the file's own notes and the caller's ``TENSOR.AXIS`` fill in what it leaves open."""
        guess = inferred or Guess(problem=problem)
        info = self.noted.get(name)
        if info is not None and not guess.known:
            noted, declared = _guess(name, info), self.sizes.declared(name, info)
            guess = replace(noted, dtype=guess.dtype or noted.dtype, shape=_fill(guess.shape, declared), problem=problem or noted.problem)
        if guess.shape is None:
            return guess
        shape = tuple(self.sizes.axes.get(f"{name}.{axis}") if size is None else size for axis, size in enumerate(guess.shape))
        return replace(guess, shape=shape)


@lru_cache(maxsize=1024)
def _schema(kind: str, domain: str, version: int) -> defs.OpSchema | None:
    """The operator's definition; the newest one where the file's opset is older than the operator (some exporters run ahead)."""
    twin = STANDARD_TWINS.get((domain, kind))
    if twin:
        return _schema(twin, "", defs.onnx_opset_version())
    domain = "" if domain in STANDARD_DOMAINS else domain
    for since in (version, 10_000):
        try:
            return defs.get_schema(kind, since, domain)
        except defs.SchemaError:
            continue
    return None


def _screen(node: Node, proto: onnx.NodeProto) -> None:
    """Refuse what makes onnx's inference abort the process instead of raising: it trusts these attributes."""
    for name, lowest in (("axis", -LARGEST_RANK), ("batch_dims", 0)):
        value = node.attrs.get(name, 0)
        if not isinstance(value, int) or not lowest <= value <= LARGEST_RANK:
            raise ModelError(f"its {name} {value} is out of range")
    pieces = node.attrs.get("num_outputs", len(proto.output))
    if node.kind == "Split" and pieces != len(proto.output):
        raise ModelError(f"it has {len(proto.output)} outputs and says that it has {pieces}")


def _as_standard(proto: onnx.NodeProto, schema: defs.OpSchema) -> onnx.NodeProto:
    """A vendor's variant as the standard operator that gives the same shapes."""
    if proto.op_type == schema.name and proto.domain == schema.domain:
        return proto
    twin = onnx.NodeProto()
    twin.CopyFrom(proto)
    twin.op_type, twin.domain = schema.name, schema.domain
    del twin.attribute[:]
    twin.attribute.extend(attribute for attribute in proto.attribute if attribute.name in schema.attributes)
    return twin


def _guess(name: str, info: onnx.TypeProto) -> Guess:
    kind = info.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return Guess(problem=f"of type {kind.removesuffix('_type')}", tensor=False) if kind else Guess()
    tensor = info.tensor_type if kind == "tensor_type" else info.sparse_tensor_type
    dtype = dtype_name(tensor.elem_type, name) if tensor.elem_type else ""
    if not tensor.HasField("shape"):
        return Guess(dtype)
    return Guess(dtype, tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in tensor.shape.dim))


def _fill(shape: tuple[int | None, ...] | None, noted: tuple[int | None, ...] | None) -> tuple[int | None, ...] | None:
    """``shape`` with its gaps filled from ``noted`` where both have the same rank."""
    if shape is None or noted is None or len(shape) != len(noted):
        return shape if shape is not None else noted
    return tuple(other if size is None else size for size, other in zip(shape, noted, strict=True))


def unshaped(node: Node, proto: onnx.NodeProto, output: str, guess: Guess) -> ModelError:
    """Error for an output that something needs and whose shape nobody knows."""
    why = f" ({guess.problem})" if guess.problem else ""
    kind = f"{proto.domain}.{proto.op_type}" if proto.domain not in STANDARD_DOMAINS else proto.op_type
    if not guess.tensor:
        text = f"{output!r}, output of {describe(kind, proto.name)}, is {guess.problem}"
        return ModelError(f"{text}: only tensors can be planned, export the network without it")
    text = f"the shape of {output!r}, output of {describe(kind, proto.name)}, is unknown{why}"
    if guess.shape is not None:
        options = " ".join(f"--dim {output}.{axis}=N" for axis, size in enumerate(guess.shape) if size is None)
        return ModelError(f"{text}: give {options}, or add it to the file's value_info")
    return ModelError(f"{text}: run shape inference before loading, or add it to the file's value_info")
