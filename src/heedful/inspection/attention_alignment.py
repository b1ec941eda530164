"""Word alignment from one head of a translator's cross-attention (A9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from heedful.config import Config
from heedful.data.pair_dataset import PairBatches
from heedful.data.token_store import Sequences
from heedful.errors import UsageError
from heedful.layers.taps import record, tap_names
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.recurrent import RecurrentEncoderDecoder
from heedful.objectives.objective import to_device
from heedful.text.word_tokens import TokenizedWords, Unit

TranslationModel = EncoderDecoder | RecurrentEncoderDecoder
WordPairs = Sequence[tuple[TokenizedWords, TokenizedWords]]
CROSS_WEIGHTS = "*cross.weights"
Weights = npt.NDArray[np.float32]
Row = Literal["output", "input"]
"""The attention row used for a token: the step that predicts it, or the next step, which has it as input."""


class Alignment(Config):
    """A cross-attention head that aligns words, and its measured error: the content of alignment.json."""

    tap: str
    head: int | None
    """None: the mean of all heads."""
    row: Row
    units: tuple[Unit, Unit] = ("words", "words")
    """Unit of the source, and of the target."""
    error_rate: float | None = None
    """1 − F1 of its links, on pairs not used to select it; None: not measured."""
    mean_error_rate: float | None = None
    """Mean error rate over all single heads with that row, for comparison."""
    worst_error_rate: float | None = None
    pairs: int = 0
    aligner: str = ""
    """The aligner whose links are the reference."""

    @property
    def head_name(self) -> str:
        head = "mean of all heads" if self.head is None else f"head {self.head}"
        return f"{self.tap}, {head}, token as {self.row}"

    def __str__(self) -> str:
        if self.error_rate is None:
            return f"{self.head_name}: not measured"
        return (
            f"{self.head_name}: {self.error_rate:.1%} alignment error on {self.pairs:,} pairs against "
            f"{self.aligner} (mean over heads {self.mean_error_rate:.1%}, worst {self.worst_error_rate:.1%})"
        )


class AlignmentResult(NamedTuple):
    """Attention of each target word over the source words (last column: no word), and the links."""

    weights: Weights
    links: tuple[tuple[int, int], ...]

    def pharaoh(self) -> str:
        """Format the links as in the Pharaoh format: `0-0 1-2`, source word - target word."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


def align(model: TranslationModel, alignment: Alignment, pairs: WordPairs) -> list[AlignmentResult]:
    """Align pairs by a teacher-forced pass over each batch.

    Every target word is linked to one source word or to none (see `linked_sources`).
    """
    results: dict[int, AlignmentResult] = {}
    for index, tables in cross_attention_weights(model, pairs, alignment.tap):
        heads = tables[alignment.tap]
        rows = heads.mean(0) if alignment.head is None else heads[alignment.head]
        weights = word_weights(rows, *pairs[index], alignment.row)
        results[index] = AlignmentResult(weights, extract_links(weights))
    return [results[index] for index in range(len(pairs))]


def extract_links(weights: Weights) -> tuple[tuple[int, int], ...]:
    """Return the (source, target) links of one weight table, in source order."""
    none = weights.shape[-1] - 1
    sources = enumerate(linked_sources(weights).tolist())
    return tuple(sorted((source, target) for target, source in sources if source != none))


def linked_sources(weights: Weights) -> npt.NDArray[np.int64]:
    """Return for each target word t the source word s with the largest √(P(s | t) · P(t | s)); the last one is "none".

    P(s | t) is the attention weight, P(t | s) the share of t in all attention on s. With P(s | t) alone, a full stop
    or the end of the source, which every word attends to a little, would often win.
    """
    total = weights.sum(-2, keepdims=True)
    sources: npt.NDArray[np.int64] = (weights**2 / np.maximum(total, 1e-9)).argmax(-1)
    return np.where(weights.any(-1), sources, weights.shape[-1] - 1)  # a head that is off links no word


def cross_attention_weights(
    model: TranslationModel, pairs: WordPairs, taps: str = CROSS_WEIGHTS, *, tokens: int = 4096
) -> Iterator[tuple[int, Mapping[str, Weights]]]:
    """Yield each pair's index and its weights by tap: heads × (target, END) × (source, END).

    Row t predicts token t: its input is START and the t tokens before.
    """
    if not has_cross_attention(model):
        raise UsageError("this model has no cross-attention (attention = none), so its words cannot be aligned")
    sides = [Sequences.from_lists([list(pair[side].tokens) for pair in pairs]) for side in (0, 1)]
    batches = PairBatches(sides[0], sides[1], max_tokens=tokens, seed=0, shuffle=False)
    for indices in batches.plan(0):
        batch = to_device(batches.batch(0, indices), model.device)
        with torch.inference_mode(), record(model, taps) as recorded:
            model.teacher_forced_states(batch.source, batch.target, batch.source_lengths)
        tables = {name: weights.float().cpu().numpy() for name, weights in recorded.items()}
        for row, index in enumerate(indices.tolist()):
            source, target = (int(lengths[index]) + 1 for lengths in (sides[0].lengths, sides[1].lengths))
            yield index, {name: table[row, :, :target, :source] for name, table in tables.items()}


def word_weights(weights: Weights, source: TokenizedWords, target: TokenizedWords, row: Row = "output") -> Weights:
    """Convert token weights to word weights: … × target words × (source words, none); rows still sum to 1.

    Source tokens of a word are summed, target tokens of a word are averaged.
    """
    rows = weights[..., :-1, :] if row == "output" else weights[..., 1:, :]
    average = _token_shares(target)
    average /= np.maximum(average.sum(0), 1e-9)
    total = np.zeros((len(source.tokens) + 1, len(source.words) + 1), np.float32)
    total[:-1, :-1] = _token_shares(source)
    total[-1, -1] = 1.0
    return np.asarray(average.T @ rows @ total, np.float32)


def _token_shares(tokenized: TokenizedWords) -> Weights:
    """Return the share of each token that belongs to each word: tokens × words."""
    table = np.zeros((len(tokenized.tokens), len(tokenized.words)), np.float32)
    for token, words in enumerate(tokenized.word_ranges):
        table[token, list(words)] = 1 / max(1, len(words))
    return table


def has_cross_attention(model: TranslationModel) -> bool:
    """Whether the model has cross-attention; a recurrent translator may pass a single vector instead."""
    return any(name.endswith("cross.weights") for name in tap_names(model))


def default_alignment(model: TranslationModel) -> Alignment:
    """Return the mean of the second-to-last layer, for a model without a measured head        Garg 2019"""
    taps = [name for name in tap_names(model) if name.endswith("cross.weights")]
    return Alignment(tap=taps[max(0, len(taps) - 2)], head=None, row="output")
