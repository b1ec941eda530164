"""The tokenizer sacreBLEU splits texts with, chosen by the script of the references.

BLEU counts matching words, so text without spaces needs a tokenizer of its own: under the default one ("13a") a
Japanese sentence is a single word, and BLEU is 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from heedful.data.unicode_scripts import SCRIPTS, UNSPACED_SCRIPTS, scripts_of
from heedful.errors import UsageError, nearest

BleuTokenizerName = Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200"]
NAMES: tuple[str, ...] = get_args(BleuTokenizerName)
EXTRAS = {
    "ja-mecab": "pip install 'heedful[ja]'",
    "ko-mecab": "pip install 'heedful[ko]'",
}
"""How to install the tokenizers that this package has an extra for."""
KANA = re.compile("[\u3041-\u30ff]")
MIN_KANA_SHARE = 0.05
"""Japanese mixes kana with Han characters; Chinese has next to none."""


class BleuTokenizer(NamedTuple):
    """A tokenizer of sacreBLEU, and why it is not the one that the script asks for."""

    name: str
    note: str = ""


def choose_bleu_tokenizer(references: Sequence[str], requested: str = "auto") -> BleuTokenizer:
    """The requested tokenizer, or the one for the script of the references; characters where that is not installed."""
    if requested not in NAMES:
        raise UsageError(f"unknown BLEU tokenizer '{requested}'; {nearest(requested, NAMES)}")
    name = requested if requested != "auto" else tokenizer_of_script(references)
    if not (problem := unavailable(name)):
        return BleuTokenizer(name)
    if requested != "auto":
        raise UsageError(f"the BLEU tokenizer '{name}' is not installed: {EXTRAS.get(name, problem)}")
    return BleuTokenizer("char", f"the BLEU tokenizer {name} is not installed, so characters count: {EXTRAS[name]}")


def tokenizer_of_script(references: Sequence[str]) -> str:
    """The tokenizer that suits the script most references are in."""
    scripts = scripts_of(list(references), np.array([len(text) for text in references], np.int64))
    counts = np.bincount(scripts, minlength=len(SCRIPTS))
    script = SCRIPTS[1 + int(counts[1:].argmax())]
    if script == "Han or kana":
        joined = "".join(references)
        return "ja-mecab" if len(KANA.findall(joined)) > MIN_KANA_SHARE * len(joined) else "zh"
    return "ko-mecab" if script == "Hangul" else "char" if script in UNSPACED_SCRIPTS else "13a"


@cache
def unavailable(name: str) -> str:
    """Why sacreBLEU cannot use this tokenizer here; empty if it can."""
    try:
        make_bleu(name)
    except (ImportError, OSError, RuntimeError) as error:  # a missing package, or a model that cannot be downloaded
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def make_bleu(tokenizer: str, **options: Any) -> Any:
    """sacreBLEU's metric with this tokenizer."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=tokenizer, **options)
