"""Normalization over the features of each token (B2)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from heedful.errors import UsageError, nearest, require_positive
from heedful.shapes import Float

NormName = Literal["layer", "rms", "none"]


def layer_norm(
    x: Float[Tensor, "*axes width"],
    gain: Float[Tensor, " width"],
    bias: Float[Tensor, " width"],
    epsilon: float = 1e-5,
) -> Float[Tensor, "*axes width"]:
    """γ (x − μ) / √(σ² + ε) + β        Ba 2016, eq. 3–4 · B2

    μ and σ² are over the features of one token; ε stands inside the root.
    """
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, correction=0)
    return gain * (x - mean) / torch.sqrt(variance + epsilon) + bias


def rms_norm(
    x: Float[Tensor, "*axes width"], gain: Float[Tensor, " width"], epsilon: float = 1e-5
) -> Float[Tensor, "*axes width"]:
    """γ x / √(mean(x²) + ε): no centring, no bias        Zhang & Sennrich 2019, eq. 4"""
    return gain * x / torch.sqrt(x.square().mean(-1, keepdim=True) + epsilon)


def make_norm(name: NormName, width: int, *, epsilon: float = 1e-5, bias: bool = True) -> nn.Module:
    """PyTorch's fused module for the norm called `name`; "none" leaves its input as it is (B7)."""
    require_positive(width=width, epsilon=epsilon)
    if name == "layer":
        return nn.LayerNorm(width, eps=epsilon, bias=bias)
    if name == "rms":
        return nn.RMSNorm(width, eps=epsilon)
    if name == "none":
        return nn.Identity()
    raise UsageError(f"unknown norm '{name}'; {nearest(name, ['layer', 'rms', 'none'])}")
