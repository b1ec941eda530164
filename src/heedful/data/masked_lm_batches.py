"""Batches for masked language modeling: windows of running text with masked tokens (T4).

A window is START, `context` − 2 tokens of text, SEPARATOR; windows are consecutive, so there is no padding. They
may span documents, with a SEPARATOR between them (RoBERTa's FULL-SENTENCES, Liu 2019).

A model that has only seen full windows generalizes badly to short sentences. So some batches hold more and shorter
rows: windows in halves, quarters or eighths (Devlin 2019 shortens a tenth of all rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
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
    """Rows with masked tokens and their labels: the same number in every row, so that shapes are fixed."""

    ignore_index: ClassVar[int] = PAD

    tokens: Int[Tensor, "batch tokens"]
    positions: Int[Tensor, "batch masked"]
    """Position of each masked token in its row."""
    labels: Int[Tensor, "batch masked"]
    """The original tokens; PAD where a row has fewer masked tokens."""
    lengths: Int[Tensor, " batch"] | None = None
    """Tokens of each row without padding; None if no row is padded."""
    segments: Int[Tensor, "batch tokens"] | None = None
    """Index (0 or 1) of the text that each token belongs to."""
    next_sentence_labels: Int[Tensor, " batch"] | None = None
    """0 if the second text followed the first, 1 if it is from elsewhere."""


SHORT_BATCHES = 0.15
"""Share of the batches that hold shorter rows."""
SHORT_PARTS, MIN_TEXT_TOKENS = (2, 4, 8), 6
"""Numbers of parts a window is then cut into, and the fewest text tokens of a part."""


@dataclass(eq=False)
class MaskedBatches:
    """Every token once per epoch, in windows with a new offset and new masks each epoch.

    Windows and masks are functions of (seed, epoch, first window of the batch) alone.
    """

    fixed_shape = True
    unit = "tokens"
    special_tokens = 2
    """Tokens of a window that are not text."""

    text: Sequences
    masking: Masking
    _: KW_ONLY
    context: int
    """Tokens of a window."""
    rows: int
    seed: int
    shuffle: bool = True

    def __post_init__(self) -> None:
        self.text_tokens = min(self.context - self.special_tokens, len(self.text.ids))
        """Text tokens of a window."""
        if self.text_tokens < 1:
            raise UsageError(
                f"training.context is {self.context}, but {self.special_tokens} of these tokens are special; "
                "use 16 or more"
            )

    @property
    def labels_per_epoch(self) -> int:
        """Approximate number of masked tokens in an epoch."""
        windows = max(1, len(self.text.ids) // self.text_tokens)
        return self.masking.masked_per_row(self.text_tokens + self.special_tokens) * windows

    def plan(self, epoch: int) -> list[Indices]:
        """The batches of an epoch as window starts."""
        generator = np.random.default_rng([self.seed, epoch])
        total = len(self.text.ids)
        offset = int(generator.integers(min(self.text_tokens, total - self.text_tokens + 1))) if self.shuffle else 0
        starts = np.arange(offset, total, self.text_tokens)
        if self.shuffle:  # full windows only, so that every batch has one shape
            starts = generator.permutation(starts[starts + self.text_tokens <= total])
        return [starts[i : i + self.rows] for i in range(0, len(starts), self.rows)]

    def batch(self, epoch: int, indices: Indices) -> MaskedBatch:
        """The tensors of one batch. A window is in one batch of an epoch, so the first identifies the batch."""
        generator = np.random.default_rng([self.seed, epoch, int(indices[0])])
        starts, size = self.shorten_windows(indices, generator)
        texts = [self.text.ids[start : start + size] for start in starts]
        rows = add_special_tokens([(text,) for text in texts], self.masking.template)
        lengths = np.array([len(text) + self.special_tokens for text in texts])
        return mask_rows(rows, lengths, self.masking, generator)

    def shorten_windows(self, starts: Indices, generator: np.random.Generator) -> tuple[Indices, int]:
        """Row starts and text tokens per row: full windows, or in some batches of a shuffled epoch parts of them."""
        if not self.shuffle:
            return starts, self.text_tokens
        sizes = {
            parts: (self.text_tokens + self.special_tokens) // parts - self.special_tokens for parts in SHORT_PARTS
        }
        possible = [parts for parts, size in sizes.items() if size >= MIN_TEXT_TOKENS]
        if generator.random() >= SHORT_BATCHES or not possible:
            return starts, self.text_tokens
        parts = possible[generator.integers(len(possible))]
        return (starts[:, None] + sizes[parts] * np.arange(parts)).ravel(), sizes[parts]


def add_special_tokens(
    texts: Sequence[tuple[NDArray[np.integer], ...]], template: SpecialTokenTemplate
) -> NDArray[np.int64]:
    """START text SEPARATOR, or START first SEPARATOR second SEPARATOR, as padded rows."""
    end = np.array([template.end])
    rows = [np.concatenate([ids for part in parts for ids in (part, end)]) for parts in texts]
    return pad_sequences(rows, start=template.start)[0].numpy()


def mask_rows(
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    masking: Masking,
    generator: np.random.Generator,
    segments: NDArray[np.int64] | None = None,
    next_sentence_labels: NDArray[np.int64] | None = None,
) -> MaskedBatch:
    """Mask rows and build their batch; without lengths if all rows are full, so that no attention mask is needed."""
    positions, labels, tokens = masking.mask_tokens(rows, generator)
    tensor = torch.from_numpy
    return MaskedBatch(
        tensor(tokens),
        tensor(positions),
        tensor(labels),
        lengths=tensor(lengths) if lengths.min() < rows.shape[1] else None,
        segments=None if segments is None else tensor(segments),
        next_sentence_labels=None if next_sentence_labels is None else tensor(next_sentence_labels),
    )
