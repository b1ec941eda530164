"""Nearest neighbors, analogies and unknown words."""

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


def test_similar_words_are_sorted_by_cosine_without_the_query(words: WordTable) -> None:
    neighbors = words.similar("paris", top=3)
    assert neighbors[0].word == "france"
    assert neighbors[0].cosine == pytest.approx(2**-0.5)
    assert [neighbor.cosine for neighbor in neighbors] == sorted(
        (neighbor.cosine for neighbor in neighbors), reverse=True
    )
    assert "paris" not in [neighbor.word for neighbor in words.similar("paris", top=100)]
    assert len(words.similar("paris", top=100)) == len(words) - 1


def test_cosine_is_symmetric_and_1_with_itself(words: WordTable) -> None:
    assert words.cosine("paris", "france") == words.cosine("france", "paris")
    assert words.cosine("house", "house") == pytest.approx(1)
    assert words.cosine("house", "nothing") == 0


def test_analogy_excludes_the_three_query_words() -> None:
    country, capital = np.eye(8, dtype=np.float32)[:2]
    cities = np.eye(8, dtype=np.float32)[2:5]
    table = np.concatenate([cities + country, cities + capital])
    words = WordTable(["france", "italy", "japan", "paris", "rome", "tokyo"], table)
    assert words.analogy("paris", "france", "italy", top=1)[0].word == "rome"
    assert words.analogy("japan", "tokyo", "rome", top=1)[0].word == "italy"
    assert {neighbor.word for neighbor in words.analogy("paris", "france", "italy", top=9)} == {
        "japan",
        "rome",
        "tokyo",
    }


def test_unknown_word_error_suggests_the_nearest_spelling(words: WordTable) -> None:
    with pytest.raises(UsageError, match="the table does not know 'pariss'; did you mean 'paris'"):
        words.similar("pariss")
    with pytest.raises(UsageError, match="does not know 'xyzzy'; try another word"):
        words.similar("xyzzy")


def test_lookup_falls_back_to_lower_case(words: WordTable) -> None:
    assert words.similar("Paris") == words.similar("paris")
    cased = WordTable(["us", "US"], np.eye(2, dtype=np.float32))
    assert (cased.find_index("US"), cased.find_index("us"), cased.find_index("Us")) == (1, 0, 0)


def test_empty_table_is_refused() -> None:
    with pytest.raises(DataError, match="holds no words"):
        WordTable([], np.empty((0, 3), np.float32))
