"""Inception v4 (Szegedy et al., 2016), figures 3 to 9 of the paper.

AutoTM's figures for its memory (111 GB at batch 1024) leave no room for what batch normalisation
keeps for the backward pass, so that ``inception_v4`` has none: a bias and a ReLU after each
convolution. ``normalised_inception_v4`` is the paper's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.networks.classification import CLASSES, Example, conv_unit, labelled

Kernel = int | tuple[int, int]


def biased_unit(
    inputs: int, outputs: int, kernel: Kernel, stride: int = 1, padding: Kernel = 0
) -> nn.Sequential:
    """Convolution with bias, ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU())


class Branches(nn.Module):
    """Runs every branch on the same input and joins the results along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Builder:
    """Makes the network's parts out of one kind of convolutional unit."""

    def __init__(self, unit: Callable[..., nn.Sequential]) -> None:
        self.unit = unit

    def chain(self, inputs: int, *steps: tuple[int, int, int]) -> nn.Sequential:
        """Convolutions that keep the size: (channels, height, width) of each kernel."""
        units = []
        for channels, height, width in steps:
            units.append(
                self.unit(inputs, channels, (height, width), padding=(height // 2, width // 2))
            )
            inputs = channels
        return nn.Sequential(*units)

    def shrinking(self, before: nn.Sequential, inputs: int, outputs: int) -> nn.Sequential:
        """``before``, then a 3x3 convolution of stride 2 without padding."""
        return nn.Sequential(*before, self.unit(inputs, outputs, 3, 2))

    def averaged(self, inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.AvgPool2d(3, 1, 1, count_include_pad=False), self.unit(inputs, outputs, 1)
        )

    def stem(self) -> nn.Sequential:
        valid = nn.Sequential(*self.chain(160, (64, 1, 1)), self.unit(64, 96, 3))
        long = nn.Sequential(
            *self.chain(160, (64, 1, 1), (64, 7, 1), (64, 1, 7)), self.unit(64, 96, 3)
        )
        return nn.Sequential(
            self.unit(3, 32, 3, 2),
            self.unit(32, 32, 3),
            self.unit(32, 64, 3, padding=1),
            Branches(nn.MaxPool2d(3, 2), self.unit(64, 96, 3, 2)),
            Branches(valid, long),
            Branches(self.unit(192, 192, 3, 2), nn.MaxPool2d(3, 2)),
        )

    def block_a(self) -> Branches:
        n = 384
        return Branches(
            self.averaged(n, 96),
            self.chain(n, (96, 1, 1)),
            self.chain(n, (64, 1, 1), (96, 3, 3)),
            self.chain(n, (64, 1, 1), (96, 3, 3), (96, 3, 3)),
        )

    def block_b(self) -> Branches:
        n = 1024
        deep = self.chain(n, (192, 1, 1), (192, 1, 7), (224, 7, 1), (224, 1, 7), (256, 7, 1))
        return Branches(
            self.averaged(n, 128),
            self.chain(n, (384, 1, 1)),
            self.chain(n, (192, 1, 1), (224, 1, 7), (256, 7, 1)),
            deep,
        )

    def block_c(self) -> Branches:
        n = 1536
        wide = nn.Sequential(
            self.chain(n, (384, 1, 1)),
            Branches(self.chain(384, (256, 1, 3)), self.chain(384, (256, 3, 1))),
        )
        deep = nn.Sequential(
            self.chain(n, (384, 1, 1), (448, 1, 3), (512, 3, 1)),
            Branches(self.chain(512, (256, 3, 1)), self.chain(512, (256, 1, 3))),
        )
        return Branches(self.averaged(n, 256), self.chain(n, (256, 1, 1)), wide, deep)

    def reduction_a(self) -> Branches:
        return Branches(
            nn.MaxPool2d(3, 2),
            self.unit(384, 384, 3, 2),
            self.shrinking(self.chain(384, (192, 1, 1), (224, 3, 3)), 224, 256),
        )

    def reduction_b(self) -> Branches:
        long = self.chain(1024, (256, 1, 1), (256, 1, 7), (320, 7, 1))
        return Branches(
            nn.MaxPool2d(3, 2),
            self.shrinking(self.chain(1024, (192, 1, 1)), 192, 192),
            self.shrinking(long, 320, 320),
        )


def inception(batch: int, unit: Callable[..., nn.Sequential]) -> Example:
    """Stem, 4 blocks A, 7 blocks B, 3 blocks C, at 299 pixels."""
    make = Builder(unit)
    body = [
        make.stem(),
        *(make.block_a() for _ in range(4)),
        make.reduction_a(),
        *(make.block_b() for _ in range(7)),
        make.reduction_b(),
    ]
    body += [make.block_c() for _ in range(3)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1536, CLASSES)]
    return labelled(nn.Sequential(*body, *head), batch, 299)


def inception_v4(batch: int) -> Example:
    return inception(batch, biased_unit)


def normalised_inception_v4(batch: int) -> Example:
    return inception(batch, conv_unit)
