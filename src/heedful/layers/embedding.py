"""Token embedding plus position encoding (E1, P3)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.positions import LearnedPositions, SinusoidalPositions
from heedful.layers.taps import Tapped
from heedful.shapes import Float, Int

Combine = Literal["add", "concatenate"]


class Embedding(Tapped):
    """X = dropout(norm(√d · E[tokens] + PE))        Vaswani 2017, 3.4–3.5 · E1, P3

    The factor √d (`scale`) and the `norm` are optional. `combine="concatenate"` appends the position encoding to the
    token's vector instead of adding it. `segments` adds a learned vector per token that says which of two texts it
    belongs to (Devlin 2019). The table E is an argument, because source, target and output may share it.
    """

    def __init__(
        self,
        width: int,
        *,
        positions: SinusoidalPositions | LearnedPositions | None = None,
        combine: Combine = "add",
        scale: bool = False,
        segments: int = 0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.positions = positions
        self.combine = combine
        self.scale = math.sqrt(width) if scale else 1.0
        self.segments = nn.Embedding(segments, width) if segments else None
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.points = ("tokens", "") if positions is None else ("tokens", "positions", "")

    def forward(
        self,
        table: nn.Embedding,
        tokens: Int[Tensor, "batch tokens"],
        positions: Int[Tensor, "#batch tokens"],
        segments: Int[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        x = self.tap("tokens", embedding_lookup(table, tokens))
        x = x * self.scale if self.scale != 1.0 else x
        if self.segments is not None:
            x = x + (
                self.segments.weight[0] if segments is None else embedding_lookup(self.segments, segments, "segment")
            )
        elif segments is not None:
            raise UsageError("this model has no segment vectors; build it with segments=2")
        x = self._add_positions(x, positions)
        x = x if self.norm is None else self.norm(x)
        return self.tap("", self.dropout(x) if self.training else x)

    def _add_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.positions is None:
            return x
        encoding = self.tap("positions", self.positions(positions).to(x.dtype))
        return x + encoding if self.combine == "add" else torch.cat([x, encoding.expand(*x.shape[:2], -1)], dim=-1)


def embedding_lookup(table: nn.Embedding, ids: Tensor, what: str = "token") -> Tensor:
    """One table row per id. On a CPU the error names a bad id; on a GPU that would need a synchronization."""
    try:
        vectors: Tensor = table(ids)
    except IndexError:
        require_rows(table, ids, what)
        raise
    return vectors


def require_rows(table: nn.Embedding, ids: Tensor, what: str = "token") -> None:
    """Raise UsageError naming the first id that the table has no row for."""
    size = table.num_embeddings
    wrong = ids[(ids < 0) | (ids >= size)]
    if wrong.numel():
        raise UsageError(f"{what} id {int(wrong[0])} is outside the vocabulary of {size} (0 to {size - 1})")
