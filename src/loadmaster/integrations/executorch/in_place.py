"""Finds results that may overwrite an operand: results of element-wise kernels that are the
operand's last reader."""

from __future__ import annotations

from collections.abc import Mapping
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
    own = {id(request.spec): at for at, request in enumerate(requests) if len(request.tensors) == 1}
    pairs = []
    for index, node in enumerate(graph_module.graph.nodes):
        made = _whole(node, own) if _is_element_wise(node) else None
        if made is None:
            continue
        for operand in dict.fromkeys(_whole(each, own) for each in node.args):
            if operand in (None, made):
                continue
            source = requests[operand].spec
            if (
                source.lifetime[1] == index
                and not source.const
                and _form_of(source) == _form_of(requests[made].spec)
            ):
                pairs.append((operand, made))
    return pairs


def _is_element_wise(node: torch.fx.Node) -> bool:
    """Return whether a node's operator, or its functional form, has the tag ``pointwise``."""
    if not isinstance(node.target, torch._ops.OpOverload) or "out" not in node.kwargs:
        return False
    packet = node.target.overloadpacket
    return any(torch.Tag.pointwise in getattr(packet, name).tags for name in packet.overloads())


def _whole(node: Any, own: Mapping[int, int]) -> int | None:
    """Return the index of the request that is all of what a node makes; None if there is none."""
    specs = get_node_tensor_specs(node) if isinstance(node, torch.fx.Node) else []
    return own.get(id(specs[0])) if len(specs) == 1 else None


def _form_of(spec: Any) -> tuple[Any, ...]:
    """Return a tensor's type, shape and order of dimensions."""
    return spec.dtype, tuple(spec.shape), tuple(spec.dim_order), spec.shape_dynamism
