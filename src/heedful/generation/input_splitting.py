"""Split long inputs into segments like those that a model was trained on.

A model trained on single sentences, as most parallel text is, does worse on two at once; one trained on paragraphs does
worse without them. Statistics of the training text are stored in the model folder when training ends. For a model
without this file (an imported one) only inputs longer than its maximum length are split.
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
"""Below this share of training texts with several sentences, inputs are split into single sentences; not 0,
because one sentence may look like two: "10 дек. 2013 г." is a date."""
DEFAULT_MAX_TOKENS = 256
"""Maximum input tokens of a model whose configuration has no maximum length."""


class InputSplitting(Config):
    """Statistics of the sources that a model was trained on, which determine how inputs are split."""

    max_tokens: PositiveInt
    """1.5 times the 99.9th percentile of the source lengths."""
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
    """The splitting for a model without statistics: only texts longer than its maximum length are split."""
    return InputSplitting(max_tokens=max_input_tokens(config), multi_sentence_share=1.0)


def max_input_tokens(config: Any) -> int:
    """Maximum input tokens of a model, END not counted; recurrent models use a default."""
    return max(1, getattr(config, "max_length", DEFAULT_MAX_TOKENS + 1) - 1)
