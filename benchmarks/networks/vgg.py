"""VGG (Simonyan and Zisserman, 2014), and the deep variant that vDNN (MICRO 2016) made of it to
fill memory."""

from __future__ import annotations

from torch import nn

from benchmarks.networks.classification import CLASSES, Example, labelled

WIDTHS = (64, 128, 256, 512, 512)


def vgg(depths: tuple[int, ...]) -> nn.Sequential:
    """Five groups of 3x3 convolutions, ``depths`` in each, with pooling after each group, and three
    linear layers."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in zip(WIDTHS, depths, strict=True):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [
        nn.Flatten(),
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(),
    ]
    return nn.Sequential(*layers, *head, nn.Linear(4096, CLASSES))


def vgg19(batch: int) -> Example:
    """The 19-layer network at 224 pixels."""
    return labelled(vgg((2, 2, 4, 4, 4)), batch, 224)


def vgg416(batch: int) -> Example:
    """VGG 16 with 80 more convolutions in each of the five groups, as vDNN extends it."""
    return labelled(vgg((82, 82, 83, 83, 83)), batch, 224)
