"""Word vector benchmarks: scores, coverage and unusable files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heedful.errors import DataError
from heedful.evaluation.word_vector_benchmarks import evaluate_word_vectors, read_benchmark, spearman
from heedful.vectors.nearest_neighbors import WordTable

country, capital, *cities = np.eye(8, dtype=np.float32)
NAMES = ["france", "italy", "japan", "paris", "rome", "tokyo"]
WORDS = WordTable(NAMES, np.stack([city + kind for kind in (country, capital) for city in cities[:3]]))


def test_analogy_accuracy_by_section_and_coverage(tmp_path: Path) -> None:
    file = tmp_path / "questions-words.txt"
    file.write_text(": capitals\nParis France Rome Italy\nparis france tokyo japan\nparis france oslo norway\n"
                    ": wrong\nparis france rome japan\n")  # fmt: skip
    scores = evaluate_word_vectors(WORDS, [file])
    assert scores["questions_words_accuracy"] == pytest.approx(2 / 3)
    assert (scores["questions_words_questions"], scores["questions_words_coverage"]) == (3, 0.75)
    assert scores["questions_words_sections"] == {
        "capitals": {"accuracy": 1.0, "questions": 2},
        "wrong": {"accuracy": 0.0, "questions": 1},
    }


def test_similarity_is_spearman_rank_correlation(tmp_path: Path) -> None:
    file = tmp_path / "alike.tsv"
    file.write_text(
        "# people say\nword1\tword2\tmean\nparis\trome\t9\nparis\tfrance\t8\nparis\titaly\t1\nparis\tx\t5\n"
    )
    scores = evaluate_word_vectors(WORDS, [file])
    assert scores["alike_spearman"] == pytest.approx(np.sqrt(3) / 2)  # two cosines are equal and share a rank
    assert (scores["alike_pairs"], scores["alike_coverage"]) == (3, 0.75)


def test_spearman_with_ties() -> None:
    first, second = np.array([1.0, 2, 2, 3, 7]), np.array([0.1, 0.5, 0.4, 0.4, 0.9])
    ranks = np.array([[1, 2.5, 2.5, 4, 5], [1, 4, 2.5, 2.5, 5]])
    assert spearman(first, second) == pytest.approx(np.corrcoef(ranks)[0, 1])
    assert spearman(first, first**3) == pytest.approx(1)
    assert spearman(np.ones(5), np.arange(5.0)) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("this is just some prose\nand nothing of the kind\n", "neither analogies nor pairs"),
        ("a b c d\ntwo words\n", ":2: neither four words nor two words and a number: 'two words'"),
        ("a b 3\na b c d\n", "both analogies and pairs"),
        ("oslo norway rome italy\n", "none of its 1 questions has all its words"),
        ("oslo norway 7\n", "0 of its 1 pairs are in"),
    ],
)
def test_unusable_benchmark_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "set.txt"
    file.write_text(text)
    with pytest.raises(DataError, match=words):
        evaluate_word_vectors(WORDS, [file])


def test_published_benchmarks_are_read_completely(corpora: Path) -> None:
    folder = corpora / "word_similarity"
    questions = read_benchmark(folder / "questions-words.txt")
    assert (len(questions.analogies), sum(map(len, questions.analogies.values()))) == (14, 19_544)
    assert len(read_benchmark(folder / "wordsim353.tsv").pairs) == 353
    assert len(read_benchmark(folder / "simlex999.txt").pairs) == 999
