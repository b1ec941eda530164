"""The hidden state of a recurrent decoder whose rows join and leave at any decode step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.layers.masks import Mask
from heedful.models.recurrent import RecurrentState
from heedful.shapes import Bool, Int


class HiddenSlots(RecurrentState):
    """Hidden states and encoded sources of many texts; hidden states have no positions, so rows are concatenated."""

    def __init__(self, like: RecurrentState, rows_per_source: int) -> None:
        none = slice(0)
        super().__init__(
            like.lengths[none],
            tuple(part[:, none] for part in like.hidden),
            None if like.memory is None else like.memory[none],
            Mask(allowed=_allowed(like)[none]) if like.memory is not None else None,
            None if like.context is None else like.context[none],
        )

    def join(
        self, state: RecurrentState, rows: Int[Tensor, " new"], source_lengths: Int[Tensor, " sources"] | None
    ) -> None:
        """Append rows of a prefilled state."""
        allowed = None if state.memory is None else _allowed(state)[rows]
        self.lengths = torch.cat([self.lengths, state.lengths[rows]])
        self.hidden = tuple(torch.cat([a, b[:, rows]], 1) for a, b in zip(self.hidden, state.hidden, strict=True))
        if self.context is not None and state.context is not None:
            self.context = torch.cat([self.context, state.context[rows]])
        if self.memory is not None and state.memory is not None:
            self.memory = _stack_padded(self.memory, state.memory[rows])
            assert self.memory_mask is not None
            assert self.memory_mask.allowed is not None
            assert allowed is not None
            allowed_rows = _stack_padded(self.memory_mask.allowed.movedim(3, 1), allowed.movedim(3, 1))
            self.memory_mask = Mask(allowed=allowed_rows.movedim(1, 3))

    def reorder(self, rows: Int[Tensor, " chosen"], rows_per_source: int = 1) -> None:
        """Keep these rows in this order, and cut the sources to the longest that is left."""
        super().reorder(rows, rows_per_source)
        if self.memory is not None and self.memory_mask is not None and self.memory_mask.allowed is not None:
            longest = int(self.memory_mask.allowed.sum(3).max()) if len(rows) else 0
            self.memory = self.memory[:, :longest]
            self.memory_mask = Mask(allowed=self.memory_mask.allowed[..., :longest])


def _allowed(state: RecurrentState) -> Bool[Tensor, "rows 1 1 keys"]:
    """The mask of the encoder states that each row may attend to."""
    assert state.memory is not None
    if state.memory_mask is not None and state.memory_mask.allowed is not None:
        return state.memory_mask.allowed
    rows, keys, _ = state.memory.shape
    return torch.ones(rows, 1, 1, keys, dtype=torch.bool, device=state.memory.device)


def _stack_padded(first: Tensor, second: Tensor) -> Tensor:
    """Two batches as one, the second axis padded with zeros to the longer of both."""
    longest = max(first.shape[1], second.shape[1])
    after = [0] * (2 * (first.dim() - 2))
    return torch.cat([F.pad(part, (*after, 0, longest - part.shape[1])) for part in (first, second)])
