"""Baseline scores that a useful model must beat."""

from __future__ import annotations

import numpy as np

from heedful.data.token_store import Sequences

MAX_COUNTED = 20_000_000
"""Maximum number of training tokens counted."""


def unigram_loss(train: Sequences, held_out: Sequences, vocabulary: int, *, ends: bool = False) -> float:
    """Mean loss, in nats per token of `held_out`, of predicting each token by its frequency in `train` plus one.

    With `ends`, every sequence also ends in a token of its own, as the labels of a decoder do.
    """
    stride = 1 + len(train.ids) // MAX_COUNTED
    counts = stride * np.bincount(train.ids[::stride], minlength=vocabulary) + 1.0
    labels = np.bincount(held_out.ids, minlength=vocabulary)
    if ends:
        counts, labels = np.append(counts, len(train) + 1.0), np.append(labels, len(held_out))
    return float(labels @ -np.log(counts / counts.sum()) / max(1, labels.sum()))
