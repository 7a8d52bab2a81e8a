"""Attention operators: projections where they hold weights, scores, softmax, and the weighted sum
of the values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from loadmaster.workloads.frontends.onnx.rules import (
    SOFTMAX_STEPS,
    WHOLE,
    Division,
    Node,
    Result,
    Work,
    divided,
    product,
    rule,
    runtime_rule,
)
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.window import ALL, Window, Windows

DELTA_STEPS = 2
"""Operations per element of a delta rule's value: the difference to what the state holds, and its
rate."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of one attention: ``queries`` and ``keys`` count steps, ``width`` is a head's in the
    scores, ``value_width`` in the result. A cache of ``room`` steps keeps its size where keys and
    values are written into it."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    room: int = 0

    def nests(self, query: str, key: str, value: str, output: str) -> tuple[LoopNest, LoopNest]:
        """Loop nests of the scores, then of the result; query heads that share a key head are more
        rows of one product."""
        groups = self.batch * self.kv_heads
        rows = self.queries * (self.heads // self.kv_heads)
        scores = LoopNest(k=self.keys, c=self.width, y=rows, groups=groups, input=query, weight=key)
        return scores, LoopNest(
            k=self.value_width, c=self.keys, y=rows, groups=groups, weight=value, output=output
        )

    @property
    def elements(self) -> int:
        """Number of scalar operations of the softmax."""
        return SOFTMAX_STEPS * self.batch * self.heads * self.queries * self.keys


HeadsRule = Callable[[Node], Heads]


def _attention_heads(node: Node) -> Heads:
    """Return the sizes of Attention, whose operands are (batch, heads, steps, width), or (batch,
    steps, heads * width) with the numbers of heads in attributes. Operands 4 and 5 hold earlier
    steps."""
    past = node.optional(4)
    sizes = [
        _split_heads(node, index, name)
        for index, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))
    ]
    (batch, heads, queries, width), (_, kv_heads, keys, _), (_, _, _, value_width) = sizes
    keys += past.shape[2] if past else 0
    return Heads(batch, heads, kv_heads, queries, keys, width, value_width)


def _split_heads(node: Node, index: int, attribute: str) -> tuple[int, int, int, int]:
    """Return batch, heads, steps and width of an operand of three or four dimensions."""
    shape = node.shape(index)
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    heads = node.attrs[attribute]
    return shape[0], heads, shape[1], shape[2] // heads


def _work(node: Node, of: HeadsRule = _attention_heads) -> Work:
    """Return the work of attention over operands 0, 1 and 2; packed operands have no separate keys
    or values: keys default to the query, values to the keys."""
    heads, query = of(node), node.label(0)
    key = node.label(1) or query
    value = node.label(2) or key
    return product(*heads.nests(query, key, value, node.result.name), elements=heads.elements)


def _shapes(node: Node, of: HeadsRule, dtype: int = 0) -> list[Result]:
    """Return the shapes of the result, and of the keys and values of all steps, also earlier ones,
    with the type of operand ``dtype``."""
    heads, kind = of(node), node.operand(dtype).dtype
    steps = heads.batch, heads.kv_heads, max(heads.keys, heads.room)
    result = heads.batch, heads.queries, heads.heads * heads.value_width
    return [(kind, shape) for shape in (result, (*steps, heads.width), (*steps, heads.value_width))]


def _division(node: Node) -> Division:
    """Return how attention divides: by heads and queries. A band of queries passes through scores,
    softmax and the weighted sum (FlashAttention, arXiv 2205.14135).

    Query heads that share a key head stay together.
    """
    rank = node.rank
    if min(len(node.shape(index)) for index in range(3)) < 3:
        return WHOLE
    sizes = _attention_heads(node)
    step, rest = divmod(sizes.heads, sizes.kv_heads)
    if rest:
        return WHOLE
    # The dimension of the heads, its elements of each head, and the dimension of the queries.
    axis, each, row = (1, 1, 2) if rank == 4 else (2, sizes.value_width, 1)
    step *= each
    head, kv_head, steps = Window(axis, 1, each), Window(axis, 1, step), Window(row)

    def operand(heads: Window, rows: Window, width: int) -> Windows:
        """Return the windows of an operand, of which a head has so many elements."""
        if rank == 4:
            return Window(0), heads, rows, ALL
        return Window(0), rows, replace(heads, unit=width)

    operands = {
        0: operand(head, steps, sizes.width),
        1: operand(kv_head, ALL, sizes.width),
        2: operand(kv_head, ALL, sizes.value_width),
    }
    operands |= {i: (Window(0), kv_head, ALL, ALL) for i in (4, 5) if node.optional(i)}
    if mask := node.shape(3) if node.optional(3) else ():
        order = (Window(0), head, steps, ALL)[4 - len(mask) :]
        operands[3] = tuple(
            window if extent > 1 else ALL for window, extent in zip(order, mask, strict=True)
        )
    loops = ("groups", "groups", "y", "") if rank == 4 else ("groups", "y", "groups")
    return divided(operands, loops, steps={axis: step})


def _linear_attention(node: Node) -> Work:
    """Return the work of a recurrence over the steps: the state is read at the key, updated, and
    read by the query.

    Only delta rules read the state at the key; only gated rules decay the whole state.
    Implementations in chunks of several steps do more operations.
    """
    batch, steps, _ = node.shape(0)
    queries, states = node.attrs["q_num_heads"], node.attrs["kv_num_heads"]
    key, value = node.shape(1)[2] // states, node.shape(2)[2] // states
    how = node.attrs.get("update_rule", "gated_delta")
    groups = batch * states
    lookup = LoopNest(k=value, c=key, groups=groups, repeats=steps)
    update = replace(lookup, c=1, y=key, input=node.label(1), weight=node.label(2))
    rows = max(1, queries // states)
    reading = replace(lookup, y=rows, input=node.label(0), output=node.result.name)
    decay = groups * steps * key * value if "gated" in how else 0
    delta = DELTA_STEPS * groups * steps * value if "delta" in how else 0
    return product(*([lookup] if "delta" in how else []), update, reading, elements=decay + delta)


def _packed_heads(node: Node) -> Heads:
    """Return the sizes of attention over operand 0, which one matrix projects to queries, keys and
    values; operand 4, of QAttention 8, holds earlier steps."""
    batch, steps, _ = node.shape(0)
    count, earlier = node.attrs["num_heads"], node.optional(8 if node.kind == "QAttention" else 4)
    sizes = node.attrs.get("qkv_hidden_sizes") or [node.shape(1)[1] // 3] * 3
    keys = steps + (earlier.shape[3] if earlier else 0)
    return Heads(batch, count, count, steps, keys, sizes[0] // count, sizes[2] // count)


def _projected_work(node: Node) -> Work:
    """Return the work of the projection of query, keys and values, and of the attention after
    it."""
    batch, steps, inner = node.shape(0)
    heads = _packed_heads(node)
    projection = LoopNest(
        k=node.shape(1)[1], c=inner, y=batch * steps, input=node.label(0), weight=node.label(1)
    )
    nests = heads.nests("", "", "", node.result.name)
    return product(projection, *nests, elements=heads.elements)


def _projected_shapes(node: Node) -> list[Result]:
    """Return the shapes of the result, and of all keys and values in one tensor; QAttention has the
    type of its scales."""
    result, _, (kind, steps) = _shapes(node, _packed_heads, 2 if node.kind == "QAttention" else 0)
    return [result, (kind, (2, *steps))]


def _multi_head_sizes(node: Node) -> Heads:
    """Return the sizes of MultiHeadAttention, with separate operands or packed ones of five
    dimensions. Keys and values may be laid out by head, and operand 6 holds earlier steps; operand
    8 says how many, if that is a cache with room for more."""
    query, count = node.shape(0), node.attrs["num_heads"]
    key, value, earlier = map(node.optional, (1, 2, 6))
    width = query[4] if len(query) == 5 else query[2] // count
    value_width = width
    if value is not None:
        value_width = value.shape[-1] // (count if len(value.shape) == 3 else 1)
    keys = query[1] if key is None else key.shape[2 if len(key.shape) == 4 else 1]
    room = earlier.shape[2] if earlier else 0
    if earlier and node.optional(8):
        there = node.integers("past_sequence_length", 8) or [room]
        keys = min(keys + there[0], room)
    else:
        keys += room
    return Heads(query[0], count, count, query[1], keys, width, value_width, room)


def _grouped_query_sizes(node: Node) -> Heads:
    """Return the sizes of GroupQueryAttention, in which several query heads share a key head.
    Operand 3 holds earlier steps, and operand 6 says how many there are with the new ones: if it is
    not known, operand 3 is taken to be full."""
    batch, steps, width = node.shape(0)
    heads, kv_heads = node.attrs["num_heads"], node.attrs["kv_num_heads"]
    past, total = node.optional(3), node.integers("total_sequence_length", 6)
    room = past.shape[2] if past else 0
    head = width // (heads if node.optional(1) else heads + 2 * kv_heads)
    keys = min(*total, steps + room) if total else steps + room
    return Heads(batch, heads, kv_heads, steps, keys, head, head, room)


rule("Attention", _work, _division)
# Operators of its bodies are counted as those of other bodies are.
rule("FlexAttention", _work, domain="ai.onnx.preview")
rule("LinearAttention", _linear_attention)
runtime_rule("Attention QAttention", _projected_work, shapes=_projected_shapes)
for _kind, _heads, _planning in (
    ("MultiHeadAttention", _multi_head_sizes, (8,)),
    ("GroupQueryAttention", _grouped_query_sizes, (5, 6)),
):
    runtime_rule(
        _kind,
        partial(_work, of=_heads),
        shapes=partial(_shapes, of=_heads),
        planning=_planning,
    )
