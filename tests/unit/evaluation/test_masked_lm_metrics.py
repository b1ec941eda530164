"""Scores of hidden words: the same each time, and those of the model's own logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import heedful
from heedful.data.next_sentence import masked_batches
from heedful.data.corpus_readers import read_sentences
from heedful.evaluation.masked_lm_metrics import encode_documents, score_masked_tokens, evaluate_masked_lm
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


def test_the_loss_is_the_objectives_and_a_model_that_knows_is_right(trained: TrainedModel) -> None:
    text = encode_documents(trained, [(line, False) for line in LINES])
    given = {"context": 24, "tokens": 240, "seed": 0, "shuffle": False}
    batches = masked_batches(text, trained.tokenizers[0], next_sentence=False, **given)  # type: ignore[arg-type]
    found = score_masked_tokens(trained.model, batches, torch.device("cpu"))
    made = [batches.batch(0, indices) for indices in batches.plan(0)]
    with torch.no_grad():
        nats = sum(float(MaskedLMLoss().loss(trained.model, batch)) for batch in made)
    assert found.tokens == sum(MaskedLMLoss().token_count(batch) for batch in made)
    assert found.loss == pytest.approx(nats / found.tokens, rel=1e-4)
    assert found.accuracy < 0.3
    assert found.next_sentence_accuracy is None
    assert "pairs" not in found.to_json()
    some = score_masked_tokens(trained.model, batches, torch.device("cpu"), limit=20)
    assert 20 <= some.tokens < found.tokens


def test_a_file_is_judged_the_same_each_time_and_pairs_are_judged_too(trained: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(LINES))
    text = encode_documents(trained, read_sentences([tmp_path / "a.txt"]))
    assert (text.ids == SEPARATOR).sum() == 60, "a document after each blank line"
    first, again = evaluate_masked_lm(trained, text), evaluate_masked_lm(trained, text)
    assert first == again
    assert first["pairs"] > 50
    assert 0 <= first["next_sentence_accuracy"] <= 1
