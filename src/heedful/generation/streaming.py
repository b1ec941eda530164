"""What stands around every search, whatever is answered: windows of a stream, rules from options, words from tokens.

A stream is taken in windows. Inside a window texts of like length share batches; the first window is small, so that
the first answers come soon, and later ones grow, so that the rest comes fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import isnan
from typing import TypeVar

from heedful.generation.decoding_config import Decoding
from heedful.generation.results import Word
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.logits_rules import Rules
from heedful.generation.search.stop_strings import Patterns
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import Unit, cut_tokens, word_probabilities

FIRST_WINDOW, WINDOW = 16, 1024
Search = Callable[..., list[list[Hypothesis]]]
"""`translate_ids` or `generate_ids` with a model and all options but those that differ from text to text."""
Progress = Callable[[int], object]
Text = TypeVar("Text")


def unwatched(done: int) -> None:
    """Nobody wants to know how far it is."""


def windows(texts: Iterable[Text | None], first: int = FIRST_WINDOW, most: int = WINDOW) -> Iterator[list[Text]]:
    """Texts in stretches that double in size. None says that no more are waiting: what is there goes at once.

    If the texts cannot be read on, those before are handed over before the reason is told.
    """
    window: list[Text] = []
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


def make_rules(decoding: Decoding, tokenizer: Tokenizer, vocabulary: int) -> Rules:
    """The rules that the options ask for, over a model's vocabulary."""
    patterns = None
    if decoding.stop or decoding.forbidden:
        spellings = tokenizer.spellings(range(len(tokenizer)))
        patterns = Patterns(spellings, stop=decoding.stop, forbidden=decoding.forbidden, vocabulary=vocabulary)
    return Rules(decoding.min_length, decoding.repetition_penalty, patterns)


def likely_words(found: Hypothesis, tokenizer: Tokenizer, unit: Unit = "words") -> tuple[Word, ...]:
    """The words that were written, with their probabilities; none where the engine does not tell."""
    if any(map(isnan, found.token_log_probabilities)):
        return ()
    cut = cut_tokens(found.tokens, tokenizer, unit)
    return tuple(Word(*word) for word in word_probabilities(cut, found.token_log_probabilities))
