"""A pinned loss curve: training must not change by accident."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import heedful
from heedful.data.dates_corpus import write_dates

CURVE = Path(__file__).with_name("dates.json")


def dates_curve(folder: Path) -> list[float]:
    """The training loss of 200 steps of a small dates model on a CPU, every ten steps."""
    texts = write_dates(folder / "dates", train=2000, valid=50, test=10)
    losses: list[float] = []
    heedful.train(
        "translate",
        texts / "train.source",
        texts / "train.target",
        valid=(str(texts / "valid.source"), str(texts / "valid.target")),
        out=str(folder / "run"),
        steps=200,
        device="cpu",
        settings=(
            "tokenizer.kind=characters",
            "tokenizer.vocabulary=600",
            "model.width=32",
            "model.heads=2",
            "model.layers=1",
            "model.dropout=0.1",
            "training.batch_tokens=768",
            "training.learning_rate=0.003",
            "training.warmup=40",
            "training.evaluate_every=50",
        ),
        listeners=[lambda event: losses.append(event["loss"]) if event["kind"] == "step" else None],
    )
    return losses


def test_the_loss_curve_of_the_dates_model_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    expected = json.loads(CURVE.read_text())
    assert dates_curve(tmp_path) == pytest.approx(expected, abs=1e-4)
