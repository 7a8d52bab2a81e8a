"""Factories for `loadmaster run` that make small networks."""


def layers(batch):
    """A few wide layers, whose activations outweigh their parameters, and a loss."""
    import torch
    from tests.support.modules import Parts, linears

    loss = Parts(lambda own, x: own.layers(x).square().mean(), layers=linears(64, 4, torch.nn.GELU))
    return loss, (torch.randn(batch, 64),)


def shapeless(batch):
    """A layer whose weights get their shape by the first call."""
    import torch

    return torch.nn.LazyLinear(4), (torch.randn(batch, 64),)


def failing():
    raise ValueError("why")


def exiting():
    raise SystemExit(0)


def without_inputs():
    import torch

    return torch.nn.Linear(3, 3), ()
