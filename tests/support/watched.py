"""Training steps in a process that somebody watches from outside: one step for each line on its
standard input."""

import sys
import warnings

import torch
from tests.support.compiled import with_plan
from tests.support.modules import Parts, linears

from loadmaster.integrations.torch_compile.compare.measurement import return_freed_memory


def residual(own, x):
    """Layers whose optimizer state outweighs all else; the first call changes an attribute, so that
    Dynamo compiles the second anew."""
    if own.kind is None:
        own.kind = "found out in the first step"
    for layer in own.layers:
        x = x + torch.tanh(layer(x))
    return x.square().mean()


def trained(width, layers, share):
    """An optimizer, and what runs its network under a budget."""
    module = Parts(residual, kind=None, layers=linears(width, layers, bias=False))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    return optimizer, with_plan(module, share, optimizer=optimizer)


def main(width, layers, share):
    """Say that imports and the compiler are warm, then that the network is there, then make
    steps."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    return_freed_memory()
    for size, budget, wait in ((64, 1.0, False), (width, share, True)):
        if wait:
            print("warm", flush=True)
            sys.stdin.readline()
        optimizer, call = trained(size, layers, budget)
        x = torch.randn(8, size)
        for _ in sys.stdin if wait else range(5):
            optimizer.zero_grad()
            loss = call(x)
            loss.backward()
            optimizer.step()
            if wait:
                print(loss.item(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
