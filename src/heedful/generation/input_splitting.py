"""How a long text is best read to a model: as it was trained to read.

One trained on single sentences (most parallel text is so) does worse on two at once, and one trained on paragraphs
does worse without them. Which it was is measured when training ends and stored in the model folder. Of a model that
came without this (an imported one), only what exceeds its positions is cut.
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

FILE = "input_splitting.json"
SINGLE_SENTENCE_SHARE = 0.01
"""With fewer texts of several sentences than this share, a model counts as one for single sentences. What it has seen
more often it can read; and what looks like two sentences may be none: "10 дек. 2013 г." is a date."""
DEFAULT_MAX_TOKENS = 256
"""Tokens to read at once to a model whose configuration names no length."""


class InputSplitting(Config):
    """What the sources were like that a model was trained on."""

    max_tokens: PositiveInt
    """Tokens it reads well at once: half as many again as all but one source in a thousand had."""
    multi_sentence_share: float = Field(ge=0.0, le=1.0)
    """The share of sources with more than one sentence."""

    @classmethod
    def measure(cls, lengths: NDArray[Any], texts: Sequence[str], config: Any) -> InputSplitting:
        """From the tokens of every source, some of the sources themselves, and the model's configuration.

        Beyond what it was trained on a model grows worse by degrees, but a sentence cut in two is worse at once.
        """
        several = sum(len(split_sentences(text)) > 1 for text in texts) / max(1, len(texts))
        usual = math.ceil(1.5 * float(np.quantile(lengths, 0.999, method="higher")))
        return cls(longest=max(1, min(usual, max_input_tokens(config))), several=round(several, 4))

    def split(self, text: str, tokenizer: Tokenizer) -> list[TextSegment]:
        """The text in parts to be translated one by one; placeholders and tags stay whole."""

        def length(part: str) -> int:
            at_most = len(part.encode()) + 1  # a token is a byte at least, but for a blank put before the text
            return at_most if at_most <= self.max_tokens else len(tokenizer.encode([part])[0])

        whole = [(kept.start, kept.end) for kept in find_protected_spans(text)]
        return split_sentences(
            text,
            limit=self.max_tokens,
            length=length,
            one_per_segment=self.multi_sentence_share < SINGLE_SENTENCE_SHARE,
            protected=whole,
        )


def default_input_splitting(config: Any) -> InputSplitting:
    """For a model that came without: whole texts, as long as its positions go."""
    return InputSplitting(max_tokens=max_input_tokens(config), multi_sentence_share=1.0)


def max_input_tokens(config: Any) -> int:
    """What a model can be trusted with, END not counted; a recurrent one names no length."""
    return max(1, getattr(config, "max_length", DEFAULT_MAX_TOKENS + 1) - 1)
