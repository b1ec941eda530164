"""Rules that describe attention heads: each rule selects some tokens for every query.

A rule's share is the attention weight that a head puts on those tokens, averaged over all queries to which the rule
applies (those for which it selects at least one token that the head may read). Its chance is the share of a head with
uniform attention. Compare Voita 2019, section 4, and Clark 2019, section 3.

    previous token    the token before the query's; in a decoder's self-attention, the one read before
    next token        the token after the query's, where no causal mask hides it
    same position     the query's own token; in cross-attention, the source token of the same number
    delimiter         special tokens (START, END …) and tokens without a letter or digit
    same token        tokens equal to the query's, at other positions; in cross-attention, equal to the one written
    alignment         source tokens of the words that a statistical aligner links to the word being written
    alignment, read   the same for the word that the decoder has just read
    rare word         the rarest token of the text, by its frequency in all texts of the census

A head's role is the rule with the largest excess over chance, (share − chance) / (1 − chance), if that is at least
`MIN_EXCESS`. Otherwise a head whose weights are nearly even (entropy at least `UNIFORM_ENTROPY` of its maximum) is
called uniform, and any other mixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heedful.inspection.look_result import AttentionKind
from heedful.text.token_rows import TokenRow

MIN_EXCESS = 0.3
UNIFORM_ENTROPY = 0.9
UNIFORM, MIXED = "uniform", "mixed"

Table = npt.NDArray[np.bool_]
"""Queries × keys: the tokens that a rule selects."""


@dataclass(frozen=True)
class AttendedTexts:
    """The tokens of one attention, as the rules read them: the queries' and the keys'."""

    queries: TokenRow
    keys: TokenRow
    kind: AttentionKind
    frequencies: Counter[str]
    """Number of occurrences of each key token in all texts."""
    links: frozenset[tuple[int, int]] = frozenset()
    """Cross-attention: linked words of source and target."""

    @property
    def is_cross(self) -> bool:
        return self.kind == "cross"

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.queries), len(self.keys)

    @property
    def written(self) -> list[str]:
        """The token that each query of a decoder predicts; none for the last."""
        return [*self.queries.pieces[1:], ""]


def previous_token(texts: AttendedTexts) -> Table | None:
    """Self-attention: the token before the query's."""
    return None if texts.is_cross else np.eye(*texts.shape, k=-1, dtype=bool)


def next_token(texts: AttendedTexts) -> Table | None:
    """Self-attention: the token after the query's."""
    return None if texts.is_cross else np.eye(*texts.shape, k=1, dtype=bool)


def same_position(texts: AttendedTexts) -> Table | None:
    """The token at the query's own position."""
    return np.eye(*texts.shape, dtype=bool)


def delimiter(texts: AttendedTexts) -> Table | None:
    """Special tokens, and tokens without a letter or digit."""
    row = zip(texts.keys.pieces, texts.keys.spans, strict=True)
    is_delimiter = [span is None or not any(map(str.isalnum, piece)) for piece, span in row]
    return np.broadcast_to(is_delimiter, texts.shape)


def same_token(texts: AttendedTexts) -> Table | None:
    """Tokens equal to the query's at other positions; in cross-attention, equal to the one being written."""
    queries = np.array(texts.written if texts.is_cross else texts.queries.pieces, dtype=object)
    equal: Table = queries[:, None] == np.array(texts.keys.pieces, dtype=object)
    return equal if texts.is_cross else equal & ~np.eye(*texts.shape, dtype=bool)


def alignment(texts: AttendedTexts) -> Table | None:
    """Cross-attention: source tokens aligned with the word being written."""
    ranges = texts.queries.word_ranges
    return _linked(texts, [*ranges[1:], range(0)]) if texts.is_cross and texts.links else None


def alignment_read(texts: AttendedTexts) -> Table | None:
    """Cross-attention: source tokens aligned with the word that the decoder has just read."""
    return _linked(texts, texts.queries.word_ranges) if texts.is_cross and texts.links else None


def rare_word(texts: AttendedTexts) -> Table | None:
    """The rarest token of the text, if there is a single one."""
    row = zip(texts.keys.pieces, texts.keys.spans, strict=True)
    counts = np.array([np.inf if span is None else texts.frequencies[piece] for piece, span in row])
    if not len(counts) or not np.isfinite(counts.min()):
        return None
    rarest = counts == counts.min()
    return np.broadcast_to(rarest if rarest.sum() == 1 else np.zeros_like(rarest), texts.shape)


RULES: dict[str, Callable[[AttendedTexts], Table | None]] = {
    "previous token": previous_token,
    "next token": next_token,
    "same position": same_position,
    "delimiter": delimiter,
    "same token": same_token,
    "alignment": alignment,
    "alignment, read": alignment_read,
    "rare word": rare_word,
}

ALIGNMENT_RULES = ("alignment", "alignment, read")


def role_of(shares: dict[str, float], chances: dict[str, float], entropy: float) -> str:
    """The role of a head by its shares, as the module's docstring defines it."""
    best = max(shares, key=lambda rule: _excess(shares[rule], chances[rule]), default=None)
    if best is not None and _excess(shares[best], chances[best]) >= MIN_EXCESS:
        return best
    return UNIFORM if entropy >= UNIFORM_ENTROPY else MIXED


def _excess(share: float, chance: float) -> float:
    return (share - chance) / max(1e-9, 1 - chance)


def _linked(texts: AttendedTexts, words: Sequence[range]) -> Table:
    """The source tokens of the words linked to each query's words."""
    table = np.zeros(texts.shape, dtype=bool)
    for query, targets in enumerate(words):
        for source in _linked_sources(texts, targets):
            table[query, texts.keys.tokens_of_word(source)] = True
    return table


def _linked_sources(texts: AttendedTexts, targets: range) -> Iterator[int]:
    return (source for source, target in texts.links if target in targets)
