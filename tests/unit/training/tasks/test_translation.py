"""How a translator is judged on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import heedful
from heedful.data.dataset_writer import PreparedData, Split
from heedful.data.token_store import Sequences
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.training.recipe import make_recipe
from heedful.training.tasks import translation as translate
from heedful.training.tasks.task import TrainingComponents

TEXTS = [f"{chr(97 + number // 26)}{chr(97 + number % 26)} " * (4 + number % 7) for number in range(60)]
CPU = torch.device("cpu")


def prepared() -> PreparedData:
    tokenizer = Tokenizer.train(TEXTS, TokenizerConfig(kind="characters", vocabulary=60))
    side = Sequences.from_lists(tokenizer.encode(TEXTS))
    split = Split((side, side), 60, 180, 500, tuple((text, text.upper()) for text in TEXTS))
    return PreparedData((tokenizer,), split, split, {}, {})


def lesson(data: PreparedData, **training: Any) -> TrainingComponents:
    text = {"data": {"train": ["a", "b"]}, "tokenizer": {"kind": "characters", "vocabulary": 60}}
    model = {"family": "encoder_decoder", "width": 16, "heads": 2, "layers": 1}
    recipe = make_recipe(
        {"task": "translate", **text, "model": model, "training": {"steps": 1, "batch_tokens": 64, **training}}
    )
    return translate.TASK.training_components(recipe, data, CPU)


def test_a_sample_from_all_over_is_translated_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def parrot(model: Any, tokenizers: Any, texts: Sequence[str], **options: Any) -> list[str]:
        asked.append(list(texts))
        assert [len(text) * 5 // 4 + 5 for text in texts] == options["at_most"], "each with its own limit"
        return [text.upper() for text in texts]

    monkeypatch.setattr(translate, "translate_texts", parrot)
    data = prepared()
    model = heedful.build("laptop-translator", vocabulary=60, width=16, heads=2, layers=1).eval()
    taught = lesson(data, eval_texts=6, eval_labels=100)
    one, two = taught.evaluate(model), taught.evaluate(model)
    assert one == two, "a run that is resumed must judge as it did before"
    assert one.score == pytest.approx(100), "against their own references"
    assert asked == [[TEXTS[place] for place in (5, 15, 25, 35, 45, 55)]] * 2
    assert taught.generated_texts == 6
    everything = lesson(data).evaluate(model)
    assert asked[-1] == TEXTS
    assert one.scores["valid_loss"] == pytest.approx(everything.scores["valid_loss"], rel=0.1)


def test_the_loss_on_the_way_is_of_short_and_long_texts_alike() -> None:
    """Batches that are not shuffled begin with the shortest."""

    class Longest:
        """A loss that is larger for longer texts: the number of columns, for each label."""

        def loss(self, model: Any, batch: Any) -> torch.Tensor:
            return torch.tensor(float(self.token_count(batch) * batch.labels.shape[1]))

        def token_count(self, batch: Any) -> int:
            return int((batch.labels != 0).sum())

    taught, data = lesson(prepared()), prepared()
    some = translate.evaluate_perplexity(None, Longest(), taught.valid, data.valid, CPU, limit=taught.valid.labels_per_epoch // 4)
    everything = translate.evaluate_perplexity(None, Longest(), taught.valid, data.valid, CPU)
    assert some.tokens < everything.tokens / 2
    assert some.loss == pytest.approx(everything.loss, rel=0.1)
    assert some.bytes == pytest.approx(data.valid.bytes * some.tokens / everything.tokens, abs=1)
