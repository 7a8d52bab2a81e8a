"""Modules for tests, without a class for each."""

import torch
from torch import nn


class Parts(nn.Module):
    """A module with these parts; what it computes is a function of the module and its inputs."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs, **named):
        return self.run(self, *inputs, **named)


def in_two(first, last, *, broken=True):
    """A loss of two modules, between which the graph breaks if it should."""

    def run(own, x):
        x = torch.tanh(own.first(x))
        if broken:
            torch._dynamo.graph_break()
        return own.last(x).square().mean()

    return Parts(run, first=first, last=last)


def linears(width, layers, *between, **options):
    """Linear layers, and after each what ``between`` makes."""
    return nn.Sequential(
        *(
            layer
            for _ in range(layers)
            for layer in (nn.Linear(width, width, **options), *(make() for make in between))
        )
    )
