"""U-Net and FSRCNN as ONNX graphs of shapes alone: activations are large and weights few, so that
small memories need stacks."""

from __future__ import annotations

from benchmarks.networks.shape_network import ShapeNetwork
from loadmaster.workloads.graph import Graph


def unet(size: int = 256, width: int = 32, levels: int = 4, classes: int = 21) -> Graph:
    """U-Net (Ronneberger et al., 2015) with padded convolutions, for square images of ``size``
    pixels; a class for every pixel."""
    net = ShapeNetwork()

    def level(source: str, inputs: int, own: int, below: int) -> str:
        skip = net.convolution(net.convolution(source, (inputs, own), 3), (own, own), 3)
        if not below:
            return skip
        deep = level(
            net.op("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2]), own, 2 * own, below - 1
        )
        grown = net.op(
            "ConvTranspose",
            deep,
            net.weight(2 * own, own, 2, 2),
            kernel_shape=[2, 2],
            strides=[2, 2],
        )
        joined = net.op("Concat", skip, grown, axis=1)
        return net.convolution(net.convolution(joined, (2 * own, own), 3), (own, own), 3)

    top = level("image", 3, width, levels)
    return net.graph(
        f"unet_{size}", (1, 3, size, size), net.op("Conv", top, net.weight(classes, width, 1, 1))
    )


def fsrcnn(rows: int = 540, columns: int = 960, scale: int = 2) -> Graph:
    """FSRCNN(56, 12, 4) (Dong et al., 2016), which enlarges the brightness of an image, with a
    transposed convolution at its end."""
    net = ShapeNetwork()
    last = net.convolution(net.convolution("image", (1, 56), 5), (56, 12), 1)
    for _ in range(4):
        last = net.convolution(last, (12, 12), 3)
    last = net.convolution(last, (12, 56), 1)
    window = {
        "kernel_shape": [9, 9],
        "strides": [scale] * 2,
        "pads": [4] * 4,
        "output_padding": [scale - 1] * 2,
    }
    return net.graph(
        f"fsrcnn_{columns}x{rows}",
        (1, 1, rows, columns),
        net.op("ConvTranspose", last, net.weight(56, 1, 9, 9), **window),
    )
