"""Attention operators: projections where they hold weights, scores, softmax, and the weighted sum
of the values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from loadmaster.workloads.frontends.onnx.rules import (
    MICROSOFT,
    WHOLE,
    Division,
    Result,
    Windows,
    divided,
    rule,
)
from loadmaster.workloads.frontends.onnx.types import Node, Shape, Work, product
from loadmaster.workloads.frontends.operation_counts import SOFTMAX_STEPS
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.window import ALL, Window

DELTA_STEPS = 2
"""Operations per element of a delta rule's value: the difference to what the state holds, and its
rate."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of one attention: ``queries`` and ``keys`` count steps, ``width`` is a head's in the
    scores, ``value_width`` in the result."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    value_width: int

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


def _attention(node: Node) -> Work:
    """Operands (batch, heads, steps, width), or (batch, steps, heads * width) with the heads in
    attributes; earlier steps in 4 and 5."""
    past = node.optional(4)
    sizes = [
        _split_heads(node, index, name)
        for index, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))
    ]
    (batch, heads, queries, width), (_, kv_heads, keys, _), (_, _, _, value_width) = sizes
    keys += past.shape[2] if past else 0
    return _between(node, Heads(batch, heads, kv_heads, queries, keys, width, value_width))


def _split_heads(node: Node, index: int, attribute: str) -> tuple[int, int, int, int]:
    shape = node.shape(index)
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    heads = node.attrs[attribute]
    return shape[0], heads, shape[1], shape[2] // heads


def _between(node: Node, heads: Heads) -> Work:
    """Attention over operands 0, 1 and 2; packed operands leave the later ones out."""
    query = node.label(0)
    key = node.label(1) or query
    value = node.label(2) or key
    return product(*heads.nests(query, key, value, node.result.name), elements=heads.elements)


def _divided(node: Node) -> Division:
    """Heads and queries: a band of queries passes through scores, softmax and the weighted sum
    (FlashAttention, arXiv 2205.14135).

    Query heads that share a key head stay together.
    """
    query, key, value = (node.shape(index) for index in range(3))
    rank = len(node.result.shape)
    if min(len(query), len(key), len(value)) < 3:
        return WHOLE
    heads, kv_heads = (
        (query[1], key[1]) if rank == 4 else (node.attrs["q_num_heads"], node.attrs["kv_num_heads"])
    )
    if heads % kv_heads:
        return WHOLE
    step = heads // kv_heads
    if rank == 4:
        head, kv_head, steps = Window(1), Window(1, 1, step), Window(2)
        operands: dict[int, Windows] = {0: (Window(0), head, steps, ALL)}
        operands |= {i: (Window(0), kv_head, ALL, ALL) for i in (1, 2)}
    else:
        width, kv_width = query[2] // heads, value[2] // kv_heads
        step *= kv_width
        head = Window(2, 1, kv_width)
        kv_head = Window(2, 1, step)
        steps = Window(1)
        operands = {
            0: (Window(0), steps, replace(head, unit=width)),
            1: (Window(0), ALL, replace(kv_head, unit=width)),
            2: (Window(0), ALL, replace(kv_head, unit=kv_width)),
        }
    operands |= {i: (Window(0), kv_head, ALL, ALL) for i in (4, 5) if node.optional(i)}
    if mask := node.shape(3) if node.optional(3) else ():
        order = (Window(0), head, steps, ALL)[4 - len(mask) :]
        operands[3] = tuple(
            window if extent > 1 else ALL for window, extent in zip(order, mask, strict=True)
        )
    loops = ("groups", "groups", "y", "") if rank == 4 else ("groups", "y", "groups")
    return divided(operands, loops, {1 if rank == 4 else 2: step})


def _linear_attention(node: Node) -> Work:
    """A recurrence over the steps: what the state holds for the key is looked up, the state is
    updated, and the query reads it.

    The look-up belongs to the delta rules, the decay of the whole state to the gated ones. Chunks
    of several steps do more at once.
    """
    batch, steps, _ = node.shape(0)
    queries, states = node.attrs["q_num_heads"], node.attrs["kv_num_heads"]
    key, value = node.shape(1)[2] // states, node.shape(2)[2] // states
    how = node.attrs.get("update_rule", "gated_delta")
    groups = batch * states
    lookup = LoopNest(k=value, c=key, groups=groups, repeats=steps)
    update = LoopNest(
        k=value, c=1, y=key, groups=groups, repeats=steps, input=node.label(1), weight=node.label(2)
    )
    rows = max(1, queries // states)
    reading = LoopNest(
        k=value,
        c=key,
        y=rows,
        groups=groups,
        repeats=steps,
        input=node.label(0),
        output=node.result.name,
    )
    decay = groups * steps * key * value if "gated" in how else 0
    delta = DELTA_STEPS * groups * steps * value if "delta" in how else 0
    return product(*([lookup] if "delta" in how else []), update, reading, elements=decay + delta)


def _projected(node: Node, past: int) -> Work:
    """Attention over operand 0 after its projections to queries, keys and values, by one matrix;
    earlier steps are in operand ``past``."""
    batch, steps, inner = node.shape(0)
    columns, count = node.shape(1)[1], node.attrs["num_heads"]
    earlier = node.optional(past)
    sizes = node.attrs.get("qkv_hidden_sizes") or [columns // 3] * 3
    keys = steps + (earlier.shape[3] if earlier else 0)
    heads = Heads(batch, count, count, steps, keys, sizes[0] // count, sizes[2] // count)
    projection = LoopNest(
        k=columns, c=inner, y=batch * steps, input=node.label(0), weight=node.label(1)
    )
    nests = heads.nests("", "", "", node.result.name)
    return product(projection, *nests, elements=heads.elements)


def _projected_shapes(node: Node, dtype: int, past: int) -> list[Result]:
    """The result, and all keys and values if earlier steps are in ``past``."""
    batch, steps, _ = node.shape(0)
    sizes = node.attrs.get("qkv_hidden_sizes")
    heads = node.attrs["num_heads"]
    earlier = node.optional(past)
    width = sizes[2] if sizes else node.shape(1)[1] // 3
    keys = steps + (earlier.shape[3] if earlier else 0)
    kind = node.operand(dtype).dtype
    return [(kind, (batch, steps, width)), (kind, (2, batch, heads, keys, width // heads))]


def _keys(node: Node) -> int:
    """Steps of the keys; they may be packed with the queries, or laid out by head, and earlier ones
    are in operand 6."""
    key, earlier = node.optional(1), node.optional(6)
    own = node.shape(0)[1] if key is None else key.shape[2 if len(key.shape) == 4 else 1]
    return own + (earlier.shape[2] if earlier else 0)


def _multi_head(node: Node) -> Work:
    """Separate operands, or packed ones with five dimensions."""
    query, count = node.shape(0), node.attrs["num_heads"]
    width = query[4] if len(query) == 5 else query[2] // count
    heads = Heads(
        query[0], count, count, query[1], _keys(node), width, node.result.shape[2] // count
    )
    return _between(node, heads)


def _multi_head_shapes(node: Node) -> list[Result]:
    """Result, keys and values of all steps."""
    query = node.shape(0)
    value = node.optional(2)
    heads = node.attrs["num_heads"]
    if len(query) == 5:
        width = query[2] * query[4]
    elif value is None:
        width = query[2]
    else:
        width = value.shape[-1] if len(value.shape) == 3 else value.shape[1] * value.shape[3]
    inner = query[4] if len(query) == 5 else query[2] // heads
    dtype, lead = node.operand(0).dtype, (query[0], heads, _keys(node))
    return [
        (dtype, (*query[:2], width)),
        (dtype, (*lead, inner)),
        (dtype, (*lead, width // heads)),
    ]


def _grouped_cache(node: Node) -> Shape:
    """Shape of the keys of all steps, whose heads several query heads share; earlier ones are in
    operand 3."""
    batch, steps, width = node.shape(0)
    heads = node.attrs["num_heads"]
    kv_heads = node.attrs["kv_num_heads"]
    past = node.optional(3)
    head = width // (heads if node.optional(1) else heads + 2 * kv_heads)
    return batch, kv_heads, steps + (past.shape[2] if past else 0), head


def _grouped(node: Node) -> Work:
    batch, kv_heads, keys, width = _grouped_cache(node)
    heads = node.attrs["num_heads"]
    return _between(node, Heads(batch, heads, kv_heads, node.shape(0)[1], keys, width, width))


def _grouped_shapes(node: Node) -> list[Result]:
    dtype, cache = node.operand(0).dtype, _grouped_cache(node)
    result = (*node.shape(0)[:2], node.attrs["num_heads"] * cache[3])
    return [(dtype, result), (dtype, cache), (dtype, cache)]


rule("Attention", _attention, _divided)
# Operators of its bodies are counted as those of other bodies are.
rule("FlexAttention", _attention, domain="ai.onnx.preview")
rule("LinearAttention", _linear_attention)
for _kind, _dtype, _past in (("Attention", 0, 4), ("QAttention", 2, 8)):
    rule(
        _kind,
        partial(_projected, past=_past),
        shapes=partial(_projected_shapes, dtype=_dtype, past=_past),
        domain=MICROSOFT,
    )
rule("MultiHeadAttention", _multi_head, shapes=_multi_head_shapes, domain=MICROSOFT)
rule("GroupQueryAttention", _grouped, shapes=_grouped_shapes, planning=(5, 6), domain=MICROSOFT)
