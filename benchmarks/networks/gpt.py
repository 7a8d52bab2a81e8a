"""Decoders as in GPT-2 (Radford et al., 2019): normalisation first, causal attention, a loss on the
next token."""

from __future__ import annotations

from torch import Tensor, arange, nn, optim, randint
from torch.nn import functional

Example = tuple[nn.Module, tuple[Tensor]]
Trained = tuple[nn.Module, tuple[Tensor], type[optim.Optimizer]]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        query, key, value = (
            part.view(batch, steps, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attend(self.before(x)).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, steps, width))
        result: Tensor = x + self.narrow(
            functional.gelu(self.widen(self.between(x)), approximate="tanh")
        )
        return result


class Gpt(nn.Module):
    """Tokens in, mean cross-entropy of the next token out; the output projection is the embedding's
    transpose."""

    def __init__(self, layers: int, width: int, heads: int, steps: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(steps, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        for embedding in (
            self.tokens,
            self.positions,
        ):  # as GPT-2; wider, and the loss of the first steps is in the hundreds
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores = functional.linear(self.last(x), self.tokens.weight)
        return functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gpt(
    batch: int, layers: int, width: int, heads: int, steps: int = 1024, vocabulary: int = 50257
) -> Example:
    return Gpt(layers, width, heads, steps, vocabulary), (randint(vocabulary, (batch, steps)),)


def gpt2_small(batch: int) -> Example:
    """GPT-2 small, 124 million parameters."""
    return gpt(batch, layers=12, width=768, heads=12)


def gpt2_short(batch: int) -> Example:
    """GPT-2 small on half its context: a training step takes some seconds on a few cores."""
    return gpt(batch, layers=12, width=768, heads=12, steps=512)


def deep_gpt(batch: int, layers: int = 160) -> Trained:
    """A step of some 20,000 kernels, Adam included: 160 layers 2560 wide, 13 billion parameters."""
    return (*gpt(batch, layers, width=2560, heads=32), optim.Adam)


def gpt_shallow(batch: int) -> Example:
    """Four of GPT-2's layers on 256 tokens, with a vocabulary of 8,192: a training step takes a
    second on one core."""
    return gpt(batch, layers=4, width=768, heads=12, steps=256, vocabulary=8192)
