"""Which source words made this target word: read off one head of a translator's cross-attention (A9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from heedful.config import Config
from heedful.data.batching import PairBatches
from heedful.data.token_store import Sequences
from heedful.errors import UsageError
from heedful.layers.taps import record, tap_names
from heedful.objectives.objective import to_device
from heedful.text.word_tokens import TokenizedWords, Unit

ALIGNMENT_FILE = "alignment.json"
CROSS_WEIGHTS = "*cross.weights"
Weights = npt.NDArray[np.float32]
Row = Literal["writes", "reads"]
"""The row of weights that stands for a token: the one that led to it, or the one after, which has read it."""


class AttentionHead(NamedTuple):
    """A place to look: a tap's name, a head in it (None: the mean of all), and the row that stands for a token."""

    tap: str
    head: int | None = None
    row: Row = "writes"

    def __str__(self) -> str:
        head = "the mean of its heads" if self.head is None else f"head {self.head}"
        when = "writing" if self.row == "writes" else "having read"
        return f"{self.tap}, {head}, when {when} a token"


class Alignment(Config):
    """The head that aligns, and how it was found: what alignment.json holds."""

    tap: str
    head: int | None
    row: Row
    units: tuple[Unit, Unit] = ("words", "words")
    """What is counted in the source, and in the target."""
    error_rate: float | None = None
    """1 − F1 of its links, on pairs it was not chosen by; None: it was never measured."""
    mean_error_rate: float | None = None
    """The same for the average head read by that row, and for the worst: what choosing was worth."""
    worst_error_rate: float | None = None
    pairs: int = 0
    aligner: str = ""
    """Whose links were held to be true."""

    @property
    def attention_head(self) -> AttentionHead:
        return AttentionHead(self.tap, self.head, self.row)

    def __str__(self) -> str:
        if self.error_rate is None:
            return f"{self.attention_head}: never measured"
        return (
            f"{self.attention_head}: {self.error_rate:.1%} alignment error on {self.pairs:,} pairs, against {self.aligner} "
            f"(a head on average {self.mean_error_rate:.1%}, the worst {self.worst_error_rate:.1%})"
        )


class AlignmentResult(NamedTuple):
    """A target's words, each with its weights on the source's words and, last, on none of them; and its links."""

    weights: Weights
    links: tuple[tuple[int, int], ...]

    def pharaoh(self) -> str:
        """As others read them: `0-0 1-2`, source word - target word."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


def align(model: Any, alignment: Alignment, pairs: Sequence[tuple[TokenizedWords, TokenizedWords]]) -> list[AlignmentResult]:
    """Where the words of each target came from, by one teacher-forced pass over each batch of pairs.

    Every target word is linked to the source word it takes (see `taken`), or to none.
    """
    readings: dict[int, AlignmentResult] = {}
    for index, seen in cross_attention_weights(model, pairs, alignment.tap):
        heads = seen[alignment.tap]
        rows = heads.mean(0) if alignment.head is None else heads[alignment.head]
        weights = word_weights(rows, *pairs[index], alignment.row)
        readings[index] = AlignmentResult(weights, extract_links(weights))
    return [readings[index] for index in range(len(pairs))]


def extract_links(weights: Weights) -> tuple[tuple[int, int], ...]:
    """The links of one table of weights, in the source's order."""
    none = weights.shape[-1] - 1
    return tuple(sorted((source, target) for target, source in enumerate(linked_sources(weights).tolist()) if source != none))


def linked_sources(weights: Weights) -> npt.NDArray[np.int64]:
    """For each target word t the source word s with the largest √(P(s | t) · P(t | s)); the last of them is none.

    P(s | t) is the weight, what t reads; P(t | s) is the share t has in all that s is read by. A full stop that every
    word glances at, or the end of the source, would often win by the first alone, and is nobody's origin.
    """
    read_by = weights.sum(-2, keepdims=True)
    found: npt.NDArray[np.int64] = (weights**2 / np.maximum(read_by, 1e-9)).argmax(-1)
    return found


def cross_attention_weights(
    model: Any, pairs: Sequence[tuple[TokenizedWords, TokenizedWords]], taps: str = CROSS_WEIGHTS, *, tokens: int = 4096
) -> Iterator[tuple[int, Mapping[str, Weights]]]:
    """Each pair's number and, for every tap, its weights: heads × (target, END) × (source, END).

    Row t is the one that led to token t: it has read START and the t tokens before.
    """
    if not has_cross_attention(model):
        raise UsageError("this model does not attend to its source (attention = none): there is nothing to align by")
    sides = [Sequences.from_lists([list(pair[side].tokens) for pair in pairs]) for side in (0, 1)]
    batches = PairBatches(sides[0], sides[1], max_tokens=tokens, seed=0, shuffle=False)
    for indices in batches.plan(0):
        batch = to_device(batches.batch(0, indices), model.table.weight.device)
        with torch.inference_mode(), record(model, taps) as seen:
            model.teacher_forced_states(batch.source, batch.target, batch.source_lengths)
        tables = {name: weights.float().cpu().numpy() for name, weights in seen.items()}
        for row, index in enumerate(indices.tolist()):
            source, target = (int(lengths[index]) + 1 for lengths in (sides[0].lengths, sides[1].lengths))
            yield index, {name: table[row, :, :target, :source] for name, table in tables.items()}


def word_weights(weights: Weights, source: TokenizedWords, target: TokenizedWords, row: Row = "writes") -> Weights:
    """From tokens to words: … × target words × (source words, none), each row again a distribution.

    A source word has the weight of all its tokens; a target word reads as its tokens do on average.
    """
    rows = weights[..., :-1, :] if row == "writes" else weights[..., 1:, :]
    reading = _share(target)
    reading /= np.maximum(reading.sum(0), 1e-9)
    read = np.zeros((len(source.tokens) + 1, len(source.words) + 1), np.float32)
    read[:-1, :-1] = _share(source)
    read[-1, -1] = 1.0
    return np.asarray(reading.T @ rows @ read, np.float32)


def _share(cut: TokenizedWords) -> Weights:
    """Which share of a token belongs to each word."""
    table = np.zeros((len(cut.tokens), len(cut.words)), np.float32)
    for token, place in enumerate(cut.word_ranges):
        table[token, list(place)] = 1 / max(1, len(place))
    return table


def has_cross_attention(model: Any) -> bool:
    """Whether there is anything to align by: a recurrent translator may pass one vector only."""
    return any(name.endswith("cross.weights") for name in tap_names(model))


def default_alignment(model: Any) -> Alignment:
    """For a model of unknown origin: the mean of the last layer but one, which mostly aligns        Garg 2019"""
    taps = [name for name in tap_names(model) if name.endswith("cross.weights")]
    return Alignment(tap=taps[max(0, len(taps) - 2)], head=None, row="writes")
