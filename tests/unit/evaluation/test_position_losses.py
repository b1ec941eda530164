"""The loss by position: of running text, packed documents and references; beyond the trained length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import heedful
from heedful import UsageError
from heedful.data.dataset import Split
from heedful.data.pair_dataset import PairBatches
from heedful.data.text_dataset import TextBatches
from heedful.data.text_size import TextSize
from heedful.data.token_store import Sequences
from heedful.evaluation.evaluator import evaluate_text
from heedful.evaluation.perplexity import evaluate_perplexity
from heedful.evaluation.position_losses import RANGES, losses_by_position
from heedful.objectives.causal_lm_loss import CausalLMLoss

CPU = torch.device("cpu")
TEXT = torch.randint(6, 11, (200,), generator=torch.Generator().manual_seed(0)).tolist()


def test_means_over_positions_are_the_mean_over_the_text(make_model: Callable[..., Any]) -> None:
    model = make_model("laptop-writer")
    sides = Sequences.from_lists([TEXT])
    batches = TextBatches(sides, context=40, rows=3, seed=0, shuffle=False)
    rows = losses_by_position(model, batches, CPU)
    expected = evaluate_perplexity(model, CausalLMLoss(), batches, Split((sides,), 1, TextSize.measure(["x"])), CPU)
    assert sum(row["tokens"] for row in rows) == expected["tokens"] == 199
    assert sum(row["tokens"] * row["loss"] for row in rows) / 199 == pytest.approx(expected["loss"], rel=1e-5)
    assert len(rows) <= RANGES
    assert (rows[0]["first"], rows[-1]["last"]) == (0, 39)


def test_a_position_has_the_loss_of_its_tokens(make_model: Callable[..., Any]) -> None:
    model = make_model("laptop-writer")
    batches = TextBatches(Sequences.from_lists([TEXT]), context=10, rows=2, seed=0, shuffle=False)
    rows = losses_by_position(model, batches, CPU)
    windows = torch.tensor(TEXT[:191]).unfold(0, 11, 10)
    with torch.inference_mode():
        losses = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten(), reduction="none")
    assert rows[3]["loss"] == pytest.approx(float(losses.view(-1, 10)[:, 3].mean()), rel=0.06)  # one window is shorter
    assert rows[3]["loss_low"] < rows[3]["loss"] < rows[3]["loss_high"]


def test_positions_restart_in_every_packed_document(make_model: Callable[..., Any]) -> None:
    documents = Sequences.from_lists([TEXT[:5]] * 12)
    batches = TextBatches(documents, context=30, rows=1, seed=0, shuffle=False)
    assert losses_by_position(make_model("laptop-writer"), batches, CPU)[-1]["last"] == 4


def test_references_have_a_loss_by_position(make_model: Callable[..., Any]) -> None:
    side = Sequences.from_lists([TEXT[:4], TEXT[:7]])
    batches = PairBatches(side, side, max_tokens=50, seed=0, shuffle=False)
    rows = losses_by_position(make_model("laptop-translator"), batches, CPU)
    assert [row["tokens"] for row in rows] == [2, 2, 2, 2, 2, 1, 1, 1]  # END counts


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rotary", "alibi"])
def test_a_text_may_be_read_beyond_the_trained_length(positions: str, make_trained: Callable[..., Any]) -> None:
    trained = make_trained("laptop-writer", positions=positions, max_length=16)
    scores = evaluate_text(trained, [("12 January 1999, " * 8, True)], context=64, by_position=True)
    assert scores["by_position"][-1]["last"] == 63
    assert evaluate_text(trained, [("12 January 1999, " * 8, True)])["tokens"] == scores["tokens"]


def test_a_text_beyond_a_learned_position_table_is_one_clear_error(make_trained: Callable[..., Any]) -> None:
    trained = make_trained("laptop-writer", positions="learned", max_length=16)
    with pytest.raises(UsageError, match="a context of 64 tokens is longer than the 16 positions"):
        evaluate_text(trained, [("12 January 1999, " * 8, True)], context=64)


def test_options_of_another_task_are_refused(make_trained: Callable[..., Any], tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("1 2 3\n")
    with pytest.raises(UsageError, match="by_length is for translators and classifiers, not for generate"):
        heedful.evaluate(make_trained("laptop-writer"), tmp_path / "a.txt", by_length=True)
