"""Attention operators: projections where they hold weights, scores, softmax, and the weighted sum
of the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.workloads.frontends.onnx.contrib import MICROSOFT
from loadmaster.workloads.frontends.onnx.products import product
from loadmaster.workloads.frontends.onnx.rules import rule
from loadmaster.workloads.frontends.onnx.types import Node, Work
from loadmaster.workloads.frontends.operation_counts import SOFTMAX_STEPS
from loadmaster.workloads.graph import LoopNest

PREVIEW = "ai.onnx.preview"

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
        groups, rows = self.batch * self.kv_heads, self.queries * (self.heads // self.kv_heads)
        scores = LoopNest(k=self.keys, c=self.width, y=rows, groups=groups, input=query, weight=key)
        return scores, LoopNest(
            k=self.value_width, c=self.keys, y=rows, groups=groups, weight=value, output=output
        )

    @property
    def elements(self) -> int:
        """Number of scalar operations of the softmax."""
        return SOFTMAX_STEPS * self.batch * self.heads * self.queries * self.keys


@rule("Attention")
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
    shape = Heads(batch, heads, kv_heads, queries, keys, width, value_width)
    return _between(node, shape)


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


@rule("FlexAttention", domain=PREVIEW)
def _flexible_attention(node: Node) -> Work:
    """Work like that of `Attention`; operators of its bodies are counted as those of other bodies
    are."""
    (batch, heads, queries, width), (_, kv_heads, keys, _), (_, _, _, value_width) = (
        node.shape(index) for index in range(3)
    )
    return _between(node, Heads(batch, heads, kv_heads, queries, keys, width, value_width))


@rule("LinearAttention")
@rule("LinearAttention", domain=MICROSOFT)
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


@rule("Attention", "DecoderMaskedSelfAttention", domain=MICROSOFT)
def _projected_attention(node: Node) -> Work:
    return projected(node, 1, past=4)


def projected(
    node: Node,
    weight: int,
    past: int,
    projections: Sequence[LoopNest] | None = None,
    widths: Sequence[int] | None = None,
) -> Work:
    """Attention over operand 0 with its projections to queries, keys and values: one matrix,
    operand ``weight``, unless given.

    ``widths`` are those of queries, keys and values over all heads; earlier steps are in operand
    ``past``.
    """
    batch, steps, inner = node.shape(0)
    columns, count = node.shape(weight)[1], node.attrs["num_heads"]
    earlier = node.optional(past)
    sizes = widths or node.attrs.get("qkv_hidden_sizes") or [columns // 3] * 3
    keys = steps + (earlier.shape[3] if earlier else 0)
    heads = Heads(batch, count, count, steps, keys, sizes[0] // count, sizes[2] // count)
    one = LoopNest(
        k=columns, c=inner, y=batch * steps, input=node.label(0), weight=node.label(weight)
    )
    return product(
        *(projections or [one]), *heads.nests("", "", "", node.result.name), elements=heads.elements
    )


@rule("LongformerAttention", domain=MICROSOFT)
def _local_attention(node: Node) -> Work:
    return _windowed(node, 1, 4)


@rule("QOrderedLongformerAttention", domain=MICROSOFT)
def _quantised_local_attention(node: Node) -> Work:
    return _windowed(node, 2, 8)


def _windowed(node: Node, weight: int, global_weight: int) -> Work:
    """Each step attends to a window on both sides; how many attend to all is known only at run
    time, and left out."""
    batch, steps, inner = node.shape(0)
    count, seen = node.attrs["num_heads"], min(steps, 2 * node.attrs["window"] + 1)
    width = inner // count
    projections = [
        LoopNest(
            k=node.shape(at)[1],
            c=inner,
            y=batch * steps,
            input=node.label(0),
            weight=node.label(at),
        )
        for at in (weight, global_weight)
    ]
    heads = Heads(batch, count, count, steps, seen, width, width)
    return product(
        *projections, *heads.nests("", "", "", node.result.name), elements=heads.elements
    )


@rule("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(node: Node) -> Work:
    return _between_heads(node, past=6)


@rule("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def _decoding_attention(node: Node) -> Work:
    return _between_heads(node, past=5)


def _between_heads(node: Node, past: int) -> Work:
    """Separate operands, or packed ones with five dimensions; key and value may be laid out by
    head; earlier keys in ``past``."""
    query, count = node.shape(0), node.attrs["num_heads"]
    key, earlier = node.optional(1), node.optional(past)
    width = query[4] if len(query) == 5 else query[2] // count
    keys = query[1] if key is None else key.shape[2] if len(key.shape) == 4 else key.shape[1]
    keys += earlier.shape[2] if earlier else 0
    heads = Heads(query[0], count, count, query[1], keys, width, node.result.shape[2] // count)
    return _between(node, heads)


@rule("GroupQueryAttention", domain=MICROSOFT, planning=(5, 6))
def _grouped_attention(node: Node) -> Work:
    """Several query heads share a key head; earlier steps in operands 3 and 4."""
    batch, steps, _ = node.shape(0)
    count, past = node.attrs["num_heads"], node.optional(3)
    width = node.result.shape[2] // count
    keys = steps + (past.shape[2] if past else 0)
    return _between(
        node, Heads(batch, count, node.attrs["kv_num_heads"], steps, keys, width, width)
    )
