"""Binds the inputs of a network to sizes: the caller's batch and dimensions for what the file
leaves open."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.types import Shape

Dimension = onnx.TensorShapeProto.Dimension


@dataclass
class Sizes:
    """Sizes of dimensions by symbol and by ``TENSOR.AXIS``; ``old_batch`` and ``batch`` differ
    where a fixed batch is replaced."""

    symbols: dict[str, int] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    old_batch: int = 1
    batch: int = 1

    @property
    def rebatched(self) -> bool:
        """Whether a batch that the file fixes is replaced by another."""
        return self.batch != self.old_batch

    def size(self, dim: Dimension, tensor: str, axis: int) -> int | None:
        """Return the size of a dimension, ``None`` if it is unknown; a size below one in the file
        counts as unknown."""
        given = self.axes.get(f"{tensor}.{axis}")
        if dim.dim_value > 0:
            return dim.dim_value
        return self.symbols.get(dim.dim_param, given) if dim.dim_param else given

    def declared(self, tensor: str, info: onnx.TypeProto) -> tuple[int | None, ...] | None:
        """Return the shape that the file notes for a tensor, with a replaced batch; ``None``
        without a rank."""
        kind = tensor_type(info)
        if not kind.HasField("shape"):
            return None
        shape = [self.size(dim, tensor, axis) for axis, dim in enumerate(kind.shape.dim)]
        if self.rebatched and shape and shape[0] == self.old_batch:
            shape[0] = self.batch
        return tuple(shape)


def bind_inputs(
    graph: onnx.GraphProto,
    inputs: Sequence[onnx.ValueInfoProto],
    batch: int | None,
    dims: Mapping[str, int],
    spent: frozenset[str] = frozenset(),
) -> tuple[Sizes, dict[str, Shape]]:
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
    sizes = _given(graph, dims)
    if batch is not None:
        _set_batch(sizes, inputs, batch)
    shapes = {
        item.name: tuple(max(0, dim.dim_value) for dim in _dims(item))
        if item.name in spent and _is_empty(item)
        else sizes.declared(item.name, item.type) or ()
        for item in inputs
    }
    complaints = _complaints(inputs, shapes)
    if complaints:
        raise ModelError("; ".join(complaints))
    return sizes, {name: tuple(size or 0 for size in shape) for name, shape in shapes.items()}


def _check_tensor(item: onnx.ValueInfoProto) -> None:
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
    """The inputs of one element that the caller gives by name, as constants."""
    found = {}
    for item in inputs:
        shape = [dim.dim_value for dim in _dims(item)]
        if item.name in dims and all(size == 1 for size in shape):
            kind = tensor_type(item.type).elem_type
            try:
                found[item.name] = onnx.helper.make_tensor(
                    item.name, kind, shape, [dims[item.name]]
                )
            except (OverflowError, TypeError, ValueError):
                raise ModelError(
                    f"--value {item.name}={dims[item.name]}: input {item.name!r} cannot have this"
                    " value"
                ) from None
    return found


def _dims(item: onnx.ValueInfoProto) -> Sequence[Dimension]:
    dims: Sequence[Dimension] = tensor_type(item.type).shape.dim
    return dims


def _given(graph: onnx.GraphProto, dims: Mapping[str, int]) -> Sizes:
    """The caller's sizes, split into symbols and axes."""
    everything = [*graph.input, *graph.value_info, *graph.output]
    symbols = list(
        dict.fromkeys(dim.dim_param for item in everything for dim in _dims(item) if dim.dim_param)
    )
    unnamed = [
        f"{item.name}.{axis}"
        for item in everything
        for axis, dim in enumerate(_dims(item))
        if _is_unnamed(dim)
    ]
    made = {name for node in graph.node for name in node.output}
    sizes = Sizes()
    for name, size in dims.items():
        if size < 1:
            raise ModelError(f"--dim {name}={size} is not positive: give a size of at least 1")
        if name in symbols:
            sizes.symbols[name] = size
        elif name in unnamed or (
            name.rpartition(".")[0] in made and name.rpartition(".")[2].isdecimal()
        ):
            sizes.axes[name] = size
        else:
            known = (
                ", ".join([*symbols, *dict.fromkeys(unnamed)][:40])
                or "none, all its dimensions are fixed"
            )
            raise ModelError(
                f"--dim {name}={size} names no open dimension of this network: it has {known}"
            )
    return sizes


def _is_unnamed(dim: Dimension) -> bool:
    return dim.dim_value <= 0 and not dim.dim_param


def _set_batch(sizes: Sizes, inputs: Sequence[onnx.ValueInfoProto], batch: int) -> None:
    if batch < 1:
        raise ModelError(f"--batch {batch} is not positive: give a size of at least 1")
    ranked = [item for item in inputs if _dims(item)]
    if not ranked:
        raise ModelError(f"--batch {batch} has nothing to set: no input has a dimension")
    first = _dims(ranked[0])[0]
    if first.dim_param:
        if sizes.symbols.setdefault(first.dim_param, batch) != batch:
            given = sizes.symbols[first.dim_param]
            raise ModelError(
                f"--batch {batch} contradicts --dim {first.dim_param}={given}: give one of the two"
            )
    elif first.dim_value > 0:
        sizes.old_batch, sizes.batch = first.dim_value, batch
    for item in ranked:
        if _is_unnamed(_dims(item)[0]):
            sizes.axes.setdefault(f"{item.name}.0", batch)


def _is_empty(item: onnx.ValueInfoProto) -> bool:
    return any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in _dims(item))


def _complaints(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int | None, ...]]
) -> list[str]:
    """One sentence for each dimension that stays unknown, a symbol only once."""
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
    return list(sentences.values())
