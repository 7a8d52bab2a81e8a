"""Factories for `loadmaster run` that make small networks."""


def layers(batch):
    """A few wide layers, whose activations outweigh their parameters, and a loss."""
    import torch
    from torch import nn

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                *(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU()))
            )

        def forward(self, x):
            return self.layers(x).square().mean()

    return Loss(), (torch.randn(batch, 64),)
