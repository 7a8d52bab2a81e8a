"""MobileNetV2 (Sandler et al., 2018): expand by 1x1, filter each channel by itself by 3x3, project
by 1x1."""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.networks.classification import CLASSES, Example, labelled

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""How much wider each block is inside, its output channels, how many there are, and the stride of
the first."""


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution without bias, batch normalisation, ReLU up to 6."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6())


class Inverted(nn.Module):
    """A block that is narrow outside and wide inside, with a shortcut where shapes allow."""

    def __init__(self, inputs: int, outputs: int, wider: int, stride: int) -> None:
        super().__init__()
        inner = wider * inputs
        expand = [unit(inputs, inner, 1)] if wider > 1 else []
        project = (nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.body = nn.Sequential(*expand, unit(inner, inner, 3, stride, groups=inner), *project)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.body(x)
        return x + result if self.shortcut else result


def mobilenet_v2(batch: int) -> Example:
    layers: list[nn.Module] = [unit(3, 32, 3, 2)]
    channels = 32
    for wider, outputs, count, stride in STAGES:
        for number in range(count):
            layers.append(Inverted(channels, outputs, wider, 1 if number else stride))
            channels = outputs
    layers += [
        unit(channels, 1280, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, CLASSES),
    ]
    return labelled(nn.Sequential(*layers), batch, 224)
