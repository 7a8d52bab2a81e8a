"""Training steps in a process that somebody watches from outside: one step for each line on its
standard input."""

import sys
import warnings

import torch
from torch import nn

from loadmaster.integrations.torch_compile.backend import loadmaster
from loadmaster.integrations.torch_compile.compare.measurement import return_freed_memory


class Network(nn.Module):
    """Layers whose optimizer state outweighs all else; the first call changes an attribute, so that
    Dynamo compiles the second anew."""

    def __init__(self, width, layers):
        super().__init__()
        self.kind = None
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x):
        if self.kind is None:
            self.kind = "found out in the first step"
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x.square().mean()


def trained(width, layers, share):
    """A network with its optimizer, and what runs it under a budget."""
    module = Network(width, layers)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    return (
        module,
        optimizer,
        torch.compile(
            module, backend=loadmaster, options={"fast_memory": share, "optimizer": optimizer}
        ),
    )


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
        _, optimizer, call = trained(size, layers, budget)
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
