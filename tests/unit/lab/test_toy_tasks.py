"""The tasks of the lab: their batches and scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from heedful.errors import UsageError
from heedful.lab.fitting import fit, new_model
from heedful.lab.study import Trial, Variant
from heedful.lab.toy_tasks import FIRST_SYMBOL, CharacterTask, DateTask, ReorderTask, WhichFirstTask, running_text
from heedful.text.special_tokens import END, START

TRIAL = Trial(Variant(()), 5, {}, torch.device("cpu"))


@pytest.mark.parametrize("order", ["copy", "reverse", "sort"])
def test_a_target_is_the_source_in_another_order(order: Any) -> None:
    batch = ReorderTask(order).test_batch(length=5)
    source, labels = batch.source[:, :-1], batch.labels[:, :-1]
    expected = {"copy": source, "reverse": source.flip(1), "sort": source.sort(1).values}[order]
    assert torch.equal(labels, expected)
    assert bool((batch.labels[:, -1] == END).all())
    assert torch.equal(batch.target, torch.cat([torch.full((len(source), 1), START), labels], 1))


def test_batches_depend_on_seed_epoch_and_index_alone() -> None:
    task = ReorderTask()
    first, repeated, other_seed = (task.batches(seed) for seed in (1, 1, 2))
    index = np.array([3])
    assert torch.equal(first.batch(0, index).source, repeated.batch(0, index).source)
    differing = [first.batch(1, index), first.batch(0, np.array([4])), other_seed.batch(0, index)]
    for batch in differing:
        assert not torch.equal(batch.source, first.batch(0, index).source)


def test_the_label_says_which_of_the_two_marked_symbols_is_first() -> None:
    batch = WhichFirstTask().draw(np.random.default_rng(1), 50)
    for tokens, label in zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True):
        assert (tokens.index(FIRST_SYMBOL) < tokens.index(FIRST_SYMBOL + 1)) == bool(label)
        assert tokens.count(FIRST_SYMBOL) == tokens.count(FIRST_SYMBOL + 1) == 1


def test_exact_match_equals_greedy_search() -> None:
    """One teacher-forced pass decides whether greedy search generates the target."""
    task = ReorderTask(shortest=3, longest=3, symbols=4)
    model = fit(task, TRIAL, steps=100, model={"width": 16, "feed_forward": 32}).model
    batch = task.test_batch(rows=64)
    state = model.start(batch.source, batch.source_lengths)
    tokens, written = batch.target[:, :1], []
    with torch.inference_mode():
        for _ in range(4):
            tokens = model.extend(tokens, state)[:, -1:].argmax(-1)
            written.append(tokens)
    greedy = (torch.cat(written, 1) == batch.labels).all(1).float().mean()
    assert 0.1 < float(greedy) < 1
    assert task.exact_match(model, batch) == pytest.approx(float(greedy))


def test_dates_are_held_out_by_day() -> None:
    task = DateTask(languages=("en",))
    assert task.exact_match(new_model(task, width=16, feed_forward=16)) == 0
    assert len(task.test_batch().source) == 200


@pytest.mark.parametrize("predict", ["next", "masked"])
def test_a_fresh_model_of_text_is_near_the_uniform_distribution(predict: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEEDFUL_DATA", raising=False)
    running_text.cache_clear()
    assert running_text()[1] == "the built-in dates"
    task = CharacterTask(predict, characters=20_000)
    model = new_model(task, width=16, feed_forward=16).eval()
    assert task.loss(model, batches=2) == pytest.approx(np.log(model.config.vocabulary), rel=0.3)
    running_text.cache_clear()


def test_training_is_repeatable() -> None:
    first, again = (fit(WhichFirstTask(), TRIAL, steps=3, model={"width": 16}) for _ in range(2))
    assert first.losses == again.losses
    assert len(first.losses) == 3


def test_settings_of_the_loss_and_of_a_step_take_effect() -> None:
    plain, smooth, slow = (
        fit(ReorderTask(), TRIAL, steps=2, model={"width": 16}, **changes).losses
        for changes in ({}, {"label_smoothing": 0.5}, {"learning_rate": 1e-5})
    )
    assert plain[0] != smooth[0]
    assert plain[0] == slow[0]
    assert plain[1] != slow[1]


@pytest.mark.parametrize("setting", ["batch_tokens", "average", "labelsmoothing"])
def test_a_setting_that_would_have_no_effect_is_refused(setting: str) -> None:
    with pytest.raises(UsageError, match=f"fit does not use '{setting}'"):
        fit(ReorderTask(), TRIAL, steps=1, model={"width": 16}, **{setting: 1})
