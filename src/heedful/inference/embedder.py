"""A vector for a whole text: the mean of what a model makes of its tokens (F3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.batching import length_buckets
from heedful.data.collate import pad_sequences
from heedful.errors import UsageError
from heedful.models.heads import mean_pool
from heedful.shapes import Float, Int
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.special_tokens import END, SPECIAL_TOKENS
from heedful.text.tokenizer import Tokenizer

BATCH_TOKENS = 8192
"""Padding included."""
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TextEmbedding:
    """A text's vector, and what was not as it should be."""

    text: str
    vector: Vectors
    warnings: tuple[str, ...] = ()


def embed_texts(model: Any, tokenizer: Tokenizer, texts: Sequence[str]) -> list[TextEmbedding]:
    """One vector a text, in order. Texts of like length share a batch; company changes none."""
    read = [_read(model, ids, tokenizer) for ids in tokenizer.encode(texts)]
    found: list[TextEmbedding | None] = [None] * len(texts)
    for batch in length_buckets([len(ids) for ids, _ in read], BATCH_TOKENS):
        vectors = _vectors(model, [read[place][0] for place in batch])
        for place, vector in zip(batch, vectors, strict=True):
            found[place] = TextEmbedding(texts[place], vector, read[place][1])
    return [embedded for embedded in found if embedded is not None]


def _read(model: Any, ids: list[int], tokenizer: Tokenizer) -> tuple[list[int], tuple[str, ...]]:
    """The tokens that the model is given, framed as it was trained to read them; a warning where some are left out."""
    config = model.config
    if config.family == "word_vectors":
        known = [token for token in ids if token >= len(SPECIAL_TOKENS)]
        return known, () if known else ("none of its words is known: the vector is zeros",)
    framed = _frame(config.family, tokenizer)
    most = getattr(config, "max_length", None)
    room = None if most is None else max(1, most - len(framed([])))
    if room is not None and len(ids) > room:
        return framed(ids[:room]), (f"cut off after {room:,} of {len(ids):,} tokens: the model reads no more",)
    return framed(ids), () if ids else ("an empty text",)


def _frame(family: str, tokenizer: Tokenizer) -> Callable[[list[int]], list[int]]:
    if family == "encoder":
        return SpecialTokenTemplate.from_tokenizer(tokenizer).wrap
    end = [END] if family.endswith("encoder_decoder") else []
    return lambda ids: [*ids, *end]


@torch.inference_mode()
def _vectors(model: Any, texts: Sequence[list[int]]) -> Vectors:
    tokens, lengths = pad_sequences(texts, device=model.table.weight.device)
    # A text without a token still has to pass the model; its mean is over nothing, and zeros.
    means = mean_pool(states(model, tokens, lengths.clamp(min=1)), lengths)
    vectors: Vectors = means.float().cpu().numpy()
    return vectors


def states(
    model: Any, tokens: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch tokens width"]:
    """What a model of any family makes of each token: of two halves, the one that reads."""
    found: Tensor
    match model.config.family:
        case "encoder":
            found = model(tokens, lengths)
        case "encoder_decoder":
            found = model.encode(tokens, lengths).states
        case "recurrent_encoder_decoder":
            found = model.start(tokens, lengths).memory
        case "decoder" | "recurrent_decoder":
            found = model.states(tokens)
        case "word_vectors":
            found = model(tokens)
        case family:
            raise UsageError(f"a model of the family {family} gives no states to average")
    return found


def cosine_similarities(vectors: Vectors, other: Vectors) -> Vectors:
    """u·v / (|u||v|) of each row with the other vector; 0 where either is zeros        E2"""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(other)
    found: Vectors = np.divide(vectors @ other, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return np.clip(found, -1.0, 1.0)
