"""Windows of questions and passages, and where their answers stand, in batches (T5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import BucketedBatches, Indices
from heedful.data.collate import pad_sequences
from heedful.data.token_store import Sequences
from heedful.shapes import Int


@dataclass(frozen=True)
class SpanBatch:
    """START question SEPARATOR passage SEPARATOR, padded at the end."""

    ignore_index: ClassVar[int] = -100
    """In the place of a label: nothing is to be learned here."""

    tokens: Int[Tensor, "batch tokens"]
    lengths: Int[Tensor, " batch"]
    passage_starts: Int[Tensor, " batch"]
    """Where the passage begins."""
    labels: Int[Tensor, "batch 2"]
    """Where the answer starts, and where its last token stands; 0 and 0: it is not here."""

    @property
    def padding(self) -> tuple[int, int]:
        """(padding, all) tokens."""
        return self.tokens.numel() - int(self.lengths.sum()), self.tokens.numel()


class SpanBatches(BucketedBatches):
    """Windows of like length together. `places` has three numbers for each: where the passage begins, where the answer
    starts and where it ends."""

    unit = "places"

    def __init__(self, windows: Sequences, places: Sequences, *, max_tokens: int, seed: int, shuffle: bool = True) -> None:
        super().__init__(windows.lengths[None], max_tokens=max_tokens, seed=seed, shuffle=shuffle)
        self.windows, self.places = windows, places

    @property
    def labels_per_epoch(self) -> int:
        """Places to be found in an epoch."""
        return 2 * len(self.windows)

    def batch(self, epoch: int, indices: Indices) -> SpanBatch:
        places = torch.from_numpy(np.stack([self.places[index] for index in indices.tolist()]).astype(np.int64))
        tokens, lengths = pad_sequences([self.windows[index] for index in indices.tolist()])
        return SpanBatch(tokens, lengths, places[:, 0].clone(), places[:, 1:].clone())
