"""Project tokens to queries, keys and values: by one matrix each, or one small network each (A10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from heedful.layers.activations import ACTIVATIONS, ActivationName
from heedful.shapes import Float

ProjectionName = Literal["linear", "network"]


class TokenNetworks(nn.Module):
    """act(x W_1 + b_1) W_2 + b_2 for each of several outputs, side by side        A10, B3

    Queries, keys and values may be any function of their token: each output is a network of its own, with one hidden
    layer as wide as the tokens.
    """

    def __init__(
        self, width: int, sizes: Sequence[int], *, activation: ActivationName = "relu", bias: bool = True
    ) -> None:
        super().__init__()
        self.inward = nn.ModuleList(nn.Linear(width, width, bias=bias) for size in sizes if size)
        self.outward = nn.ModuleList(nn.Linear(width, size, bias=bias) for size in sizes if size)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens wide"]:
        networks = zip(self.inward, self.outward, strict=True)
        return torch.cat([outward(self.activation(inward(x))) for inward, outward in networks], dim=-1)


def make_projection(
    kind: ProjectionName, width: int, sizes: Sequence[int], *, activation: ActivationName, bias: bool
) -> nn.Module:
    """The module that computes outputs of these sizes side by side."""
    if kind == "network":
        return TokenNetworks(width, sizes, activation=activation, bias=bias)
    return nn.Linear(width, sum(sizes), bias=bias)  # the matrices side by side: one product instead of several
