"""The position-wise feed-forward network: the same small network at every token (B3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import UsageError, nearest, require_positive
from heedful.layers.taps import Tapped
from heedful.shapes import Float

ActivationName = Literal["relu", "gelu", "gelu_tanh", "silu"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(Tapped):
    """max(0, x W_1 + b_1) W_2 + b_2        Vaswani 2017, eq. 2 · B3

    Other activations take the place of max(0, ·). Gated, half of W_1 decides how much of the other
    half passes: (act(x W_g) ⊙ x W_1) W_2        Shazeer 2020, eq. 6
    """

    points: ClassVar[tuple[str, ...]] = ("hidden", "output")

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: ActivationName = "relu",
        gated: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        require_positive(width=width, feed_forward=hidden)
        if activation not in ACTIVATIONS:
            raise UsageError(f"unknown activation '{activation}'; {nearest(activation, ACTIVATIONS)}")
        self.gated = gated
        self.activation = ACTIVATIONS[activation]
        self.inward = nn.Linear(width, hidden * (2 if gated else 1), bias=bias)  # W_g beside W_1 when gated
        self.outward = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        inner = self.inward(x)
        if self.gated:
            gate, inner = inner.chunk(2, dim=-1)
            hidden = self.activation(gate) * inner
        else:
            hidden = self.activation(inner)
        return self.tap("output", self.outward(self.tap("hidden", hidden)))
