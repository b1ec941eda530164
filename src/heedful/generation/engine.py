"""Many texts through one model: cut to what it can read, searched in batches, put together again, in order.

A stream is taken in windows. Inside a window texts of like length share batches; the first window is small, so that
the first answers come soon, and later ones grow, so that the rest comes fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from heedful.errors import UsageError
from heedful.generation.answers import Continuation, Translation, Word
from heedful.generation.options import Decoding
from heedful.generation.patterns import Patterns
from heedful.generation.rules import Rules
from heedful.generation.search import Hypothesis
from heedful.generation.spelling import spelt, until
from heedful.text.sentences import Piece, rejoin, split
from heedful.text.special import UNKNOWN
from heedful.text.tokenizer import Tokenizer
from heedful.text.words import Unit, cut_tokens, word_probabilities, words_of

FIRST_WINDOW, WINDOW = 16, 1024
Search = Callable[..., list[list[Hypothesis]]]
"""`translate_ids` or `generate_ids` with a model and all options but those that differ from text to text."""
Progress = Callable[[int], object]


def windows(texts: Iterable[str | None], first: int = FIRST_WINDOW, most: int = WINDOW) -> Iterator[list[str]]:
    """Texts in stretches that double in size. None says that no more are waiting: what is there goes at once.

    If the texts cannot be read on, those before are handed over before the reason is told.
    """
    window: list[str] = []
    size, trouble = first, None
    try:
        for text in texts:
            if text is not None:
                window.append(text)
            if window and (text is None or len(window) >= size):
                yield window
                window, size = [], min(2 * size, most)
    except Exception as error:
        trouble = error
    if window:
        yield window
    if trouble is not None:
        raise trouble


class Found(NamedTuple):
    """A text, the pieces it was read in, and what was found for each piece that is more than blanks."""

    source: str
    pieces: list[Piece]
    hypotheses: list[list[Hypothesis]]
    unknown: int
    """Tokens of it that the model has never seen."""
    tokens: int


@dataclass(frozen=True)
class Translator:
    """Texts to translations, by any way to search. `reach` is how many tokens the model can read at once."""

    search: Search
    tokenizers: tuple[Tokenizer, ...]
    decoding: Decoding
    reach: int
    unit: Unit = "words"
    """What its words are."""
    trust: Callable[[float], float] = float
    """From the probability a model gives a word to how often such words are right."""

    def texts(self, window: Sequence[str], progress: Progress = lambda _: None) -> list[str]:
        """The best translations alone."""
        return [self._joined(found) for found in self._find(window, progress)]

    def translations(self, window: Sequence[str], progress: Progress = lambda _: None) -> list[Translation]:
        """The translations with all that is known of them."""
        return [self._translation(found) for found in self._find(window, progress)]

    def _find(self, window: Sequence[str], progress: Progress) -> Iterator[Found]:
        whole = self.tokenizers[0].encode(window)
        pieces = [self._pieces(text, len(ids) + 1) for text, ids in zip(window, whole, strict=True)]
        cut = [piece.text for parts in pieces if len(parts) > 1 for piece in parts if piece.text]
        sources = iter(self.tokenizers[0].encode(cut))
        read = [
            [ids] if len(parts) == 1 else [next(sources) for piece in parts if piece.text]
            for parts, ids in zip(pieces, whole, strict=True)
        ]
        prefix = self._prefix()
        prefixes = [prefix if first else [] for ids in read for first in _firsts(ids)] if prefix else None
        found = iter(self.search([ids for parts in read for ids in parts], prefixes=prefixes, progress=progress))
        for text, parts, ids in zip(window, pieces, read, strict=True):
            unknown = sum(part.count(UNKNOWN) for part in ids)
            yield Found(text, parts, [next(found) for _ in ids], unknown, sum(map(len, ids)))

    def _pieces(self, text: str, tokens: int) -> list[Piece]:
        """The text in one piece if the model can read it, in sentences if not; none if there is nothing to read."""
        if not text.strip():
            return []
        if tokens <= self.reach:
            return [Piece(text, "")]
        return split(text, limit=self.reach - 1, length=lambda part: len(self.tokenizers[0].encode([part])[0]))

    def _prefix(self) -> list[int]:
        wanted = self.decoding.prefix
        ids = self.tokenizers[-1].encode([wanted])[0] if wanted else []
        if wanted and self.tokenizers[-1].decode([ids]) != [wanted]:
            raise UsageError(f"this model's vocabulary cannot write the prefix {wanted!r}")
        return ids

    def _text(self, hypothesis: Hypothesis) -> str:
        return "".join(until(self.tokenizers[-1].decode([hypothesis.tokens]), self.decoding.stop))

    def _joined(self, found: Found) -> str:
        texts = iter(found.hypotheses)
        return rejoin(found.pieces, [self._text(next(texts)[0]) if piece.text else "" for piece in found.pieces])

    def _translation(self, found: Found) -> Translation:
        warnings = tuple(self._warnings(found))
        if len(found.hypotheses) == 1:
            best, *rivals = (self._alone(found.source, hypothesis) for hypothesis in found.hypotheses[0])
            return replace(best, rivals=tuple(rivals), warnings=warnings)
        parts = [self._alone(found.source, best) for best, *_ in found.hypotheses]
        return Translation(
            found.source,
            self._joined(found),
            sum(part.log_probability for part in parts),
            sum(part.score for part in parts) / max(1, len(parts)),
            tuple(word for part in parts for word in part.words),
            warnings=warnings,
        )

    def _alone(self, source: str, found: Hypothesis) -> Translation:
        text = self._text(found)
        words = likely_words(found, self.tokenizers[-1], self.unit)[: len(words_of(text, self.unit))]
        trusted = tuple(replace(word, probability=self.trust(word.probability)) for word in words)
        return Translation(source, text, found.log_probability, found.score, trusted)

    def _warnings(self, found: Found) -> Iterator[str]:
        if len(found.hypotheses) > 1:
            parts = len(found.hypotheses)
            yield f"{found.tokens:,} tokens are more than the model can read at once: read in {parts:,} parts"
        if found.unknown:
            yield f"{found.unknown:,} of {found.tokens:,} tokens are unknown to the model"
        for best, *_ in found.hypotheses:
            stopped = any(stop in self.tokenizers[-1].decode([best.tokens])[0] for stop in self.decoding.stop)
            if not best.ended and not stopped:
                yield f"the translation was cut off after {len(best.tokens):,} tokens (see --max-length)"


@dataclass(frozen=True)
class Writer:
    """Prompts to continuations, by any way to search."""

    search: Search
    tokenizer: Tokenizer
    decoding: Decoding
    reach: int | None

    def continuations(self, window: Sequence[str], progress: Progress = lambda _: None) -> list[Continuation]:
        """What follows each prompt, and how likely that was."""
        read = self.tokenizer.encode(window)
        found = self.search(read, progress=progress)
        return [self._best(*parts) for parts in zip(window, read, found, strict=True)]

    def _best(self, prompt: str, ids: list[int], found: list[Hypothesis]) -> Continuation:
        best, *rivals = (self._alone(prompt, hypothesis) for hypothesis in found)
        return replace(best, rivals=tuple(rivals), warnings=tuple(prompt_warnings(ids, self.reach)))

    def _alone(self, prompt: str, found: Hypothesis) -> Continuation:
        text = "".join(until(spelt(found.tokens, self.tokenizer, after=prompt), self.decoding.stop))
        words = likely_words(found, self.tokenizer)[: len(text.split())]
        return Continuation(prompt, text, found.log_probability, found.score, words)


def make_rules(decoding: Decoding, tokenizer: Tokenizer, vocabulary: int) -> Rules:
    """The rules that the options ask for, over a model's vocabulary."""
    patterns = None
    if decoding.stop or decoding.forbidden:
        spellings = tokenizer.spellings(range(len(tokenizer)))
        patterns = Patterns(spellings, stop=decoding.stop, forbidden=decoding.forbidden, vocabulary=vocabulary)
    return Rules(decoding.min_length, decoding.repetition_penalty, patterns)


def prompt_warnings(ids: Sequence[int], reach: int | None) -> Iterator[str]:
    """What the model will not see of a prompt."""
    if reach is not None and len(ids) > reach:
        seen = max(1, reach // 2)
        yield f"the prompt has {len(ids):,} tokens and the model sees {reach:,}: it goes on from the last {seen:,}"
    if unknown := ids.count(UNKNOWN):
        yield f"{unknown:,} of the prompt's {len(ids):,} tokens are unknown to the model"


def likely_words(found: Hypothesis, tokenizer: Tokenizer, unit: Unit = "words") -> tuple[Word, ...]:
    """Words with their probabilities."""
    cut = cut_tokens(found.tokens, tokenizer, unit)
    return tuple(Word(*word) for word in word_probabilities(cut, found.token_log_probabilities))


def _firsts(parts: Sequence[object]) -> Iterator[bool]:
    yield from (place == 0 for place in range(len(parts)))
