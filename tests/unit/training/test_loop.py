"""The loop: the same batches whoever makes them, one update per step, the best model kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import heedful
from heedful.data.batches import PairBatches
from heedful.data.store import Sequences
from heedful.objectives.translation import Translation
from heedful.training.events import Events
from heedful.training.loop import Evaluation, Trainer
from heedful.training.recipe import TrainingRecipe

TEXTS = [[6 + (i * j) % 20 for j in range(1, 2 + i % 7)] for i in range(60)]


def trainer(listeners: tuple[Any, ...] = (), dropout: float = 0.1, **changes: Any) -> Trainer:
    torch.manual_seed(0)
    model = heedful.build("laptop-translator", vocabulary=30, width=16, heads=2, layers=1, dropout=dropout)
    settings = {"steps": 12, "batch_tokens": 96, "learning_rate": 0.01, "warmup": 2, "evaluate_every": 4}
    recipe = TrainingRecipe(**{**settings, **changes})
    batches = PairBatches(Sequences.of(TEXTS), Sequences.of(TEXTS), tokens=recipe.batch_tokens, seed=3)
    objective = Translation(recipe.label_smoothing, recipe.r_drop)
    device = torch.device("cpu")
    return Trainer(model, objective, batches, recipe, seed=3, device=device, events=Events(*listeners))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_the_same_batches_for_any_number_of_workers() -> None:
    seen = []
    for workers in (0, 1, 4):
        stream = trainer(workers=workers).stream()
        seen.append([next(stream).source.tolist() for _ in range(25)])  # into the third epoch
        stream.close()  # type: ignore[attr-defined]
    assert seen[0] == seen[1] == seen[2]


def test_accumulated_batches_equal_one_large_batch() -> None:
    """Loss and gradient are divided by all real tokens, not averaged batch by batch."""
    large = trainer(batch_tokens=10_000, average="none", dropout=0.0)
    small = trainer(batch_tokens=96, average="none", dropout=0.0)
    parts = len(small.batches.plan(0))
    small.recipe = small.recipe.with_changes(accumulate=parts)
    one, many = large.step(large.stream()), small.step(small.stream())
    assert one.tokens == many.tokens
    torch.testing.assert_close(one.loss, many.loss)
    torch.testing.assert_close(one.gradient, many.gradient)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("average", ["none", "exponential", "last"])
def test_every_optimizer_and_average_learns(optimizer: str, average: str) -> None:
    events: list[dict[str, Any]] = []
    run = trainer((events.append,), steps=60, evaluate_every=20, optimizer=optimizer, average=average, r_drop=0.5)
    run.run(lambda model: Evaluation(0.0, {}), lambda model: None)
    losses = [event["loss"] for event in events if event["kind"] == "step"]
    assert losses[-1] < 0.8 * losses[0]


def test_the_best_model_is_saved_and_no_progress_stops_the_run() -> None:
    scores = iter([1.0, 3.0, 2.0, 2.5, 9.0])
    saved: list[int] = []
    run = trainer(steps=20, patience=2)
    progress = run.run(lambda model: Evaluation(next(scores), {}), lambda model: saved.append(run.progress.step))
    assert saved == [4, 8]
    assert (progress.step, progress.best, progress.best_step) == (16, 3.0, 8)


def test_evaluation_sees_averaged_weights_and_training_goes_on_with_its_own() -> None:
    run = trainer(steps=4, average="exponential")
    seen: list[torch.Tensor] = []
    run.run(lambda model: seen.append(model.table.weight.clone()) or Evaluation(0.0, {}), lambda model: None)  # type: ignore[func-returns-value]
    assert run.average is not None
    assert torch.equal(seen[-1], run.average.weights[0])
    assert not torch.equal(seen[-1], run.model.table.weight)


def test_two_runs_of_one_recipe_are_the_same_run() -> None:
    runs = [trainer(r_drop=1.0) for _ in range(2)]
    for run in runs:
        run.run(lambda model: Evaluation(0.0, {}), lambda model: None)
    for a, b in zip(*(run.model.parameters() for run in runs), strict=True):
        assert torch.equal(a, b)
