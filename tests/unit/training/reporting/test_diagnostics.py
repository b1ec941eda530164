"""Diagnostics of a trained translator: word alignment and the pairs it is fitted on."""

from __future__ import annotations

from heedful.data.dataset import PreparedData, Split
from heedful.data.text_size import TextSize
from heedful.data.token_store import Sequences
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.training.reporting.diagnostics import sample_training_pairs, statistical_alignments

TOWNS = {"東京": "Tokyo", "札幌": "Sapporo", "大阪": "Osaka", "奈良": "Nara", "神戸": "Kobe", "福岡": "Fukuoka"}
PAIRS = [([*one, *other], [TOWNS[other], TOWNS[one]]) for one in TOWNS for other in TOWNS if one != other]


def test_characters_align_to_words_in_both_directions() -> None:
    expected = {(0, 1), (1, 1), (2, 0), (3, 0)}
    reversed_pairs = [(target, source) for source, target in PAIRS]
    assert all(links == expected for links in statistical_alignments(PAIRS, ("characters", "words")))
    for links in statistical_alignments(reversed_pairs, ("words", "characters")):
        assert links == {(target, source) for source, target in expected}


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
