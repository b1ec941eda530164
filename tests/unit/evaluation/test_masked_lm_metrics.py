"""Masked-token scores equal the training objective and are deterministic."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import heedful
from heedful.data.corpus_readers import read_sentences
from heedful.data.next_sentence import masked_batches
from heedful.evaluation.masked_lm_metrics import encode_documents, evaluate_masked_lm, score_masked_tokens
from heedful.inference.trained_model import TrainedModel
from heedful.loading import wrap_model
from heedful.objectives.masked_lm_loss import MaskedLMLoss
from heedful.text.special_tokens import SEPARATOR
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

LINES = ["The cat sat on the mat. The dog sat on the log.\n", "A bird flew. It sang.\n", "\n"] * 60


@pytest.fixture
def trained() -> TrainedModel:
    tokenizer = Tokenizer.train(LINES, TokenizerConfig(vocabulary=300))
    tasks = ("masked_token", "next_sentence")
    shape = {"width": 16, "layers": 1, "heads": 2, "max_length": 24, "vocabulary": len(tokenizer), "segments": 2}
    return wrap_model(heedful.build("laptop-reader", **shape, tasks=tasks).eval(), (tokenizer,))


def test_masked_token_loss_equals_the_training_objective(trained: TrainedModel) -> None:
    text = encode_documents(trained, [(line, False) for line in LINES])
    options = {"context": 24, "tokens": 240, "seed": 0, "shuffle": False}
    batches = masked_batches(text, trained.tokenizers[0], next_sentence=False, **options)  # type: ignore[arg-type]
    scores = score_masked_tokens(trained.model, batches, torch.device("cpu"))
    made_batches = [batches.batch(0, indices) for indices in batches.plan(0)]
    with torch.no_grad():
        nats = sum(float(MaskedLMLoss().loss(trained.model, batch)) for batch in made_batches)
    assert scores["tokens"] == sum(MaskedLMLoss().token_count(batch) for batch in made_batches)
    assert scores["loss"] == pytest.approx(nats / scores["tokens"], rel=1e-4)
    assert scores["accuracy"] < 0.3
    assert "next_sentence_accuracy" not in scores
    assert "pairs" not in scores
    sample = score_masked_tokens(trained.model, batches, torch.device("cpu"), limit=20)
    assert 20 <= sample["tokens"] < scores["tokens"]


def test_masked_lm_evaluation_is_deterministic_and_scores_next_sentence(trained: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(LINES))
    text = encode_documents(trained, read_sentences([tmp_path / "a.txt"]))
    assert (text.ids == SEPARATOR).sum() == 60, "a document after each blank line"
    first, again = evaluate_masked_lm(trained, text), evaluate_masked_lm(trained, text)
    assert first == again
    assert first["pairs"] > 50
    assert 0 <= first["next_sentence_accuracy"] <= 1
