"""Word vectors in context: the state of each occurrence of a word in its sentence (E4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from heedful.data.batching import map_length_buckets
from heedful.data.collate import pad_sequences
from heedful.errors import UsageError
from heedful.inference.text_embedding import BATCH_TOKENS, Vectors, embedding_row, hidden_states
from heedful.inspection.layer_states import layer_taps, record_layers
from heedful.models.build import Model
from heedful.text.token_rows import TokenRow
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import PATTERNS

LAST = -1
"""The last layer, through the model's last norm."""


@dataclass(frozen=True, eq=False)
class WordState:
    """One occurrence of a word: its characters in the text and its vector there."""

    text: str
    start: int
    end: int
    vector: Vectors


@dataclass(frozen=True)
class WordStates:
    """A text with the vectors of its words; words beyond the model's longest input are left out, with a warning."""

    text: str
    words: tuple[WordState, ...]
    warnings: tuple[str, ...] = ()


def word_states(model: Model, tokenizer: Tokenizer, texts: Sequence[str], layer: int = LAST) -> list[WordStates]:
    """The state of every word of each text after a layer; texts of similar length share a batch.

    A word's vector is the mean over its tokens; those that hold only the punctuation around it do not count.
    """
    name = _layer_name(model, layer)
    rows = [embedding_row(model, tokenizer, text) for text in texts]
    states = map_length_buckets(
        lambda indices: _states(model, [rows[index] for index in indices], name),
        [len(row) for row in rows],
        BATCH_TOKENS,
    )
    return [_words_of(row, table) for row, table in zip(rows, states, strict=True)]


def _layer_name(model: Model, layer: int) -> str | None:
    """The name of a layer before the last; None: the model's output states."""
    layers = [name for name in layer_taps(model, _stack(model)) if name != "embeddings"]
    if layer == LAST or layer == len(layers) - 1:
        return None
    if not -len(layers) <= layer < len(layers):
        known = f"0 to {len(layers) - 1}, or -1 for the last" if layers else "none: leave layer out"
        raise UsageError(f"layer {layer}: the layers of this model are {known}")
    return layers[layer]


def _stack(model: Model) -> str:
    return "decoder" if model.config.family in ("decoder", "recurrent_decoder") else "encoder"


@torch.inference_mode()
def _states(model: Model, rows: Sequence[TokenRow], layer: str | None) -> list[Vectors]:
    tokens, lengths = pad_sequences([row.ids for row in rows], device=model.device)
    run = partial(hidden_states, model, tokens, lengths.clamp(min=1))
    states = run() if layer is None else record_layers(model, _stack(model), run)[layer]
    table: Vectors = states.float().cpu().numpy()
    return [state[: len(row)] for state, row in zip(table, rows, strict=True)]


def _words_of(row: TokenRow, states: Vectors) -> WordStates:
    words = []
    matches = list(PATTERNS["words"].finditer(row.text))
    for match in matches:
        tokens = _tokens_of(row, *_core(match))
        if tokens:
            words.append(WordState(match[0], match.start(), match.end(), states[tokens].mean(0)))
    missing = len(matches) - len(words)
    warning = f"{missing:,} of {len(matches):,} words are not in the vocabulary or beyond this model's longest input"
    return WordStates(row.text, tuple(words), (warning,) if missing else ())


def _core(word: re.Match[str]) -> tuple[int, int]:
    """The characters of a word without the punctuation around it; all, if it is nothing else."""
    core = re.search(r"\w(?:.*\w)?", word[0])
    return word.span() if core is None else (word.start() + core.start(), word.start() + core.end())


def _tokens_of(row: TokenRow, start: int, end: int) -> list[int]:
    spans = enumerate(row.spans)
    return [index for index, span in spans if span is not None and span[0] < end and span[1] > start]
