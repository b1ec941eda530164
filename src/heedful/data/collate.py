"""Collation: token-id sequences of different lengths as one padded tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from heedful.data.token_store import Ids
from heedful.shapes import Int
from heedful.text.special_tokens import PAD


def pad_sequences(
    sequences: Sequence[Sequence[int] | Ids],
    *,
    start: int | None = None,
    end: int | None = None,
    device: torch.device | None = None,
) -> tuple[Int[Tensor, "batch tokens"], Int[Tensor, " batch"]]:
    """Stack sequences as rows of one tensor with PAD after the shorter ones, and return it with their lengths.

    `start` and `end` are tokens put before and after each sequence. The tensor is at least one token wide, so that a
    batch of empty sequences can still pass through a model.
    """
    offset = int(start is not None)
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences)) + offset + (end is not None)
    tokens = np.full((len(sequences), lengths.max(initial=1)), PAD, np.int64)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[offset : offset + len(sequence)] = sequence
    if start is not None:
        tokens[:, 0] = start
    if end is not None:
        tokens[np.arange(len(tokens)), lengths - 1] = end
    return torch.from_numpy(tokens).to(device), torch.from_numpy(lengths).to(device)
