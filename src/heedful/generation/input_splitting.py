"""Splitting long inputs as a model was trained to read them.

A model trained on single sentences, as most parallel text is, does worse on two at once; one trained on paragraphs does
worse without them. What it was trained on is measured when training ends and stored in the model folder. For a model
without this file (an imported one) only what exceeds its positions is split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from heedful.config import Config
from heedful.text.protected_spans import find_protected_spans
from heedful.text.sentence_splitter import TextSegment, split_sentences
from heedful.text.tokenizer import Tokenizer

SINGLE_SENTENCE_SHARE = 0.01
"""Below this share of texts with several sentences, a model counts as one for single sentences.

Above it the model has seen enough of them; and what looks like two may be one: "10 дек. 2013 г." is a date."""
DEFAULT_MAX_TOKENS = 256
"""Input tokens of a model whose configuration has no maximum length."""


class InputSplitting(Config):
    """Statistics of the sources that a model was trained on, and the splitting that follows from them."""

    max_tokens: PositiveInt
    """1.5 times the length that all but one source in a thousand had."""
    multi_sentence_share: float = Field(ge=0.0, le=1.0)
    """The share of sources with more than one sentence."""

    @classmethod
    def measure(cls, lengths: NDArray[Any], texts: Sequence[str], config: Any) -> InputSplitting:
        """Measure from the token counts of all sources, a sample of the sources, and the model's configuration.

        Inputs longer than those of training degrade gradually, but a sentence split in two is worse at once.
        """
        share = sum(len(split_sentences(text)) > 1 for text in texts) / max(1, len(texts))
        max_tokens = math.ceil(1.5 * float(np.quantile(lengths, 0.999, method="higher")))
        return cls(max_tokens=max(1, min(max_tokens, max_input_tokens(config))), multi_sentence_share=round(share, 4))

    def split(self, text: str, tokenizer: Tokenizer) -> list[TextSegment]:
        """Split a text into segments to translate separately; placeholders and tags are never split."""

        def length(part: str) -> int:
            upper_bound = len(part.encode()) + 1  # a token has at least one byte, except a space before the text
            return upper_bound if upper_bound <= self.max_tokens else len(tokenizer.encode([part])[0])

        return split_sentences(
            text,
            limit=self.max_tokens,
            length=length,
            one_per_segment=self.multi_sentence_share < SINGLE_SENTENCE_SHARE,
            protected=[(span.start, span.end) for span in find_protected_spans(text)],
        )


def default_input_splitting(config: Any) -> InputSplitting:
    """For a model without statistics: whole texts, as long as its positions allow."""
    return InputSplitting(max_tokens=max_input_tokens(config), multi_sentence_share=1.0)


def max_input_tokens(config: Any) -> int:
    """Tokens that a model can read at once, END not counted; a recurrent model has no maximum of its own."""
    return max(1, getattr(config, "max_length", DEFAULT_MAX_TOKENS + 1) - 1)
