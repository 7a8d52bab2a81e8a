"""A U-Net of the kind that predicts noise (Rombach et al., 2022, arXiv 2112.10752): residual units
that see the time, attention below."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions, with the embedded time between them."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.before, self.between = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.first, self.second = (
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.time = nn.Linear(time, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        inner = (
            self.first(functional.silu(self.before(x)))
            + self.time(functional.silu(time))[:, :, None, None]
        )
        result: Tensor = self.shortcut(x) + self.second(functional.silu(self.between(inner)))
        return result


class Attention(nn.Module):
    """Every pixel attends to all others."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.attend, self.project = (
            nn.GroupNorm(8, width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, width, high, wide = x.shape
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        heads = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in self.attend(pixels).chunk(3, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return x + self.project(mixed).transpose(1, 2).view(batch, width, high, wide)


class DenoisingUNet(nn.Module):
    """Noisy latents and their times in, the mean square error of the predicted noise out."""

    def __init__(self, width: int, levels: int, channels: int = 4) -> None:
        super().__init__()
        self.width, time = width, 4 * width
        widths = [width * min(2**level, 4) for level in range(levels)]
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.into, self.out = (
            nn.Conv2d(channels, width, 3, padding=1),
            nn.Conv2d(width, channels, 3, padding=1),
        )
        self.down = nn.ModuleList(
            Residual(widths[max(level - 1, 0)], widths[level], time) for level in range(levels)
        )
        self.seen = nn.ModuleList(
            Attention(w, max(w // 64, 1)) if level else nn.Identity()
            for level, w in enumerate(widths)
        )
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths[:-1])
        self.up = nn.ModuleList(
            Residual(2 * widths[level], widths[max(level - 1, 0)], time)
            for level in reversed(range(levels))
        )
        self.norm = nn.GroupNorm(8, width)

    def forward(self, latents: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(self.width // 2) * (-2 * math.log(10_000) / self.width))
        angles = times[:, None].float() * rates
        time = self.time(torch.cat([angles.cos(), angles.sin()], 1))
        x, skips = self.into(latents), []
        for level, (unit, attention) in enumerate(zip(self.down, self.seen, strict=True)):
            x = attention(unit(x, time))
            skips.append(x)
            x = self.shrink[level](x) if level < len(self.shrink) else x
        for number, unit in enumerate(self.up):
            skip = skips.pop()
            x = functional.interpolate(x, size=skip.shape[2:], mode="nearest") if number else x
            x = unit(torch.cat([x, skip], 1), time)
        return functional.mse_loss(self.out(functional.silu(self.norm(x))), noise)


def denoising_unet(
    batch: int, size: int = 64, width: int = 320, levels: int = 4
) -> tuple[nn.Module, dict[str, Any]]:
    """The width and the latents' size of Stable Diffusion 1."""
    pixels = (batch, 4, size, size)
    return DenoisingUNet(width, levels), {
        "latents": torch.randn(pixels),
        "times": torch.randint(1000, (batch,)),
        "noise": torch.randn(pixels),
    }
