"""Diagnostics of a trained translator: word alignment and the pairs it is fitted on."""

from __future__ import annotations

from heedful.data.dataset import PreparedData, Split
from heedful.data.text_size import TextSize
from heedful.data.token_store import Sequences
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.training.reporting.translator_calibration import sample_training_pairs


def test_a_limited_number_of_training_pairs_is_evenly_spaced() -> None:
    texts = [f"a{number} b" for number in range(100)]
    tokenizer = Tokenizer.train(texts, TokenizerConfig(kind="characters", vocabulary=50))
    side = Sequences.from_lists(tokenizer.encode(texts))
    split = Split((side, side), 100, TextSize(200, 400, 500))
    data = PreparedData((tokenizer,), split, split, {}, {})
    assert sample_training_pairs(data, ("words", "characters"), 1000)[7] == (["a7", "b"], ["a", "7", "b"])
    chosen = [source[0] for source, _ in sample_training_pairs(data, ("words", "words"), 10)]
    assert len(chosen) == 10
    assert (chosen[0], chosen[-1]) == ("a0", "a99")
