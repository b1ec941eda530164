"""Scores of classifiers, against hand-made cases and scikit-learn's definitions written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heedful.data.dataset import Split
from heedful.data.labelled_dataset import ClassBatches
from heedful.data.token_store import Sequences
from heedful.evaluation import classification_metrics as classes
from heedful.evaluation.classification_metrics import (
    score_batches,
    draw_confusion,
    f1_scores,
    fit_temperature,
    wilson_interval,
    multi_label_scores,
    single_label_scores,
)
from heedful.text.special_token_template import template_for
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

NAMES = ["a", "b", "c"]
SAID = np.array([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.5, 0.1, 0.4]])
TRUE = [np.array([label]) for label in (0, 1, 1, 2, 2)]


def test_scores_of_a_case_worked_by_hand() -> None:
    found = single_label_scores(SAID, TRUE, NAMES)
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["confusion"]["counts"] == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    assert found["f1"] == pytest.approx({"a": 2 / 4, "b": 2 / 3, "c": 2 / 3})
    assert found["macro_f1"] == pytest.approx((1 / 2 + 2 / 3 + 2 / 3) / 3)
    assert found["loss"] == pytest.approx(-np.log([0.8, 0.3, 0.7, 0.7, 0.4]).mean())
    assert found["examples"] == 5
    # bins of 1/15: 0.8, 0.6, {0.7, 0.7}, 0.5
    assert found["calibration_error"] == pytest.approx((0.2 + 0.6 + 2 * 0.3 + 0.5) / 5)


def test_classes_that_do_not_occur_have_no_say_in_the_mean() -> None:
    found = single_label_scores(SAID[:3], TRUE[:3], NAMES)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert f1_scores(np.zeros((2, 2), np.int64)).tolist() == [0.0, 0.0]


def test_the_interval_is_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263 and 0 of 20
    assert wilson_interval(81, 263) == pytest.approx({"accuracy_low": 0.2553, "accuracy_high": 0.3662}, abs=1e-4)
    assert wilson_interval(0, 20) == pytest.approx({"accuracy_low": 0.0, "accuracy_high": 0.1611}, abs=1e-4)
    assert wilson_interval(20, 20)["accuracy_high"] == pytest.approx(1.0)


def test_several_labels_a_text() -> None:
    said = np.array([[0.9, 0.2], [0.8, 0.6], [0.1, 0.1]])
    labels = [np.array([0]), np.array([0]), np.array([], np.int64)]
    found = multi_label_scores(said, labels, ["a", "b"])
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["f1"] == {"a": 1.0, "b": 0.0}
    assert found["micro_f1"] == pytest.approx(2 * 2 / (3 + 2))
    assert found["macro_f1"] == 1.0, "b does not occur"


def test_a_confusion_matrix_is_drawn_however_many_classes(tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(40)]
    file = draw_confusion(names, np.eye(40, dtype=int).tolist(), tmp_path / "confusion.png")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_the_temperature_that_made_the_labels_is_found_again() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, 3, generator=draw)
    labels = [row.numpy() for row in torch.multinomial(logits.softmax(-1), 1, generator=draw)]
    assert fit_temperature(logits, labels, multi_label=False) == pytest.approx(1.0, rel=0.05)
    assert fit_temperature(3 * logits, labels, multi_label=False) == pytest.approx(3.0, rel=0.05)


def test_on_the_way_a_share_of_the_texts_is_judged_each_against_its_own_label(monkeypatch: pytest.MonkeyPatch) -> None:
    called = Sequences.from_lists([[number % 3] for number in range(90)])
    texts = Sequences.from_lists([[10 + number % 3] * (1 + number // 10) for number in range(90)])
    split = Split((texts,), 90, 90, 90, labels=called)
    tokenizer = Tokenizer.train(["a b c"], TokenizerConfig(kind="characters", vocabulary=30))
    batches = ClassBatches(split, template_for("encoder", tokenizer), 3, multi_label=False, max_tokens=40, seed=0, shuffle=False)

    def knows(model: None, batch: Any) -> torch.Tensor:
        """A model that reads the label off the text, but is wrong about the longest."""
        long = batch.lengths[:, None] > 9
        return 9.0 * torch.nn.functional.one_hot((batch.labels[:, None] + long)[:, 0] % 3, 3)

    monkeypatch.setattr(classes, "class_logits", knows)
    found = [score_batches(None, batches, NAMES, torch.device("cpu"), limit=limit) for limit in (None, 30, 30)]
    assert [scores["examples"] for scores in found] == [90, pytest.approx(30, abs=8), found[1]["examples"]]
    assert found[1] == found[2]
    assert found[1]["accuracy"] == pytest.approx(found[0]["accuracy"], abs=0.12)
    assert found[1]["first"] == found[0]["first"] == "a 100%"
