"""Text embeddings: the mean of a model's hidden states over a text's tokens (F3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.data.batching import map_length_buckets
from heedful.data.collate import pad_sequences
from heedful.inference.finite_outputs import require_finite
from heedful.models.build import Model
from heedful.models.decoder import Decoder
from heedful.models.encoder import Encoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.heads import mean_pool
from heedful.models.recurrent import RecurrentDecoder, RecurrentEncoderDecoder
from heedful.models.word_vectors import WordVectors
from heedful.shapes import Float, Int
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.special_tokens import END, SPECIAL_TOKENS
from heedful.text.token_rows import TokenRow, build_row
from heedful.text.tokenizer import Tokenizer

BATCH_TOKENS = 8192
"""Tokens in a batch, padding included."""
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TextEmbedding:
    """A text and its vector, with warnings about truncated or unknown input."""

    text: str
    vector: Vectors
    warnings: tuple[str, ...] = ()


def embed_texts(model: Model, tokenizer: Tokenizer, texts: Sequence[str]) -> list[TextEmbedding]:
    """Embed each text, in order; texts of similar length share a batch, which changes no vector."""
    encoded = [_encode(model, ids, tokenizer) for ids in tokenizer.encode(texts)]
    vectors = map_length_buckets(
        lambda indices: _mean_states(model, [encoded[index][0] for index in indices]),
        [len(ids) for ids, _ in encoded],
        BATCH_TOKENS,
    )
    rows = zip(texts, vectors, encoded, strict=True)
    return [TextEmbedding(text, vector, warnings) for text, vector, (_, warnings) in rows]


def _encode(model: Model, ids: list[int], tokenizer: Tokenizer) -> tuple[list[int], tuple[str, ...]]:
    """Add the special tokens the model was trained with and truncate; returns the ids and a warning, if any."""
    config = model.config
    if config.family == "word_vectors":
        known = [token for token in ids if token >= len(SPECIAL_TOKENS)]
        return known, () if known else ("no word is in the vocabulary: the vector is zero",)
    wrap = _wrapper(config.family, tokenizer)
    max_length = getattr(config, "max_length", None)
    limit = len(ids) if max_length is None else max(1, max_length - len(wrap([])))
    if len(ids) > limit:
        return wrap(ids[:limit]), (f"truncated to the first {limit:,} of {len(ids):,} tokens, this model's maximum",)
    return wrap(ids), () if ids else ("the text is empty",)


def embedding_row(model: Model, tokenizer: Tokenizer, text: str) -> TokenRow:
    """The tokens of a text as the model reads them to embed it."""
    ids, _ = _encode(model, tokenizer.encode([text])[0], tokenizer)
    spans = iter(tokenizer.spans(text))
    if model.config.family == "word_vectors":
        return build_row(text, [span for span in spans if span.token >= len(SPECIAL_TOKENS)], tokenizer, "words")
    before = ids[:1] if model.config.family == "encoder" else []
    after = ids[-1:] if model.config.family == "encoder" or model.config.family.endswith("encoder_decoder") else []
    kept = [next(spans) for _ in range(len(ids) - len(before) - len(after))]
    return build_row(text, [*before, *kept, *after], tokenizer, "words")


def _wrapper(family: str, tokenizer: Tokenizer) -> Callable[[list[int]], list[int]]:
    if family == "encoder":
        return SpecialTokenTemplate.from_tokenizer(tokenizer).wrap
    end = [END] if family.endswith("encoder_decoder") else []
    return lambda ids: [*ids, *end]


@torch.inference_mode()
def _mean_states(model: Model, sequences: Sequence[list[int]]) -> Vectors:
    tokens, lengths = pad_sequences(sequences, device=model.device)
    # An empty sequence passes the model as one PAD token; its mean is over no token, so it is zero.
    means = require_finite(mean_pool(hidden_states(model, tokens, lengths.clamp(min=1)), lengths))
    vectors: Vectors = means.float().cpu().numpy()
    return vectors


def hidden_states(
    model: Model, tokens: Int[Tensor, "batch tokens"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch tokens width"]:
    """Compute the hidden state of each token by a model of any family; an encoder-decoder's encoder states."""
    match model:
        case Encoder():
            return model.states(tokens, lengths)
        case Decoder() | RecurrentDecoder():
            return model.states(tokens)
        case EncoderDecoder():
            return model.encode(tokens, lengths).states
        case RecurrentEncoderDecoder():
            memory = model.start(tokens, lengths).memory
            assert memory is not None, "a state of an encoded source has a memory"
            return memory
        case WordVectors():
            return model.forward(tokens)


def cosine_similarities(vectors: Vectors, other: Vectors) -> Vectors:
    """u·v / (|u||v|) of each row u with v; 0 where either is zero        E2"""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(other)
    cosines: Vectors = np.divide(vectors @ other, norms, out=np.zeros_like(norms), where=norms > 0)
    return np.clip(cosines, -1.0, 1.0)
