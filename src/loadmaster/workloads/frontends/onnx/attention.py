"""Attention operators: projections where they hold weights, scores, softmax, and the weighted sum of the values."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.workloads.frontends.onnx.contrib import MICROSOFT
from loadmaster.workloads.frontends.onnx.elementwise import SOFTMAX_STEPS
from loadmaster.workloads.frontends.onnx.products import product
from loadmaster.workloads.frontends.onnx.rules import rule
from loadmaster.workloads.frontends.onnx.types import Node, Work
from loadmaster.workloads.graph import LoopNest


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of one attention: ``queries`` and ``keys`` count steps, ``width`` is a head's in the scores, ``value_width`` in the result."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    value_width: int

    def nests(self, query: str, key: str, value: str, output: str) -> tuple[LoopNest, LoopNest]:
        """Scores, then result; the query heads that share a key head are more rows of one product."""
        groups, rows = self.batch * self.kv_heads, self.queries * (self.heads // self.kv_heads)
        scores = LoopNest(k=self.keys, c=self.width, y=rows, groups=groups, input=query, weight=key)
        return scores, LoopNest(k=self.value_width, c=self.keys, y=rows, groups=groups, weight=value, output=output)

    @property
    def elements(self) -> int:
        """Scalar operations of the softmax."""
        return SOFTMAX_STEPS * self.batch * self.heads * self.queries * self.keys


@rule("Attention")
def _attention(node: Node) -> Work:
    """Operands (batch, heads, steps, width), or (batch, steps, heads * width) with the heads in attributes; earlier steps in 4 and 5."""
    past = node.optional(4)
    sizes = [_split_heads(node, index, name) for index, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))]
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


@rule("Attention", domain=MICROSOFT)
def _projected_attention(node: Node) -> Work:
    """One matrix holds the projections to queries, keys and values."""
    batch, steps, inner = node.shape(0)
    weight, count = node.shape(1), node.attrs["num_heads"]
    past = node.optional(4)
    sizes = node.attrs.get("qkv_hidden_sizes") or [weight[1] // 3] * 3
    keys = steps + (past.shape[3] if past else 0)
    heads = Heads(batch, count, count, steps, keys, sizes[0] // count, sizes[2] // count)
    projection = LoopNest(k=weight[1], c=inner, y=batch * steps, input=node.label(0), weight=node.label(1))
    return product(projection, *heads.nests("", "", "", node.result.name), elements=heads.elements)


@rule("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(node: Node) -> Work:
    """Separate operands, or packed ones with five dimensions; key and value may be laid out by head; earlier steps in 6 and 7."""
    query, count = node.shape(0), node.attrs["num_heads"]
    key, past = node.optional(1), node.optional(6)
    width = query[4] if len(query) == 5 else query[2] // count
    keys = query[1] if key is None else key.shape[2] if len(key.shape) == 4 else key.shape[1]
    keys += past.shape[2] if past else 0
    heads = Heads(query[0], count, count, query[1], keys, width, node.result.shape[2] // count)
    return _between(node, heads)


@rule("GroupQueryAttention", domain=MICROSOFT, planning=(5, 6))
def _grouped_attention(node: Node) -> Work:
    """Several query heads share a key head; earlier steps in operands 3 and 4."""
    batch, steps, _ = node.shape(0)
    count, past = node.attrs["num_heads"], node.optional(3)
    width = node.result.shape[2] // count
    keys = steps + (past.shape[2] if past else 0)
    return _between(node, Heads(batch, count, node.attrs["kv_num_heads"], steps, keys, width, width))
