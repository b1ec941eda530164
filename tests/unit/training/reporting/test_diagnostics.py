"""What is found out at the end: from which text, and in which direction."""

from __future__ import annotations

import pytest

from heedful.data.dataset_preparation import PreparedData, Split
from heedful.data.token_store import Sequences
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.training.reporting import diagnostics as findings
from heedful.training.reporting.diagnostics import statistical_alignments, sample_training_pairs

TOWNS = {"東京": "Tokyo", "札幌": "Sapporo", "大阪": "Osaka", "奈良": "Nara", "神戸": "Kobe", "福岡": "Fukuoka"}
PAIRS = [([*one, *other], [TOWNS[other], TOWNS[one]]) for one in TOWNS for other in TOWNS if one != other]


def test_many_characters_find_their_one_word_on_either_side() -> None:
    expected = {(0, 1), (1, 1), (2, 0), (3, 0)}
    turned = [(target, source) for source, target in PAIRS]
    assert all(links == expected for links in statistical_alignments(PAIRS, ("characters", "words")))
    for links in statistical_alignments(turned, ("words", "characters")):
        assert links == {(target, source) for source, target in expected}


def test_training_pairs_come_from_all_over_and_no_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"a{number} b" for number in range(100)]
    tokenizer = Tokenizer.train(texts, TokenizerConfig(kind="characters", vocabulary=50))
    side = Sequences.from_lists(tokenizer.encode(texts))
    split = Split((side, side), 100, 200, 500)
    data = PreparedData((tokenizer,), split, split, {}, {})
    assert sample_training_pairs(data, ("words", "characters"), cells=6.0)[7] == (["a7", "b"], ["a", "7", "b"])
    monkeypatch.setattr(findings, "CELLS", 60)
    chosen = [source[0] for source, _ in sample_training_pairs(data, ("words", "words"), cells=6.0)]
    assert len(chosen) == 10
    assert (chosen[0], chosen[-1]) == ("a0", "a99")
