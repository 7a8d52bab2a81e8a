"""Residual networks with bottlenecks (He et al., 2015); stride in the 3x3 convolution."""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.networks.classification import CLASSES, Example, conv_unit, labelled


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut; the inner ones are ``wider`` times as wide
    as usual."""

    def __init__(self, inputs: int, width: int, stride: int, wider: int = 1) -> None:
        super().__init__()
        outputs, inner = 4 * width, wider * width
        self.body = nn.Sequential(
            conv_unit(inputs, inner, 1),
            conv_unit(inner, inner, 3, stride, 1),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        projected = (
            (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if inputs != outputs
            else ()
        )
        self.shortcut = nn.Sequential(*projected)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return result


def resnet(
    depths: tuple[int, int, int, int], classes: int = CLASSES, wider: int = 1
) -> nn.Sequential:
    """Stem, four stages of so many bottlenecks, and a linear layer."""
    layers: list[nn.Module] = [conv_unit(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for block in range(depth):
            layers.append(Bottleneck(channels, width, 2 if stage and not block else 1, wider))
            channels = 4 * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


def resnet50(batch: int) -> Example:
    return labelled(resnet((3, 4, 6, 3)), batch, 224)


def wide_resnet50(batch: int) -> Example:
    """Inner convolutions twice as wide (Zagoruyko and Komodakis, 2016): 69 million parameters."""
    return labelled(resnet((3, 4, 6, 3), wider=2), batch, 224)


def resnet200(batch: int) -> Example:
    return labelled(resnet((3, 24, 36, 3)), batch, 224)
