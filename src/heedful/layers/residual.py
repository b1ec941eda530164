"""The skip-connection around every sub-layer, with the norm before or after it (B1, B2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from heedful.layers.norms import NormName, make_norm
from heedful.layers.taps import Tapped
from heedful.shapes import Float

NormOrder = Literal["post", "pre"]


class Residual(Tapped):
    """post: LN(x + f(x))        Vaswani 2017, 3.1 · B1, B2
    pre:  x + f(LN(x))        Xiong 2020

    Dropout applies to f's output, as in the paper (5.4). `skip=False` removes the skip-connection, as an ablation
    (Q3); on a trained model, `Ablate("decoder.1.cross.skip")` does it for one call. `norm="none"` leaves x + f(x) (B7).
    """

    points: tuple[str, ...] = ("norm", "skip", "residual")

    def __init__(
        self,
        width: int,
        *,
        order: NormOrder = "post",
        norm: NormName = "layer",
        epsilon: float = 1e-5,
        bias: bool = True,
        dropout: float = 0.0,
        skip: bool = True,
    ) -> None:
        super().__init__()
        self.norm = make_norm(norm, width, epsilon=epsilon, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.order = order
        self.skip = skip
        self.points = self.points if skip else ("norm", "residual")

    def forward(
        self, x: Float[Tensor, "batch tokens width"], f: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch tokens width"]:
        if self.order == "pre":
            return self.tap("residual", self._add(x, f(self.tap("norm", self.norm(x)))))
        added = self._add(x, f(x))
        return self.tap("residual", self.tap("norm", self.norm(added).to(added.dtype)))

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y in the dtype of y: autocast would widen the residual stream, and with it the stored activations."""
        y = self.dropout(y) if self.training else y
        return (self.tap("skip", x) + y).to(y.dtype) if self.skip else y
