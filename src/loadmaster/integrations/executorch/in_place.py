"""Finds results that may overwrite an operand: results of element-wise kernels that are the
operand's last reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from executorch.exir.memory_planning import get_node_tensor_specs

from loadmaster.integrations.executorch.requests import Request


def in_place_pairs(
    graph_module: torch.fx.GraphModule, requests: list[Request]
) -> list[tuple[int, int]]:
    """Return in-place pairs (operand, result) as indices of requests. O(nodes).

    Both tensors have their own storages, and the same type, shape and order of dimensions.
    """
    own = {id(request.spec): at for at, request in enumerate(requests) if not request.inside}
    pairs = []
    for index, node in enumerate(graph_module.graph.nodes):
        if not _is_element_wise(node):
            continue
        results = get_node_tensor_specs(node)
        if len(results) != 1 or id(results[0]) not in own:
            continue
        for operand in dict.fromkeys(_operands(node, own)):
            source = requests[operand].spec
            if (
                source is not results[0]
                and source.lifetime[1] == index
                and not source.const
                and _form_of(source) == _form_of(results[0])
            ):
                pairs.append((operand, own[id(results[0])]))
    return pairs


def _is_element_wise(node: torch.fx.Node) -> bool:
    """Return whether a node's operator, or its functional form, has the tag ``pointwise``."""
    target = node.target
    if (
        node.op != "call_function"
        or not isinstance(target, torch._ops.OpOverload)
        or "out" not in node.kwargs
    ):
        return False
    packet = target.overloadpacket
    return any(torch.Tag.pointwise in getattr(packet, name).tags for name in packet.overloads())


def _operands(node: torch.fx.Node, own: Mapping[int, int]) -> Iterator[int]:
    """Yield the indices of the requests that a node reads whole."""
    for operand in node.args:
        if isinstance(operand, torch.fx.Node):
            specs = get_node_tensor_specs(operand)
            if len(specs) == 1 and id(specs[0]) in own:
                yield own[id(specs[0])]


def _form_of(spec: Any) -> tuple[Any, ...]:
    """Return a tensor's type, shape and order of dimensions."""
    return spec.dtype, tuple(spec.shape), tuple(spec.dim_order), spec.shape_dynamism
