"""What stands around every search, whatever is answered: windows of a stream, rules from options, words from tokens.

A stream is taken in windows. Inside a window texts of like length share batches; the first window is small, so that
the first answers come soon, and later ones grow, so that the rest comes fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import isnan
from typing import TypeVar

from heedful.generation.decoding_config import DecodingConfig
from heedful.generation.results import ScoredWord
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.stop_strings import StringAutomaton
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import Unit, words_from_tokens, word_probabilities

FIRST_BATCH, LARGEST_BATCH = 16, 1024
Search = Callable[..., list[list[Hypothesis]]]
"""`translate_ids` or `generate_ids` with a model and all options but those that differ from text to text."""
ProgressCallback = Callable[[int], object]
Text = TypeVar("Text")


def ignore_progress(done: int) -> None:
    """Nobody wants to know how far it is."""


def stream_batches(texts: Iterable[Text | None], first: int = FIRST_BATCH, largest: int = LARGEST_BATCH) -> Iterator[list[Text]]:
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
                window, size = [], min(2 * size, largest)
    except Exception as error:
        trouble = error
    if window:
        yield window
    if trouble is not None:
        raise trouble


def make_rules(decoding: DecodingConfig, tokenizer: Tokenizer, vocabulary: int) -> LogitsRules:
    """The rules that the options ask for, over a model's vocabulary."""
    patterns = None
    if decoding.stop or decoding.forbidden:
        spellings = tokenizer.token_bytes(range(len(tokenizer)))
        patterns = StringAutomaton(spellings, stop=decoding.stop, forbidden=decoding.forbidden, vocabulary=vocabulary)
    return LogitsRules(decoding.min_length, decoding.repetition_penalty, patterns)


def hypothesis_words(found: Hypothesis, tokenizer: Tokenizer, unit: Unit = "words") -> tuple[ScoredWord, ...]:
    """The words that were written, with their probabilities; none where the engine does not tell."""
    if any(map(isnan, found.token_log_probabilities)):
        return ()
    cut = words_from_tokens(found.tokens, tokenizer, unit)
    return tuple(ScoredWord(*word) for word in word_probabilities(cut, found.token_log_probabilities))
