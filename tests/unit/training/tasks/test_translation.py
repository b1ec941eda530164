"""Validation of the translation task during training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import heedful
from heedful.data.corpus_files import is_held_out
from heedful.data.dataset import PreparedData, Split
from heedful.data.text_size import TextSize
from heedful.data.token_store import Sequences
from heedful.generation.backends.backend import SearchRequest
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.training.recipe import make_recipe
from heedful.training.tasks import translation
from heedful.training.tasks.task import TrainingComponents

TEXTS = [f"{chr(97 + number // 26)}{chr(97 + number % 26)} " * (4 + number % 7) for number in range(60)]
CPU = torch.device("cpu")


def prepared() -> PreparedData:
    tokenizer = Tokenizer.train(TEXTS, TokenizerConfig(kind="characters", vocabulary=60))
    side = Sequences.from_lists(tokenizer.encode(TEXTS))
    split = Split((side, side), 60, TextSize(180, 400, 500), tuple((text, text) for text in TEXTS))
    return PreparedData((tokenizer,), split, split, {}, {})


def small_translator() -> Any:
    return heedful.build("laptop-translator", vocabulary=60, width=16, heads=2, layers=1).eval()


def components(data: PreparedData, **training: Any) -> TrainingComponents:
    text = {"data": {"train": ["a", "b"]}, "tokenizer": {"kind": "characters", "vocabulary": 60}}
    model = {"family": "encoder_decoder", "width": 16, "heads": 2, "layers": 1}
    recipe = make_recipe(
        {"task": "translate", **text, "model": model, "training": {"steps": 1, "batch_tokens": 64, **training}}
    )
    return translation.TASK.training_components(recipe, data, CPU)


def test_each_evaluation_translates_the_same_evenly_spaced_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[list[str]] = []
    data = prepared()
    tokenizer = data.tokenizers[0]

    class EchoBackend:
        """Answers each source with its reference."""

        def translate(self, request: SearchRequest) -> list[Any]:
            texts = tokenizer.decode(request.texts)
            requested.append(texts)
            assert [len(text) * 5 // 4 + 5 for text in texts] == request.max_lengths, "each with its own limit"
            return [(SimpleNamespace(tokens=source),) for source in request.texts]

    monkeypatch.setattr(translation, "training_backend", lambda model: EchoBackend())
    model = small_translator()
    built = components(data, eval_texts=6, eval_labels=100)
    one, two = built.evaluate(model), built.evaluate(model)
    assert one == two, "a resumed run must evaluate as before"
    assert one.score == pytest.approx(100), "against their own references"
    assert requested == [[TEXTS[index] for index in (5, 15, 25, 35, 45, 55)]] * 2
    assert built.generated_texts == 6
    complete = components(data).evaluate(model)
    assert requested[-1] == TEXTS
    assert one.scores["valid_loss"] == pytest.approx(complete.scores["valid_loss"], rel=0.1)


def test_a_limited_validation_loss_samples_short_and_long_texts() -> None:
    """Unshuffled batches are sorted by length, so the first ones would be the shortest."""

    class LengthLoss:
        """A loss proportional to the batch's length."""

        def loss(self, model: Any, batch: Any) -> torch.Tensor:
            return torch.tensor(float(self.token_count(batch) * batch.labels.shape[1]))

        def token_count(self, batch: Any) -> int:
            return int((batch.labels != 0).sum())

    data = prepared()
    valid = components(data).valid
    arguments = (small_translator(), LengthLoss(), valid, data.valid, CPU)
    sampled = translation.evaluate_perplexity(*arguments, limit=valid.labels_per_epoch // 4)
    complete = translation.evaluate_perplexity(*arguments)
    assert sampled["tokens"] < complete["tokens"] / 2
    assert sampled["loss"] == pytest.approx(complete["loss"], rel=0.1)
    assert sampled["bytes"] == pytest.approx(data.valid.size.bytes * sampled["tokens"] / complete["tokens"], abs=1)


def test_a_file_of_62_pairs_leaves_some_for_validation() -> None:
    files = [[f"sentence {number} of file {file}" for number in range(62)] for file in range(200)]
    share = translation.TASK.validation_fraction(characters=62 * 50)
    empty = sum(not any(is_held_out(source, share) for source in sources) for sources in files)
    assert empty <= 4  # with the 2% of larger files, 60 of 200
