"""U-Net (Ronneberger et al., 2015) with padded convolutions and batch normalisation: long-lived
skip connections."""

from __future__ import annotations

import torch
from torch import Tensor, nn, rand, randint

from benchmarks.networks.classification import Classifier, Example, conv_unit


def double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        conv_unit(inputs, outputs, 3, padding=1), conv_unit(outputs, outputs, 3, padding=1)
    )


class Level(nn.Module):
    """Two convolutions, everything below at half the size, and two convolutions over both."""

    def __init__(self, inputs: int, width: int, levels: int) -> None:
        super().__init__()
        self.down = double(inputs, width)
        self.below = Level(width, 2 * width, levels - 1) if levels > 1 else double(width, 2 * width)
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up = double(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        below = self.grow(self.below(self.pool(skip)))
        result: Tensor = self.up(torch.cat([skip, below], 1))
        return result


def unet(batch: int, size: int = 256, width: int = 64, classes: int = 21) -> Example:
    """Four levels; a class for every pixel."""
    network = nn.Sequential(Level(3, width, 4), nn.Conv2d(width, classes, 1))
    return Classifier(network), (rand(batch, 3, size, size), randint(classes, (batch, size, size)))
