"""Position encodings: attention alone is blind to token order (A7, P1–P3)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import UsageError, require_positive
from heedful.shapes import Float, Int

SinusoidLayout = Literal["interleaved", "halves"]


def position_angles(
    positions: Int[Tensor, "#batch tokens"], width: int, base: float
) -> Float[Tensor, "#batch tokens half"]:
    """i · ω_j with ω_j = base^(−2j/d): radians, from fast (j = 0) to slow.

    In float32 whatever the model's dtype: bfloat16 cannot represent every integer above 256.
    """
    if width % 2:
        raise UsageError(f"sines and cosines come in pairs: width {width} is odd; use {width - 1} or {width + 1}")
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    frequencies = torch.exp(pairs * (-math.log(base) / width))
    return positions[..., None].float() * frequencies


class SinusoidalPositions(nn.Module):
    """PE[i, 2j] = sin(i / 10000^(2j/d)),  PE[i, 2j+1] = cos(i / 10000^(2j/d))        Vaswani 2017, 3.5 · P1

    A step of δ positions rotates each (sin, cos) pair by the fixed angle δ·ω_j, so an offset is the same linear map
    everywhere. Angles are radians (a common misprint gives sin(1) = 0.02, which is one *degree*; it is 0.84), and
    frequency falls with the dimension j, not with the position i.

    Any position has an encoding: there is no table to exceed. `layout="halves"` puts all sines before all cosines, as
    several well-known implementations do; the paper's equation interleaves them.
    """

    def __init__(self, width: int, *, base: float = 10_000.0, layout: SinusoidLayout = "interleaved") -> None:
        super().__init__()
        require_positive(width=width, base=base)
        self.width, self.base, self.layout = width, base, layout

    def forward(self, positions: Int[Tensor, "#batch tokens"]) -> Float[Tensor, "#batch tokens width"]:
        angles = position_angles(positions, self.width, self.base)
        if self.layout == "halves":
            return torch.cat([angles.sin(), angles.cos()], dim=-1)
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


class LearnedPositions(nn.Module):
    """One learned vector per position, up to a fixed length        Gehring 2017 · P2"""

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        require_positive(max_length=max_length, width=width)
        self.table = nn.Embedding(max_length, width)

    def forward(self, positions: Int[Tensor, "#batch tokens"]) -> Float[Tensor, "#batch tokens width"]:
        try:
            vectors: Tensor = self.table(positions)
        except IndexError:  # raised on a CPU; on a GPU the check would need a synchronization
            size = self.table.num_embeddings
            wrong = positions[(positions < 0) | (positions >= size)]
            raise UsageError(
                f"position {int(wrong[0])} is outside the learned table of {size} (0 to {size - 1})"
            ) from None
        return vectors


class Rotation(NamedTuple):
    """Rotary cosines and sines of a batch of positions, computed once for all layers and heads."""

    cosine: Float[Tensor, "#batch 1 tokens half"]
    sine: Float[Tensor, "#batch 1 tokens half"]

    @classmethod
    def by(cls, angles: Float[Tensor, "#batch tokens half"]) -> Rotation:
        """The rotation by these angles."""
        angles = angles.unsqueeze(-3)
        return cls(angles.cos(), angles.sin())


def rotation(positions: Int[Tensor, "#batch tokens"], width: int, *, base: float = 10_000.0) -> Rotation:
    """The rotation of each position."""
    return Rotation.by(position_angles(positions, width, base))


def rotate(x: Float[Tensor, "batch heads tokens d_k"], rotation: Rotation) -> Float[Tensor, "batch heads tokens d_k"]:
    """Rotate each pair (x_j, x_{j+d/2}) by its position's angle: q·k then depends on i − j alone.

    (a, b) → (a cos θ − b sin θ, b cos θ + a sin θ)        Su 2021, eq. 34 · P3
    """
    cosine, sine = rotation.cosine.to(x.dtype), rotation.sine.to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


def alibi(queries: Int[Tensor, "#batch queries"], keys: int, heads: int) -> Float[Tensor, "#batch heads queries keys"]:
    """ALiBi: a bias of −m_h · |i − j|; each head h prefers near keys with its own slope m_h        Press 2022 · P3"""
    distance = queries[:, None, :, None] - torch.arange(keys, device=queries.device)
    return -alibi_slopes(heads, queries.device)[:, None, None] * distance.abs()


def alibi_slopes(heads: int, device: torch.device | None = None) -> Float[Tensor, " heads"]:
    """2^(−8/H), 2^(−16/H), …; heads beyond a power of two take every other slope of the next one."""
    power = 1 << (heads.bit_length() - 1)
    head = torch.arange(heads, device=device)
    return torch.exp2(-torch.where(head < power, 8 * (head + 1), 8 * (head - power) + 4) / power)
