"""The card's section on explanations: measured where there is time for it, and stored with the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heedful.data.dataset import Split
from heedful.data.text_size import TextSize
from heedful.data.token_store import Sequences
from heedful.inspection.attribution.faithfulness import RANDOM
from heedful.training.reporting.faithfulness_section import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    allowed_seconds,
    faithfulness_section,
    measure_explanations,
)
from heedful.training.tasks import get_task

Trained = Callable[..., Any]


@pytest.fixture(scope="module")
def pairs(texts: list[str]) -> Split:
    """Dates and their normal form."""
    examples = tuple(zip(texts[:120:2], texts[1:120:2], strict=True))
    return Split((), len(examples), TextSize(1, 1, 1), examples)


def test_the_methods_are_measured_on_validation_texts_and_the_card_names_the_best(
    make_trained: Trained, pairs: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.training.reporting.faithfulness_section.LONGEST_SECONDS", 100.0)  # a busy machine
    translator = make_trained("recurrent-translator", "words")
    translator.measured_faithfulness = measure_explanations(get_task("translate"), translator, pairs, 9000.0, None)
    table = translator.measured_faithfulness
    assert table is not None
    assert 5 <= table.texts == table.outputs <= 24
    section = faithfulness_section(translator, "translate-1")
    assert all(f"| {score.method} | {score} |" in section for score in table.methods)
    assert RANDOM in section
    assert (f"is **{table.best.method}**" if table.best else "No method is measurably better") in section


@pytest.mark.parametrize(("seconds", "limit"), [(10.0, None), (60.0, 61.0)])
def test_explanations_are_not_measured_in_a_short_run_or_past_the_time_limit(
    make_trained: Trained, pairs: Split, seconds: float, limit: float | None
) -> None:
    translator = make_trained("recurrent-translator", "words")
    assert measure_explanations(get_task("translate"), translator, pairs, seconds, limit) is None
    assert "there was no time for it" in faithfulness_section(translator, "translate-1")


def test_a_long_run_past_its_time_limit_still_measures_explanations_briefly() -> None:
    assert allowed_seconds(383.0, 300.0) == LONGEST_SECONDS
    assert allowed_seconds(130.0, 120.0) == pytest.approx(1.2)
    assert allowed_seconds(95.0, 90.0) < SHORTEST_SECONDS


@pytest.mark.parametrize("task", ["generate", "fill"])
def test_running_text_is_cut_into_pieces(make_trained: Trained, texts: list[str], task: str) -> None:
    model = make_trained("laptop-writer", "words")
    ids = np.concatenate([model.tokenizer.encode([text])[0] for text in texts]).tolist()
    split = Split((Sequences.from_lists([ids]),), 1, TextSize(1, 1, 1))
    examples = get_task(task).explained_examples(model, split, 5)
    assert len(set(examples)) == 5
    assert all(10 < len(model.tokenizer.encode([text])[0]) < 50 for text in examples)
