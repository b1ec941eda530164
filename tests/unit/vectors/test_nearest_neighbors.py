"""Near words, analogies, and words that are not there."""

from __future__ import annotations

import numpy as np
import pytest

from heedful.errors import DataError, UsageError
from heedful.vectors.nearest_neighbors import WordTable

TABLE = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 2], [0.1, 1, 0.9], [0, 0, 0]], np.float32)
NAMES = ["paris", "france", "germany", "berlin", "house", "nothing"]


@pytest.fixture
def words() -> WordTable:
    return WordTable(NAMES, TABLE, "the table")


def test_similar_words_come_by_falling_cosine_without_the_word_itself(words: WordTable) -> None:
    found = words.similar("paris", top=3)
    assert found[0].word == "france"
    assert found[0].cosine == pytest.approx(2**-0.5)
    assert [near.cosine for near in found] == sorted((near.cosine for near in found), reverse=True)
    assert "paris" not in [near.word for near in words.similar("paris", top=100)]
    assert len(words.similar("paris", top=100)) == len(words) - 1


def test_a_cosine_is_the_same_either_way_and_1_with_itself(words: WordTable) -> None:
    assert words.cosine("paris", "france") == words.cosine("france", "paris")
    assert words.cosine("house", "house") == pytest.approx(1)
    assert words.cosine("house", "nothing") == 0


def test_an_analogy_is_one_minus_its_plus_other_and_never_one_of_the_three() -> None:
    country, capital = np.eye(8, dtype=np.float32)[:2]
    places = np.eye(8, dtype=np.float32)[2:5]
    table = np.concatenate([places + country, places + capital])
    words = WordTable(["france", "italy", "japan", "paris", "rome", "tokyo"], table)
    assert words.analogy("paris", "france", "italy", top=1)[0].word == "rome"
    assert words.analogy("japan", "tokyo", "rome", top=1)[0].word == "italy"
    assert {near.word for near in words.analogy("paris", "france", "italy", top=9)} == {"japan", "rome", "tokyo"}


def test_an_unknown_word_is_named_with_the_nearest_spelling(words: WordTable) -> None:
    with pytest.raises(UsageError, match="the table does not know 'pariss'; did you mean 'paris'"):
        words.similar("pariss")
    with pytest.raises(UsageError, match="does not know 'xyzzy'; try another word"):
        words.similar("xyzzy")


def test_a_capital_letter_finds_the_lower_case_word_unless_it_has_one_of_its_own(words: WordTable) -> None:
    assert words.similar("Paris") == words.similar("paris")
    own = WordTable(["us", "US"], np.eye(2, dtype=np.float32))
    assert (own.find_index("US"), own.find_index("us"), own.find_index("Us")) == (1, 0, 0)


def test_a_table_without_words_is_refused() -> None:
    with pytest.raises(DataError, match="holds no words"):
        WordTable([], np.empty((0, 3), np.float32))
