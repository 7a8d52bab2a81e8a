"""How attention and the rotation of positions divide."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.workloads.frontends.onnx.division.table import (
    WHOLE,
    Division,
    Windows,
    division_rule,
)
from loadmaster.workloads.frontends.onnx.types import Node
from loadmaster.workloads.window import ALL, Window, identity


@division_rule("RotaryEmbedding")
def _rotation(node: Node) -> Division:
    """Pairs of a head's elements are turned together, so that heads stay whole. Angles are looked
    up where positions are given."""
    rank, shape = len(node.result.shape), node.shape(0)
    if node.domain == "com.microsoft" or node.optional(3) is not None:
        return Division(tuple(range(rank - 1)), {0: (*identity(rank - 1), ALL)})
    steps = Window(rank - 2)
    heads = node.attrs.get("num_heads", 0)
    angles = {i: (Window(0), steps, ALL) for i in (1, 2)}
    if rank == 4:
        return Division((0, 1, 2), {0: (*identity(3), ALL)} | angles)
    if not heads or shape[-1] % heads:
        return Division((0, 1), {0: (*identity(2), ALL)} | angles)
    each = shape[-1] // heads
    return Division(
        (0, 1, 2), {0: (*identity(2), Window(2, 1, each, unit=each))} | angles, steps={2: each}
    )


@division_rule("Attention")
def _attention(node: Node) -> Division:
    """Heads and queries: a band of queries passes through scores, softmax and the weighted sum
    (FlashAttention, arXiv 2205.14135).

    Query heads that share a key head stay together.
    """
    if node.domain == "com.microsoft" or min(len(node.shape(i)) for i in (0, 1, 2)) < 3:
        return WHOLE
    query, key, value, rank = node.shape(0), node.shape(1), node.shape(2), len(node.result.shape)
    heads, kv_heads = (
        (query[1], key[1]) if rank == 4 else (node.attrs["q_num_heads"], node.attrs["kv_num_heads"])
    )
    if heads % kv_heads:
        return WHOLE
    share = heads // kv_heads
    if rank == 4:
        head, kv_head, step = Window(1), Window(1, 1, share), share
        operands: dict[int, Windows] = {0: (Window(0), head, Window(2), ALL)}
        operands |= {i: (Window(0), kv_head, ALL, ALL) for i in (1, 2, 4, 5) if node.optional(i)}
    else:
        width, kv_width = query[2] // heads, value[2] // kv_heads
        step = share * kv_width
        head, kv_head = Window(2, 1, kv_width), Window(2, 1, step)
        operands = {0: (Window(0), Window(1), replace(head, unit=width))}
        operands |= {
            1: (Window(0), ALL, replace(kv_head, unit=width)),
            2: (Window(0), ALL, replace(kv_head, unit=kv_width)),
        }
        operands |= {i: (Window(0), kv_head, ALL, ALL) for i in (4, 5) if node.optional(i)}
    axes = (0, 1, 2)
    mask = node.shape(3) if node.optional(3) else ()
    if mask:
        order = (Window(0), head, Window(2) if rank == 4 else Window(1), ALL)[4 - len(mask) :]
        operands[3] = tuple(
            window if extent > 1 else ALL for window, extent in zip(order, mask, strict=True)
        )
    loops = ("groups", "groups", "y", "") if rank == 4 else ("groups", "y", "groups")
    return Division(axes, operands, loops, {1 if rank == 4 else 2: step})
