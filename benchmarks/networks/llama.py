"""Decoders of the shape of Llama 7B (Touvron et al., 2023, arXiv 2302.13971) as ONNX networks:
shapes only, no weights.

Written as exporters write them: projections, rotations, a cache of keys and values to which new
ones are appended, scores, softmax, and the weighted sum of the values.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from loadmaster.workloads.frontends.frontend import LoadOptions
from loadmaster.workloads.frontends.onnx.graph_builder import graph_of, walk_network
from loadmaster.workloads.graph import Graph


class _Decoder:
    def __init__(
        self, batch: int, tokens: int, cached: int, width: int, heads: int, inner: int
    ) -> None:
        self.batch, self.tokens, self.cached = batch, tokens, cached
        self.width, self.heads, self.inner = width, heads, inner
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, kind: int, *shape: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A constant that is named and has a shape, and lies in a file that is not there."""
        tensor = TensorProto(
            name=name, data_type=TensorProto.FLOAT16, dims=shape, data_location=TensorProto.EXTERNAL
        )
        tensor.external_data.add(key="location", value="weights.bin")
        self.weights.append(tensor)
        return name

    def integers(self, name: str, *values: int) -> str:
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def add(self, kind: str, name: str, *operands: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, operands, [name], f"{name}.{kind}", **attributes))
        return name

    def linear(self, name: str, source: str, columns: int, rows: int = 0) -> str:
        return self.add(
            "MatMul", name, source, self.weight(f"{name}.weight", rows or self.width, columns)
        )

    def split(self, name: str, source: str) -> str:
        """Heads before steps."""
        shaped = self.add("Reshape", f"{name}.heads", source, "by_head")
        return self.add("Transpose", f"{name}.turned", shaped, perm=[0, 2, 1, 3])

    def kept(self, name: str, new: str) -> str:
        """The keys or values of all steps, which the network returns."""
        shape = (self.batch, self.heads, self.cached + self.tokens, self.width // self.heads)
        self.outputs.append(
            helper.make_tensor_value_info(f"present.{name}", TensorProto.FLOAT16, shape)
        )
        if not self.cached:
            return self.add("Identity", f"present.{name}", new)
        past = self.input(f"past.{name}", TensorProto.FLOAT16, *shape[:2], self.cached, shape[3])
        return self.add("Concat", f"present.{name}", past, new, axis=2)

    def attention(self, name: str, source: str) -> str:
        query, key = (
            self.add(
                "RotaryEmbedding",
                f"{name}.{part}.rotated",
                self.split(f"{name}.{part}", self.linear(f"{name}.{part}", source, self.width)),
                "cos",
                "sin",
            )
            for part in ("q", "k")
        )
        value = self.split(f"{name}.v", self.linear(f"{name}.v", source, self.width))
        keys, values = self.kept(f"{name}.key", key), self.kept(f"{name}.value", value)
        scores = self.add(
            "MatMul",
            f"{name}.scores",
            query,
            self.add("Transpose", f"{name}.keys", keys, perm=[0, 1, 3, 2]),
        )
        scores = self.add("Mul", f"{name}.scaled", scores, "scale")
        if self.tokens > 1:
            scores = self.add("Add", f"{name}.masked", scores, "mask")
        mixed = self.add(
            "MatMul",
            f"{name}.mixed",
            self.add("Softmax", f"{name}.softmax", scores, axis=-1),
            values,
        )
        joined = self.add(
            "Reshape",
            f"{name}.joined",
            self.add("Transpose", f"{name}.back", mixed, perm=[0, 2, 1, 3]),
            "by_step",
        )
        return self.linear(f"{name}.o", joined, self.width)

    def layer(self, number: int, source: str) -> str:
        name = f"layer{number}"
        before = self.add(
            "RMSNormalization",
            f"{name}.before",
            source,
            self.weight(f"{name}.before.weight", self.width),
        )
        source = self.add("Add", f"{name}.attended", source, self.attention(name, before))
        between = self.add(
            "RMSNormalization",
            f"{name}.between",
            source,
            self.weight(f"{name}.between.weight", self.width),
        )
        gate = self.linear(f"{name}.gate", between, self.inner)
        gate = self.add("Mul", f"{name}.silu", gate, self.add("Sigmoid", f"{name}.sigmoid", gate))
        hidden = self.add(
            "Mul", f"{name}.gated", gate, self.linear(f"{name}.up", between, self.inner)
        )
        return self.add(
            "Add",
            f"{name}.sum",
            source,
            self.linear(f"{name}.down", hidden, self.width, self.inner),
        )


def llama(
    batch: int = 1,
    tokens: int = 512,
    cached: int = 0,
    *,
    layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    inner: int = 11008,
    vocabulary: int = 32000,
    precision: str = "int8",
) -> Graph:
    """A decoder that takes ``tokens`` new tokens after ``cached`` ones, and returns the scores of
    the next and the caches."""
    build = _Decoder(batch, tokens, cached, width, heads, inner)
    ids = build.input("ids", TensorProto.INT64, batch, tokens)
    angles = (batch, tokens, width // heads // 2)
    for name in ("cos", "sin"):
        build.input(name, TensorProto.FLOAT16, *angles)
    if tokens > 1:
        build.weight("mask", 1, 1, tokens, tokens)
    build.weights.append(numpy_helper.from_array(np.float16((width // heads) ** -0.5), "scale"))
    build.integers("by_head", batch, tokens, heads, width // heads)
    build.integers("by_step", batch, tokens, width)
    last = build.add("Gather", "embedded", build.weight("embedding.weight", vocabulary, width), ids)
    for number in range(layers):
        last = build.layer(number, last)
    # Only the last token's scores are of use.
    last = (
        build.add("Gather", "last", last, build.integers("at", tokens - 1), axis=1)
        if tokens > 1
        else last
    )
    last = build.add("RMSNormalization", "normalised", last, build.weight("norm.weight", width))
    build.linear("logits", last, vocabulary)
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT16, (batch, 1, vocabulary)),
        *build.outputs,
    ]
    graph = helper.make_graph(build.nodes, "llama", build.inputs, outputs, build.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    name = f"llama-{'decode' if cached else 'prefill'}-{batch}"
    network = walk_network(model, LoadOptions(precision=precision))
    return graph_of(network, name, "benchmarks/networks/llama.py")
