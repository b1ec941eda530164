"""Subword regularization: segment the same text differently each time it is seen.

A model that always reads "walking" as one token learns nothing about "walk" from it. BPE-dropout (Provilkov 2020) skips
merges at random while text is encoded. Here encoded tokens are split at random instead: a pure function of ids and a
generator, so text is tokenized once and a run can be repeated (the library's dropout cannot be seeded). Unlike in the
paper, a token only splits into the pieces it was merged from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import UsageError
from heedful.text.tokenizer import Tokenizer

Ids = NDArray[np.integer[Any]]


class SubwordSplits:
    """For every token the pair of tokens it can be split into.

    For BPE this is the pair it was merged from. WordPiece and unigram store no merges: of all pairs in the vocabulary,
    unigram takes the most probable, WordPiece the one whose later piece was trained first. Word, character and special
    tokens are never split.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        described = json.loads(tokenizer.to_json())
        added = {token["content"] for token in described["added_tokens"]}
        self.pairs = np.full((len(tokenizer), 2), -1, dtype=np.int32)
        """One row per id: the ids of its two parts, or -1 twice."""
        for token, left, right in _splits(described["model"], added):
            if self.pairs[token, 0] < 0:  # two merges can produce one token: the encoder uses the earlier
                self.pairs[token] = left, right

    def split(self, ids: Ids, probability: float, generator: np.random.Generator) -> tuple[Ids, NDArray[np.int64]]:
        """Replace each token by its two parts with this probability, and recursively each part by its own.

        Also returns how many tokens each one became. The decoded text does not change. 0 changes nothing; 1 leaves only
        tokens that cannot be split.
        """
        if not 0 <= probability <= 1:
            raise UsageError(f"the probability must lie between 0 and 1, got {probability}")
        ids = np.asarray(ids)
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self.pairs):
            raise UsageError(f"token ids go from 0 to {len(self.pairs) - 1}, got {ids.min()} to {ids.max()}")
        return self._split(ids, probability, generator)

    def _split(self, ids: Ids, probability: float, generator: np.random.Generator) -> tuple[Ids, NDArray[np.int64]]:
        chosen = np.flatnonzero(generator.random(len(ids), dtype=np.float32) < probability)
        parts = self.pairs[ids[chosen]]
        splittable = parts[:, 0] >= 0
        chosen, parts = chosen[splittable], parts[splittable]
        counts = np.ones(len(ids), dtype=np.int64)
        if not len(chosen):
            return ids.copy(), counts
        sub_ids, sub_counts = self._split(parts.ravel().astype(ids.dtype), probability, generator)
        counts[chosen] = sub_counts[0::2] + sub_counts[1::2]
        result = np.repeat(ids, counts)
        result[np.repeat(counts > 1, counts)] = sub_ids
        return result, counts


def _splits(model: dict[str, Any], added: set[str]) -> Iterator[tuple[int, int, int]]:
    """Yield (token, left, right) for each token that can be split; `added` (special) tokens are excluded."""
    prefix = model.get("continuing_subword_prefix") or ""
    match model["type"]:
        case "BPE":
            ids = model["vocab"]
            for left, right in model["merges"]:
                token = left + right.removeprefix(prefix)
                if added.isdisjoint((token, left, right)):
                    yield ids[token], ids[left], ids[right]
        case "WordPiece":
            ids = {token: index for token, index in model["vocab"].items() if token not in added}
            yield from _best_splits(ids, lambda left, right: -max(ids[left], ids[right]), prefix)
        case "Unigram":
            scores = dict(model["vocab"])
            ids = {token: index for index, (token, _) in enumerate(model["vocab"]) if token not in added}
            ids = {token: index for token, index in ids.items() if not re.fullmatch("<0x[0-9A-F]{2}>", token)}
            yield from _best_splits(ids, lambda left, right: scores[left] + scores[right], prefix)


def _best_splits(
    ids: Mapping[str, int], score: Callable[[str, str], float], prefix: str
) -> Iterator[tuple[int, int, int]]:
    for token, index in ids.items():
        first = len(prefix) + 1 if token.startswith(prefix) else 1
        splits = [(token[:split], prefix + token[split:]) for split in range(first, len(token))]
        splits = [(left, right) for left, right in splits if left in ids and right in ids]
        if splits:
            left, right = max(splits, key=lambda split: score(*split))
            yield index, ids[left], ids[right]
