"""Shapes of ONNX Runtime's operators on blocks of channels: those that no standard operator shares.

A file optimised for one processor holds tensors of the standard shapes, with their channels padded
to whole blocks.
"""

from __future__ import annotations

from loadmaster.workloads.frontends.onnx.contrib import CHANNEL_BLOCK, NCHWC, Result, set_shapes
from loadmaster.workloads.frontends.onnx.types import Node


def _into_blocks(node: Node) -> list[Result]:
    """Whole blocks of channels."""
    shape = node.shape(0)
    channels, spatial = (
        (shape[-1], shape[1:-1]) if node.attrs.get("channels_last") else (shape[1], shape[2:])
    )
    return [
        (node.operand(0).dtype, (shape[0], -(-channels // CHANNEL_BLOCK) * CHANNEL_BLOCK, *spatial))
    ]


def _out_of_blocks(node: Node) -> list[Result]:
    """An attribute says how many channels are real."""
    batch, _, *spatial = node.shape(0)
    channels = node.attrs["channels"]
    shape = (
        (batch, *spatial, channels)
        if node.attrs.get("channels_last")
        else (batch, channels, *spatial)
    )
    return [(node.operand(0).dtype, shape)]


def _enlarged(node: Node) -> list[Result]:
    scales = node.attrs["scales"]
    return [
        (
            node.operand(0).dtype,
            tuple(size * scale for size, scale in zip(node.shape(0), scales, strict=True)),
        )
    ]


set_shapes(_into_blocks, "ReorderInput", domain=NCHWC)
set_shapes(_out_of_blocks, "ReorderOutput", domain=NCHWC)
set_shapes(_enlarged, "Upsample", domain=NCHWC)
