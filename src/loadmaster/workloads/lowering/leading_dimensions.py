"""Gives the results of matrix products the shapes in which they are read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from loadmaster.workloads.graph import Access, Graph, Op, OpClass, Tensor
from loadmaster.workloads.window import Window


def with_leading_dimensions(graph: Graph) -> Graph:
    """Undo the flattening around matrix products: ``x (b, s, k) -> (b s, k) @ w -> (b s, n) -> (b,
    s, n)`` becomes ``x (b, s, k) @ w -> (b, s, n)``, as exporters of torch would have written it.

    So what follows the product element by element is cut like it. A product is left as it is where
    its result is one of the network, is read in several shapes, or where no tensor is its flattened
    operand with the leading dimensions apart. O(operands + tensors).
    """
    shapes: dict[str, set[tuple[int, ...] | None]] = defaultdict(set)
    for output in graph.outputs:
        shapes[graph.tensors[output].storage].add(None)
    for op in graph.ops:
        for read in op.reads if op.op_class not in (OpClass.VIEW, OpClass.SHAPE) else ():
            tensor = graph.tensors[read.tensor]
            shapes[tensor.storage].add(None if read.of_storage else tensor.shape)
    views = {(each.storage, each.shape): each.name for each in graph.tensors.values()}
    tensors, ops = dict(graph.tensors), []
    for op in graph.ops:
        name = op.writes[0].tensor if op.writes else ""
        shape, *others = shapes.get(name, {None})
        if shape is not None and not others and (own := _unflattened(op, shape, tensors, views)):
            op, tensors[name] = own, replace(tensors[name], shape=shape)
        ops.append(op)
    return graph if tensors == graph.tensors else replace(graph, ops=tuple(ops), tensors=tensors)


def _unflattened(
    op: Op,
    shape: tuple[int, ...],
    tensors: Mapping[str, Tensor],
    views: Mapping[tuple[str, tuple[int, ...]], str],
) -> Op | None:
    """The product with a result of a shape, if it is one and that only takes its rows apart."""
    *rows, columns = shape
    flat = (math.prod(rows), columns)
    if (
        len(rows) < 2
        or flat != tensors[op.writes[0].tensor].shape
        or op.steps
        or [nest.loops for nest in op.nests] != [("y", "channels")]
    ):
        return None
    reads, renamed = list[Access](), dict[str, str]()
    for read in op.reads:
        name, windows = read.tensor, list[Window]()
        for at, window in enumerate(read.windows):
            if window.axis > 0:
                windows.append(replace(window, axis=len(rows)))
            elif window.axis < 0:
                windows.append(window)
            else:
                seen = tensors[name]
                apart = views.get((seen.storage, (*seen.shape[:at], *rows, *seen.shape[at + 1 :])))
                if window != Window(0) or read.of_storage or apart is None or name in renamed:
                    return None
                renamed[name] = apart
                windows += map(Window, range(len(rows)))
        reads.append(replace(read, tensor=renamed.get(name, name), windows=tuple(windows)))
    nest = op.nests[0]
    own = replace(
        nest,
        input=renamed.get(nest.input, nest.input),
        weight=renamed.get(nest.weight, nest.weight),
        loops=("y",) * len(rows) + ("channels",),
    )
    axes = [each for axis in op.axes for each in ([len(rows)] if axis else range(len(rows)))]
    return replace(op, reads=tuple(reads), nests=(own,), axes=tuple(axes))
