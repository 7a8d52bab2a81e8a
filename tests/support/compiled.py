"""Training with and without a plan, and whether both agree bit for bit."""

import torch
from tests.support.modules import linears

from loadmaster import _native
from loadmaster.integrations.torch_compile import cpu_memory
from loadmaster.integrations.torch_compile.backend import loadmaster
from loadmaster.integrations.torch_compile.compare.rivals import unmoved_backend


def with_plan(module, memory=None, dynamic=None, **options):
    """A module that runs plans, under a budget if one is given."""
    given = options if memory is None else {"fast_memory": memory, **options}
    return torch.compile(module, backend=loadmaster, options=given, dynamic=dynamic)


def without_plan(module, dynamic=None):
    """A module that runs the same graphs as PyTorch does."""
    return torch.compile(module, backend=unmoved_backend(), dynamic=dynamic)


def fit(optimizer, call, *inputs, steps=1):
    """Make steps of training and return the last loss: a result's mean square, if it is none."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss = _backward(call, *inputs)
        optimizer.step()
    return loss


def gradients(call, module, x, steps=1):
    """Those of the parameters after the last of some steps, by the same loss."""
    for _ in range(steps):
        module.zero_grad()
        _backward(call, x)
    return grads(module)


def _backward(call, *inputs):
    loss = call(*inputs)
    loss = loss.square().mean() if loss.dim() else loss
    loss.backward()
    return loss


def clones(tensors):
    """What tensors are now."""
    return [tensor.detach().clone() for tensor in tensors]


def grads(module):
    """The gradients that parameters have now."""
    return clones(p.grad for p in module.parameters() if p.grad is not None)


def same(one, other):
    """Equal in type, shape and every value; where one is not a number, the other is not either."""
    one, other = list(one), list(other)
    return len(one) == len(other) and all(map(_same_values, one, other))


def _same_values(one, other):
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def most_allocated(call):
    """Most bytes that PyTorch has allocated at once while a call runs; its result is kept."""
    cpu_memory.install_allocator()
    _native.start_recording()
    kept = call()
    seen = _native.stop_recording()
    del kept
    live = (
        sum(size for _, size, freed in seen[: i + 1] if freed < 0 or freed > i)
        for i in range(len(seen))
    )
    return max(live, default=0)


def state_of(module, optimizer):
    """An optimizer's state, parameter by parameter."""
    return [
        value.clone()
        for parameter in module.parameters()
        for _, value in sorted(optimizer.state[parameter].items())
        if torch.is_tensor(value)
    ]


def stack(width, layers, seed=0):
    """Linear layers and what is between them."""
    torch.manual_seed(seed)
    return linears(width, layers, torch.nn.Tanh)


class Tied(torch.nn.Module):
    """A residual network whose last layer is its first one's transpose; most of it is parameters,
    and it returns a loss."""

    def __init__(self, layers=3, *, classes=256, width=128, inner=384):
        super().__init__()
        self.tokens = torch.nn.Embedding(classes, width)
        self.wide = torch.nn.ModuleList(
            torch.nn.Linear(width, inner, bias=number > 0) for number in range(layers)
        )
        self.narrow = torch.nn.ModuleList(torch.nn.Linear(inner, width) for _ in range(layers))

    def forward(self, tokens):
        x = self.tokens(tokens)
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            x = x + narrow(torch.nn.functional.gelu(wide(x)))
        scores = torch.nn.functional.linear(x, self.tokens.weight) / 16
        return torch.nn.functional.cross_entropy(scores, tokens.roll(1))


def tokens(step):
    return torch.randint(256, (24,), generator=torch.Generator().manual_seed(step))
