"""The position-wise feed-forward network, applied to every token alike (B3)."""

from __future__ import annotations

from torch import Tensor, nn

from heedful.errors import UsageError, nearest, require_positive
from heedful.layers.activations import ACTIVATIONS, ActivationName, linear_relu
from heedful.layers.taps import Tapped
from heedful.shapes import Float


class FeedForward(Tapped):
    """max(0, x W_1 + b_1) W_2 + b_2        Vaswani 2017, eq. 2 · B3

    Other activations may replace max(0, ·). Gated: (act(x W_g) ⊙ x W_1) W_2        Shazeer 2020, eq. 6
    """

    points = ("hidden", "output")

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
        self.fuses_relu = activation == "relu" and bias and not gated

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        return self.tap("output", self.outward(self.tap("hidden", self._hidden(x))))

    def _hidden(self, x: Tensor) -> Tensor:
        if self.fuses_relu and x.is_cuda:
            return linear_relu(self.inward, x)
        inner: Tensor = self.inward(x)
        if self.gated:
            gate, inner = inner.chunk(2, dim=-1)
            return self.activation(gate) * inner
        return self.activation(inner)
