"""Factories for `loadmaster run` that make small networks."""


def layers(batch: int):
    """A few wide layers, whose activations outweigh their parameters."""
    import torch
    from torch import nn

    module = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
    return module, (torch.randn(batch, 64),)
