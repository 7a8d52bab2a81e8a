"""DenseNet (Huang et al., 2016): every layer appends its results to those of all layers before
it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.classification import CLASSES, Example, labelled


def normalised(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU()]


class DenseLayer(nn.Module):
    """Normalise, 1x1 to four times the growth, normalise, 3x3 to the growth; the result is appended
    to the input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.body = nn.Sequential(
            *normalised(inputs),
            nn.Conv2d(inputs, inner, 1, bias=False),
            *normalised(inner),
            nn.Conv2d(inner, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet(depths: tuple[int, ...], growth: int = 32) -> nn.Sequential:
    """Stem, blocks with halving transitions between them, and a linear layer."""
    channels = 2 * growth
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 7, 2, 3, bias=False),
        *normalised(channels),
        nn.MaxPool2d(3, 2, 1),
    ]
    for number, depth in enumerate(depths):
        layers += [DenseLayer(channels + layer * growth, growth) for layer in range(depth)]
        channels += depth * growth
        layers += normalised(channels)
        if number < len(depths) - 1:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def densenet264(batch: int) -> Example:
    return labelled(densenet((6, 12, 64, 48)), batch, 224)
