"""Inception v4 (Szegedy et al., 2016), figures 3 to 9 of the paper."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.classification import CLASSES, Example, conv_unit, labelled


class Branches(nn.Module):
    """Runs every branch on the same input and joins the results along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def chain(inputs: int, *steps: tuple[int, int, int]) -> nn.Sequential:
    """Convolutions that keep the size: (channels, height, width) of each kernel."""
    units = []
    for channels, height, width in steps:
        units.append(conv_unit(inputs, channels, (height, width), padding=(height // 2, width // 2)))
        inputs = channels
    return nn.Sequential(*units)


def shrinking(before: nn.Sequential, inputs: int, outputs: int) -> nn.Sequential:
    """``before``, then a 3x3 convolution of stride 2 without padding."""
    return nn.Sequential(*before, conv_unit(inputs, outputs, 3, 2))


def averaged(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), conv_unit(inputs, outputs, 1))


def stem() -> nn.Sequential:
    valid = nn.Sequential(*chain(160, (64, 1, 1)), conv_unit(64, 96, 3))
    long = nn.Sequential(*chain(160, (64, 1, 1), (64, 7, 1), (64, 1, 7)), conv_unit(64, 96, 3))
    return nn.Sequential(
        conv_unit(3, 32, 3, 2),
        conv_unit(32, 32, 3),
        conv_unit(32, 64, 3, padding=1),
        Branches(nn.MaxPool2d(3, 2), conv_unit(64, 96, 3, 2)),
        Branches(valid, long),
        Branches(conv_unit(192, 192, 3, 2), nn.MaxPool2d(3, 2)),
    )


def block_a() -> Branches:
    n = 384
    return Branches(averaged(n, 96), chain(n, (96, 1, 1)), chain(n, (64, 1, 1), (96, 3, 3)), chain(n, (64, 1, 1), (96, 3, 3), (96, 3, 3)))


def block_b() -> Branches:
    n = 1024
    deep = chain(n, (192, 1, 1), (192, 1, 7), (224, 7, 1), (224, 1, 7), (256, 7, 1))
    return Branches(averaged(n, 128), chain(n, (384, 1, 1)), chain(n, (192, 1, 1), (224, 1, 7), (256, 7, 1)), deep)


def block_c() -> Branches:
    n = 1536
    wide = nn.Sequential(chain(n, (384, 1, 1)), Branches(chain(384, (256, 1, 3)), chain(384, (256, 3, 1))))
    deep = nn.Sequential(chain(n, (384, 1, 1), (448, 1, 3), (512, 3, 1)), Branches(chain(512, (256, 3, 1)), chain(512, (256, 1, 3))))
    return Branches(averaged(n, 256), chain(n, (256, 1, 1)), wide, deep)


def reduction_a() -> Branches:
    return Branches(nn.MaxPool2d(3, 2), conv_unit(384, 384, 3, 2), shrinking(chain(384, (192, 1, 1), (224, 3, 3)), 224, 256))


def reduction_b() -> Branches:
    long = chain(1024, (256, 1, 1), (256, 1, 7), (320, 7, 1))
    return Branches(nn.MaxPool2d(3, 2), shrinking(chain(1024, (192, 1, 1)), 192, 192), shrinking(long, 320, 320))


def inception_v4(batch: int) -> Example:
    """Stem, 4 blocks A, 7 blocks B, 3 blocks C, at 299 pixels."""
    body = [stem(), *(block_a() for _ in range(4)), reduction_a(), *(block_b() for _ in range(7)), reduction_b()]
    body += [block_c() for _ in range(3)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1536, CLASSES)]
    return labelled(nn.Sequential(*body, *head), batch, 299)
