"""The training loop: batch order, one update per step, evaluation, resuming, non-finite steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import heedful
from heedful.data.pair_dataset import PairBatches
from heedful.data.token_store import Sequences
from heedful.errors import NonFiniteError
from heedful.layers.taps import is_observed
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.training.recipe import TrainingRecipe
from heedful.training.reporting.events import Events
from heedful.training.trainer import Evaluation, Trainer

TEXTS = [[6 + (i * j) % 20 for j in range(1, 2 + i % 7)] for i in range(60)]


def trainer(listeners: tuple[Any, ...] = (), dropout: float = 0.1, device: str = "cpu", **changes: Any) -> Trainer:
    torch.manual_seed(0)
    model = heedful.build("laptop-translator", vocabulary=30, width=16, heads=2, layers=1, dropout=dropout)
    settings = {"steps": 12, "batch_tokens": 96, "learning_rate": 0.01, "warmup": 2, "evaluate_every": 4}
    recipe = TrainingRecipe(**{**settings, **changes})
    batches = PairBatches(
        Sequences.from_lists(TEXTS), Sequences.from_lists(TEXTS), max_tokens=recipe.batch_tokens, seed=3
    )
    objective = Seq2SeqLoss(recipe.label_smoothing, recipe.r_drop)
    return Trainer(model, objective, batches, recipe, seed=3, device=torch.device(device), events=Events(*listeners))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_batches_do_not_depend_on_the_number_of_workers() -> None:
    seen = []
    for workers in (0, 1, 4):
        stream = trainer(workers=workers).batch_stream()
        seen.append([next(stream).source.tolist() for _ in range(25)])  # into the third epoch
        stream.close()  # type: ignore[attr-defined]
    assert seen[0] == seen[1] == seen[2]


def test_accumulated_batches_equal_one_large_batch() -> None:
    """Loss and gradient are divided by all real tokens, not averaged batch by batch."""
    large = trainer(batch_tokens=10_000, average="none", dropout=0.0)
    small = trainer(batch_tokens=96, average="none", dropout=0.0)
    parts = len(small.batches.plan(0))
    small.recipe = small.recipe.with_changes(accumulate=parts)
    one, many = large.step(large.batch_stream()), small.step(small.batch_stream())
    assert one.tokens == many.tokens
    torch.testing.assert_close(one.loss, many.loss)
    torch.testing.assert_close(one.grad_norm, many.grad_norm)


def test_interventions_are_active_in_every_step_and_in_no_evaluation() -> None:
    run = trainer(steps=4, average="none", dropout=0.0, interventions=[{"kind": "ablate", "part": "decoder.0.cross"}])
    ablated, before = run.model.decoder.blocks[0].cross, run.model.decoder.blocks[0].cross.query.weight.clone()
    seen: list[bool] = []
    run.fit(lambda model: (seen.append(is_observed(model)), Evaluation(0.0, {}))[1], lambda model: None)
    assert seen == [False]
    assert all(weight.grad is None or not weight.grad.any() for weight in ablated.parameters())
    assert not torch.equal(run.model.table.weight, trainer().model.table.weight)
    plain = trainer(steps=4, average="none", dropout=0.0, weight_decay=0.0)
    plain.fit(lambda model: Evaluation(0.0, {}), lambda model: None)
    assert not torch.equal(plain.model.decoder.blocks[0].cross.query.weight, before)


def test_a_step_with_interventions_has_the_loss_of_the_changed_model() -> None:
    change = heedful.Scale("encoder.0.attention", 0.5)
    run = trainer(average="none", dropout=0.0, interventions=[change.model_dump()])
    batch = next(run.batch_stream())
    with heedful.intervene(run.model, [change]):
        expected = run.forward_backward.objective.loss(run.model.train(), batch)
    plain = run.forward_backward.objective.loss(run.model, batch)
    result = run.step(iter([batch]))
    assert torch.equal(result.loss, expected.detach())
    assert not torch.allclose(expected, plain)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interventions": [{"kind": "unmask"}]}, r"model\.decoder_causal = false"),
        ({"interventions": [{"kind": "ablate", "part": "encoder.9"}]}, "no part of this model is called 'encoder.9'"),
        ({"interventions": [{"kind": "ablate", "part": "encoder.0", "to": "mean"}]}, "no measured means"),
        ({"interventions": [{"kind": "ablate", "part": "encoder.0"}], "compile": True}, "cannot be combined with"),
        ({"interventions": [{"kind": "ablat", "part": "encoder.0"}]}, "ablat"),
    ],
)
def test_interventions_that_no_step_can_carry_out_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(heedful.UsageError, match=message):
        trainer(**settings)


def test_cuda_graphs_are_ignored_on_a_cpu() -> None:
    plain, graphs = (trainer(cuda_graphs=enabled, average="none") for enabled in (False, True))
    streams = plain.batch_stream(), graphs.batch_stream()
    for _ in range(9):  # shapes repeat, which is when they would be captured
        losses = [run.step(stream).loss for run, stream in zip((plain, graphs), streams, strict=True)]
        assert losses[0] == losses[1]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("average", ["none", "exponential", "last"])
def test_the_loss_falls_with_every_optimizer_and_average(optimizer: str, average: str) -> None:
    events: list[dict[str, Any]] = []
    run = trainer((events.append,), steps=60, evaluate_every=20, optimizer=optimizer, average=average, r_drop=0.5)
    run.fit(lambda model: Evaluation(0.0, {}), lambda model: None)
    losses = [event["loss"] for event in events if event["kind"] == "step"]
    assert losses[-1] < 0.8 * losses[0]


def test_the_best_model_is_saved_and_patience_stops_the_run() -> None:
    scores = iter([1.0, 3.0, 2.0, 2.5, 9.0])
    saved: list[int] = []
    run = trainer(steps=20, patience=2)
    progress = run.fit(lambda model: Evaluation(next(scores), {}), lambda model: saved.append(run.progress.step))
    assert saved == [4, 8]
    assert (progress.step, progress.best_score, progress.best_step) == (16, 3.0, 8)


def test_evaluation_uses_averaged_weights_and_training_its_own() -> None:
    run = trainer(steps=4, average="exponential")
    seen: list[torch.Tensor] = []
    run.fit(lambda model: seen.append(model.table.weight.clone()) or Evaluation(0.0, {}), lambda model: None)  # type: ignore[func-returns-value]
    assert run.average is not None
    assert torch.equal(seen[-1], run.average.weights[0])
    assert not torch.equal(seen[-1], run.model.table.weight)


def test_training_is_deterministic() -> None:
    runs = [trainer(r_drop=1.0) for _ in range(2)]
    for run in runs:
        run.fit(lambda model: Evaluation(0.0, {}), lambda model: None)
    for a, b in zip(*(run.model.parameters() for run in runs), strict=True):
        assert torch.equal(a, b)


def final_state(run: Trainer, after_step: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Train to the end; returns tensors and progress."""
    run.fit(lambda model: Evaluation(0.0, {}), lambda model: None, after_step)
    tensors, facts = run.state()
    return {**{name: tensor.tolist() for name, tensor in tensors.items()}, "progress": facts}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("average", ["none", "exponential", "last"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_restored_at_any_step_ends_with_the_same_state(optimizer: str, average: str, workers: int) -> None:
    settings: dict[str, Any] = {"optimizer": optimizer, "average": average, "accumulate": 2, "average_last": 2}
    states: list[tuple[dict[str, torch.Tensor], dict[str, Any]]] = []
    first = trainer(**settings, workers=workers)

    def store() -> None:
        tensors, facts = first.state()
        states.append(({name: tensor.clone() for name, tensor in tensors.items()}, facts))

    expected = final_state(first, store)
    for step in (0, 4, 6, 11):
        run = trainer(**settings)
        run.restore(*states[step])
        assert final_state(run) == expected


class NanLoss(Seq2SeqLoss):
    """A loss that is NaN at some calls."""

    calls = 0
    bad: tuple[int, ...] = ()

    def loss(self, model: Any, batch: Any) -> Any:
        NanLoss.calls += 1
        return super().loss(model, batch) * (float("nan") if NanLoss.calls in self.bad else 1.0)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_without_a_finite_loss_is_skipped_and_counted(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NanLoss, "bad", (3, 5))
    monkeypatch.setattr(NanLoss, "calls", 0)
    events: list[dict[str, Any]] = []
    run = trainer((events.append,), optimizer=optimizer, average="none")
    run.forward_backward.objective = NanLoss()
    stream = run.batch_stream()
    for number in range(1, 7):
        before = [weight.detach().clone() for weight in run.model.parameters()]
        run.metrics.add(run.step(stream))
        same = all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
        assert same == (number in (3, 5))
    run.metrics.collect()
    assert (run.progress.skipped, run.progress.skipped_in_a_row) == (2, 0)
    assert [event["text"] for event in events] == [
        f"skipped step {step} (epoch 0, batch {step - 1}): loss nan, gradient nan" for step in (3, 5)
    ]


def test_too_many_skipped_steps_in_a_row_fail_even_across_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NanLoss, "bad", tuple(range(3, 100)))
    monkeypatch.setattr(NanLoss, "calls", 0)
    run = trainer()
    run.forward_backward.objective = NanLoss()
    stream = run.batch_stream()
    for _ in range(4):
        run.metrics.add(run.step(stream))
    again = trainer()
    again.forward_backward.objective = NanLoss()
    again.restore(*run.state())
    with pytest.raises(NonFiniteError, match=r"5 times in a row, last at step 7 \(epoch 0, batch 6\)") as caught:
        final_state(again)
    assert caught.value.exit_code == 5


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_on_a_gpu_does_not_synchronize(optimizer: str) -> None:
    run = trainer(optimizer=optimizer, device="cuda")
    stream = run.batch_stream()
    for _ in range(3):
        run.metrics.add(run.step(stream))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            run.metrics.add(run.step(stream))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    run.metrics.collect()
