"""Running text in windows with words hidden in them: what masked-word training reads (T4).

A window is START, `context` − 2 tokens of the text, SEPARATOR; the next goes on where it stops, so nothing is padding.
It may begin in one document and end in another, with a SEPARATOR between them, as RoBERTa's may (Liu 2019,
FULL-SENTENCES).

A model that had only ever seen full windows would not know what to make of a short sentence. So some batches hold
shorter rows, and more of them: windows in halves, quarters or eighths (Devlin 2019 makes a tenth of all rows shorter).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.batching import Indices
from heedful.data.collate import pad_sequences
from heedful.data.masking import Masking
from heedful.data.token_store import Sequences
from heedful.errors import UsageError
from heedful.shapes import Int
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.special_tokens import PAD


@dataclass(frozen=True)
class MaskedBatch:
    """Rows with tokens hidden, and what is to be found: in every row as many, so that shapes never change."""

    ignore_index: ClassVar[int] = PAD

    tokens: Int[Tensor, "batch tokens"]
    positions: Int[Tensor, "batch masked"]
    """Where in its row each hidden token stands."""
    labels: Int[Tensor, "batch masked"]
    """What stood there; PAD where a row had not so many to hide."""
    lengths: Int[Tensor, " batch"] | None = None
    """Real tokens of each row; None: all."""
    segments: Int[Tensor, "batch tokens"] | None = None
    """Which of two texts a token belongs to."""
    next_sentence_labels: Int[Tensor, " batch"] | None = None
    """0 where the second text followed the first, 1 where it came from elsewhere."""


SHORT_BATCHES = 0.15
"""Share of the batches that hold shorter rows."""
PARTS, LEAST = (2, 4, 8), 6
"""Into how many a window is then cut; each has so many tokens of text at least."""


class MaskedBatches:
    """Every token once an epoch, in windows that start elsewhere each time; what is hidden is drawn anew each time.

    Windows and masks are functions of (seed, epoch, first window of the batch) alone.
    """

    fixed_shape = True
    unit = "tokens"
    special_tokens = 2
    """Tokens of a window that are not of the text."""

    def __init__(
        self,
        text: Sequences,
        masking: Masking,
        frame: SpecialTokenTemplate,
        *,
        context: int,
        rows: int,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        self.text, self.masking, self.frame = text, masking, frame
        self.rows, self.seed, self.shuffle = rows, seed, shuffle
        self.text_tokens = min(context - self.special_tokens, len(text.ids))
        """Tokens of text in a window."""
        if self.text_tokens < 1:
            raise UsageError(
                f"training.context is {context}: of these tokens {self.special_tokens} are special; take 16 or more"
            )

    @property
    def labels_per_epoch(self) -> int:
        """Tokens to be found in an epoch, about."""
        return self.masking.masked_per_row(self.text_tokens + self.special_tokens) * max(1, len(self.text.ids) // self.text_tokens)

    def plan(self, epoch: int) -> list[Indices]:
        """The epoch's batches, each a list of window starts."""
        draw = np.random.default_rng([self.seed, epoch])
        total = len(self.text.ids)
        shift = int(draw.integers(min(self.text_tokens, total - self.text_tokens + 1))) if self.shuffle else 0
        starts = np.arange(shift, total, self.text_tokens)
        if self.shuffle:  # whole windows only, so that every batch has one shape
            starts = draw.permutation(starts[starts + self.text_tokens <= total])
        return [starts[i : i + self.rows] for i in range(0, len(starts), self.rows)]

    def batch(self, epoch: int, indices: Indices) -> MaskedBatch:
        """The tensors of one batch. A window stands in one batch of an epoch, so its first window names a batch."""
        draw = np.random.default_rng([self.seed, epoch, int(indices[0])])
        starts, body = self.shorten_windows(indices, draw) if self.shuffle else (indices, self.text_tokens)
        texts = [self.text.ids[start : start + body] for start in starts]
        rows = add_special_tokens([(text,) for text in texts], self.frame)
        lengths = np.array([len(text) + self.special_tokens for text in texts])
        return mask_rows(rows, lengths, self.masking, draw)

    def shorten_windows(self, starts: Indices, draw: np.random.Generator) -> tuple[Indices, int]:
        """Where rows start, and how many tokens of text they have: mostly a whole window."""
        bodies = {parts: (self.text_tokens + self.special_tokens) // parts - self.special_tokens for parts in PARTS}
        possible = [parts for parts, body in bodies.items() if body >= LEAST]
        if draw.random() >= SHORT_BATCHES or not possible:
            return starts, self.text_tokens
        parts = possible[draw.integers(len(possible))]
        return (starts[:, None] + bodies[parts] * np.arange(parts)).ravel(), bodies[parts]


def add_special_tokens(texts: list[tuple[NDArray[np.integer], ...]], frame: SpecialTokenTemplate) -> NDArray[np.int64]:
    """START text SEPARATOR, or START one SEPARATOR other SEPARATOR, a row each; PAD after those that are shorter."""
    end = np.array([frame.end])
    rows = [np.concatenate([ids for part in parts for ids in (part, end)]) for parts in texts]
    return pad_sequences(rows, start=frame.start)[0].numpy()


def mask_rows(
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    masking: Masking,
    draw: np.random.Generator,
    segments: NDArray[np.int64] | None = None,
    follows: NDArray[np.int64] | None = None,
) -> MaskedBatch:
    """The batch of these rows; lengths are left out where all rows are full, so that no mask is needed."""
    places, labels, tokens = masking.mask_tokens(rows, draw)
    tensor = torch.from_numpy
    return MaskedBatch(
        tensor(tokens),
        tensor(places),
        tensor(labels),
        lengths=tensor(lengths) if lengths.min() < rows.shape[1] else None,
        segments=None if segments is None else tensor(segments),
        next_sentence_labels=None if follows is None else tensor(follows),
    )
