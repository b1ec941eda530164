"""Classifier metrics against worked examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.data.dataset import Split
from heedful.data.labeled_dataset import ClassBatches
from heedful.data.text_size import TextSize
from heedful.data.token_store import Sequences
from heedful.evaluation import classification_metrics as metrics
from heedful.evaluation.classification_metrics import (
    class_scores,
    draw_confusion,
    fit_temperature,
    fit_useful_temperature,
    score_batches,
)
from heedful.evaluation.wilson_interval import wilson_interval
from heedful.models.encoder import Encoder
from heedful.text.special_token_template import template_for
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

NAMES = ["a", "b", "c"]
PROBABILITIES = np.array([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.5, 0.1, 0.4]])
TRUE = [np.array([label]) for label in (0, 1, 1, 2, 2)]


def test_single_label_scores_of_a_worked_example() -> None:
    scores = class_scores(PROBABILITIES, TRUE, NAMES, multi_label=False)
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["confusion"]["counts"] == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    assert scores["f1"] == pytest.approx({"a": 2 / 4, "b": 2 / 3, "c": 2 / 3})
    assert scores["macro_f1"] == pytest.approx((1 / 2 + 2 / 3 + 2 / 3) / 3)
    assert scores["loss"] == pytest.approx(-np.log([0.8, 0.3, 0.7, 0.7, 0.4]).mean())
    assert scores["examples"] == 5
    # bins of 1/15: 0.8, 0.6, {0.7, 0.7}, 0.5
    assert scores["calibration_error"] == pytest.approx((0.2 + 0.6 + 2 * 0.3 + 0.5) / 5)


def test_macro_f1_ignores_absent_classes() -> None:
    scores = class_scores(PROBABILITIES[:3], TRUE[:3], NAMES, multi_label=False)
    assert scores["macro_f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert scores["f1"]["c"] == 0.0


def test_confidence_interval_is_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263 and 0 of 20
    assert wilson_interval("a", 81, 263) == pytest.approx({"a": 81 / 263, "a_low": 0.2553, "a_high": 0.3662}, abs=1e-4)
    assert wilson_interval("a", 0, 20) == pytest.approx({"a": 0.0, "a_low": 0.0, "a_high": 0.1611}, abs=1e-4)
    assert wilson_interval("a", 20, 20)["a_high"] == pytest.approx(1.0)


def test_multi_label_scores_of_a_worked_example() -> None:
    probabilities = np.array([[0.9, 0.2], [0.8, 0.6], [0.1, 0.1]])
    labels = [np.array([0]), np.array([0]), np.array([], np.int64)]
    scores = class_scores(probabilities, labels, ["a", "b"], multi_label=True)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["f1"] == {"a": 1.0, "b": 0.0}
    assert scores["micro_f1"] == pytest.approx(2 * 2 / (3 + 2))
    assert scores["macro_f1"] == 1.0, "b does not occur"


def test_confusion_matrix_with_many_classes_is_drawn(tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(40)]
    file = draw_confusion(names, np.eye(40, dtype=int).tolist(), tmp_path / "confusion.png")
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")
def test_confusion_matrix_draws_class_names_in_any_script(tmp_path: Path) -> None:
    file = draw_confusion(["正面", "ไม่ดี", r"costs $\5$"], np.eye(3, dtype=int).tolist(), tmp_path / "confusion.svg")
    drawn = file.read_text()
    assert "正面" in drawn
    assert "DejaVu Sans" in drawn


def test_temperature_fit_recovers_the_true_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, 3, generator=generator)
    labels = [row.numpy() for row in torch.multinomial(logits.softmax(-1), 1, generator=generator)]
    assert fit_temperature(logits, labels, multi_label=False) == pytest.approx(1.0, rel=0.05)
    assert fit_temperature(3 * logits, labels, multi_label=False) == pytest.approx(3.0, rel=0.05)
    assert fit_useful_temperature(logits, labels, multi_label=False) == 1.0, "calibrated already"
    assert fit_useful_temperature(3 * logits, labels, multi_label=False) == pytest.approx(3.0, rel=0.05)


def test_scoring_a_sample_of_batches_is_deterministic_and_representative(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = Sequences.from_lists([[number % 3] for number in range(90)])
    texts = Sequences.from_lists([[10 + number % 3] * (1 + number // 10) for number in range(90)])
    split = Split((texts,), 90, TextSize(90, 90, 90), labels=labels)
    tokenizer = Tokenizer.train(["a b c"], TokenizerConfig(kind="characters", vocabulary=30))
    batches = ClassBatches(
        split, template_for("encoder", tokenizer), 3, multi_label=False, max_tokens=40, seed=0, shuffle=False
    )

    def oracle_logits(model: Encoder, batch: Any) -> torch.Tensor:
        """Logits of the true label, except for the longest texts."""
        long = batch.lengths[:, None] > 9
        return 9.0 * torch.nn.functional.one_hot((batch.labels[:, None] + long)[:, 0] % 3, 3)

    monkeypatch.setattr(metrics, "class_logits", oracle_logits)
    model, device = heedful.build("bert-tiny", vocabulary=30, width=16, heads=2), torch.device("cpu")
    scores = [score_batches(model, batches, NAMES, device, limit=limit) for limit in (None, 30, 30)]
    assert [result["examples"] for result in scores] == [90, pytest.approx(30, abs=8), scores[1]["examples"]]
    assert scores[1] == scores[2]
    assert scores[1]["accuracy"] == pytest.approx(scores[0]["accuracy"], abs=0.12)
