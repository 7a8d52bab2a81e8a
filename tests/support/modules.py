"""Modules for tests, without a class for each."""

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


def linears(width, layers, *between, **options):
    """Linear layers, and after each what ``between`` makes."""
    return nn.Sequential(
        *(
            layer
            for _ in range(layers)
            for layer in (nn.Linear(width, width, **options), *(make() for make in between))
        )
    )
