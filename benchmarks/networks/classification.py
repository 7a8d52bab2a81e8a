"""What image classifiers share: a loss on top, labelled images below, and the blocks that most of
them are made of."""

from __future__ import annotations

from torch import Tensor, nn, rand, randint

CLASSES = 1000

Example = tuple[nn.Module, tuple[Tensor, Tensor]]


class Classifier(nn.Module):
    """``network`` maps images to scores; the result is the mean cross-entropy against labels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.loss(self.network(images), labels)
        return loss


def labelled(network: nn.Module, batch: int, size: int, classes: int = CLASSES) -> Example:
    """A classifier with square images of ``size`` pixels and three channels, and their labels."""
    return Classifier(network), (rand(batch, 3, size, size), randint(classes, (batch,)))


def conv_unit(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> nn.Sequential:
    """Convolution without bias, batch normalisation, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )
