"""The tokenizer sacreBLEU splits texts with, chosen by the script of the references.

BLEU counts matching words, so text without spaces needs a tokenizer of its own: under the default one ("13a") a
Japanese sentence is a single word, and BLEU is 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

from heedful.data.unicode_scripts import UNSPACED_SCRIPTS, script_of
from heedful.errors import UsageError, nearest

BleuTokenizerName = Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200"]
NAMES: tuple[str, ...] = get_args(BleuTokenizerName)
EXTRAS = {
    "ja-mecab": "pip install 'heedful[ja]'",
    "ko-mecab": "pip install 'heedful[ko]'",
}
"""The pip command for tokenizers with an optional extra of this package."""
KANA = re.compile("[\u3041-\u30ff]")
MIN_KANA_SHARE = 0.05
"""Japanese mixes kana with Han characters; Chinese has next to none."""


class BleuTokenizer(NamedTuple):
    """A sacreBLEU tokenizer, and a note if it is not the one that fits the script of the references."""

    name: str
    note: str = ""


def choose_bleu_tokenizer(
    references: Sequence[str], requested: str = "auto", trained: str | None = None
) -> BleuTokenizer:
    """The requested tokenizer, else that of the model's training text, else the one for the script of the references.

    Falls back to characters if it is not installed. The larger training text tells kanji without kana from Chinese.
    """
    if requested not in NAMES:
        raise UsageError(f"unknown BLEU tokenizer '{requested}'; {nearest(str(requested), NAMES)}")
    by_script = tokenizer_of_script(references)
    name = (trained or by_script) if requested == "auto" else requested
    if not (problem := unavailable(name)):
        remembered = requested == "auto" and name != by_script
        note = f"BLEU of {name} tokens, as in training; the script of these references suggests {by_script}"
        return BleuTokenizer(name, note if remembered else "")
    if requested != "auto":
        raise UsageError(f"the BLEU tokenizer '{name}' is not installed: {EXTRAS.get(name, problem)}")
    return BleuTokenizer("char", f"the BLEU tokenizer {name} is not installed, so characters count: {EXTRAS[name]}")


def tokenizer_of_script(references: Sequence[str]) -> str:
    """The tokenizer for the most frequent script of the references."""
    script = script_of(list(references))
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
