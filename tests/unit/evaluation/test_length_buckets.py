"""Scores of texts of similar length: groups, intervals and units."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from heedful.evaluation.bleu_tokenizer import BleuTokenizer
from heedful.evaluation.length_buckets import accuracy_scores, scores_by_length, text_lengths, translation_scores
from heedful.evaluation.text_metrics import text_scores


def test_every_text_is_in_one_group_and_lengths_do_not_overlap() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 300)
    rows = scores_by_length(lengths, "words", lambda indices: {"sum": int(lengths[indices].sum())})
    assert sum(row["texts"] for row in rows) == 300
    assert sum(row["sum"] for row in rows) == lengths.sum()
    assert all(row["longest"] < following["shortest"] for row, following in pairwise(rows))
    assert len(rows) == 5


def test_the_scores_of_a_group_are_those_of_its_texts_alone() -> None:
    references = [f"the cat {i} sat on the mat {i}" for i in range(30)]
    outputs = [text if i % 2 else text.replace("cat", "dog") for i, text in enumerate(references)]
    scores = translation_scores(outputs, references, BleuTokenizer("13a"))(np.arange(10))
    expected = text_scores(outputs[:10], references[:10], BleuTokenizer("13a"))
    assert {name: scores[name] for name in ("bleu", "chrf", "exact_match")} == pytest.approx(
        {name: expected[name] for name in ("bleu", "chrf", "exact_match")}
    )
    assert scores["bleu_low"] == pytest.approx(expected["bleu_low"])
    assert all(scores[f"{name}_low"] <= scores[name] <= scores[f"{name}_high"] for name in ("bleu", "chrf"))


def test_accuracy_has_wilsons_interval() -> None:
    scores = accuracy_scores(np.array([True] * 81 + [False] * 182))(np.arange(263))
    assert scores["accuracy_low"] == pytest.approx(0.2553, abs=1e-4)


def test_text_without_spaces_is_measured_in_characters() -> None:
    assert text_lengths(["a b c", "d"])[1] == "words"
    lengths, unit = text_lengths(["\u732b\u304c\u5bdd\u308b" * 5] * 3)
    assert (unit, lengths.tolist()) == ("characters", [20] * 3)
