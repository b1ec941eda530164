"""Cross-entropy summed over real tokens, in slices."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.data.pair_dataset import PairBatches
from heedful.data.text_dataset import TextBatches
from heedful.data.token_store import Sequences
from heedful.models.heads import OutputProjection
from heedful.objectives import cross_entropy
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.objectives.cross_entropy import r_drop_loss, token_loss
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.text.special_tokens import PAD


def _pairs() -> PairBatches:
    source = Sequences.from_lists([[7, 8, 9], [10], [11, 12]])
    target = Sequences.from_lists([[13, 14], [15, 16, 17, 18], [19]])
    return PairBatches(source, target, max_tokens=10_000, seed=0, shuffle=False)


def test_the_loss_is_minus_the_log_probability_of_the_labels() -> None:
    states, labels = torch.randn(2, 3, 4), torch.tensor([[1, 2, PAD], [3, PAD, PAD]])
    table = torch.randn(5, 4)
    scores = torch.log_softmax(states @ table.T, -1)
    expected = -(scores[0, 0, 1] + scores[0, 1, 2] + scores[1, 0, 3])
    torch.testing.assert_close(token_loss(OutputProjection(states, table, None), labels), expected)


def test_no_labels_give_zero_loss_and_gradient() -> None:
    states = torch.randn(1, 2, 4, requires_grad=True)
    loss = token_loss(OutputProjection(states, torch.eye(4), None), torch.full((1, 2), PAD))
    loss.backward()
    assert loss == 0
    assert states.grad is not None
    assert not states.grad.any()


@pytest.mark.parametrize("slice_logits", [1, 40, 10_000], ids=["row by row", "in slices", "whole"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sliced_loss_and_gradients_equal_those_of_all_logits(
    smoothing: float, bias: bool, slice_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cross_entropy.LOGITS_PER_SLICE, "cpu", slice_logits)
    draw = torch.Generator().manual_seed(1)
    states, weight, offset = (
        torch.randn(*shape, generator=draw, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 5, 4), (7, 4), (7,))
    )
    labels = torch.randint(0, 7, (3, 5), generator=draw)
    gradients = [states, weight, *([offset] if bias else [])]
    actual = token_loss(OutputProjection(states, weight, offset if bias else None), labels, label_smoothing=smoothing)
    logits = torch.nn.functional.linear(states, weight, offset if bias else None)
    reference = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=smoothing
    )
    torch.testing.assert_close(actual, reference)
    for mine, other in zip(
        torch.autograd.grad(3 * actual, gradients), torch.autograd.grad(3 * reference, gradients), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_under_autocast_products_are_half_precision_and_gradients_have_the_weights_dtype() -> None:
    states, table, bias = (torch.randn(*shape, requires_grad=True) for shape in ((2, 3, 4), (5, 4), (5,)))
    labels = torch.tensor([[1, 2, PAD], [3, PAD, PAD]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = token_loss(OutputProjection(states, table, bias), labels)
    assert loss.dtype == torch.float32
    exact = token_loss(OutputProjection(states, table, bias), labels)
    actual, reference = (torch.autograd.grad(one, (states, table, bias)) for one in (loss, exact))
    for mine, other in zip(actual, reference, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, other, rtol=0.05, atol=0.05)


COMPARE_COMPILED = """
import sys, torch, heedful
from heedful.data.text_dataset import TextBatches
from heedful.data.token_store import Sequences
from heedful.objectives import cross_entropy
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.objectives.objective import to_device

device, backend, vocabulary = *sys.argv[1:3], int(sys.argv[3])
cross_entropy.LOGITS_PER_SLICE[device] = 7 * vocabulary
torch.manual_seed(1)
model = heedful.build("laptop-writer", vocabulary=vocabulary, width=16, heads=2, layers=1, dropout=0.0).to(device)
batches = TextBatches(Sequences.from_lists([list(range(6, 29)) * 9]), context=8, rows=4, seed=0)
batch = to_device(batches.batch(0, batches.plan(0)[0]), torch.device(device))
taught = []
for loss_of in (CausalLMLoss().loss, torch.compile(CausalLMLoss().loss, backend=backend)):
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        loss = loss_of(model, batch)
    taught.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
near = 0.03 if device == "cuda" else 1e-5
for plain, compiled in zip(*taught, strict=True):
    assert (compiled - plain).norm() <= near * plain.norm() + 1e-6
"""
COMPILED_CASES = [
    ("cpu", "aot_eager", "30"),
    pytest.param("cuda", "inductor", "30", marks=pytest.mark.gpu),
    pytest.param("cuda", "inductor", "1030", marks=pytest.mark.gpu),  # with a kernel of our own
]


@pytest.mark.parametrize(("device", "backend", "words"), COMPILED_CASES)
def test_torch_compile_does_not_change_gradients(
    fork_server: Any, device: str, backend: str, words: str, tmp_path: Path
) -> None:
    """In a separate process: torch.compile cannot trace through the test suite's shape checks."""
    done = fork_server.run_script(COMPARE_COMPILED, device, backend, words, folder=tmp_path)
    assert done.code == 0, done.output


def test_no_gradient_is_computed_without_parameters() -> None:
    projection = OutputProjection(torch.randn(2, 3, 4), torch.randn(5, 4), None)
    assert not token_loss(projection, torch.ones(2, 3).long()).requires_grad


def test_evaluation_computes_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    states, table = torch.randn(2, 3, 4), torch.randn(5, 4, requires_grad=True)
    projection, labels = OutputProjection(states, table, None), torch.tensor([[1, 2, PAD], [3, PAD, PAD]])
    expected, gradients, slices = token_loss(projection, labels), [], cross_entropy.sliced_cross_entropy

    def spy(*inputs: Any) -> Any:
        gradients.append(inputs[-1])
        return slices(*inputs)

    monkeypatch.setattr(cross_entropy, "sliced_cross_entropy", spy)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(token_loss(projection, labels), expected.detach())
    token_loss(projection, labels)
    assert gradients == [False, False, True]


def test_one_slice_of_logits_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[Any] = []
    work_out = cross_entropy.cross_entropy_and_gradient

    def spy(*inputs: Any, **options: Any) -> Any:
        assert not any(slope() is not None for slope in stored)  # by now the next slice's logits are there
        surprise, slope = work_out(*inputs, **options)
        stored.append(weakref.ref(slope))
        return surprise, slope

    monkeypatch.setitem(cross_entropy.LOGITS_PER_SLICE, "cpu", 10)
    monkeypatch.setattr(cross_entropy, "cross_entropy_and_gradient", spy)
    table = torch.randn(5, 4, requires_grad=True)
    token_loss(OutputProjection(torch.randn(2, 3, 4), table, None), torch.ones(2, 3).long()).backward()
    assert len(stored) == 3


def test_r_drop_is_the_mean_loss_plus_the_divergence() -> None:
    one, two = torch.randn(1, 2, 5), torch.randn(1, 2, 5)
    labels = torch.tensor([[1, PAD]])
    p, q = one[0, 0].softmax(-1), two[0, 0].softmax(-1)
    mean = -(p[1].log() + q[1].log()) / 2
    apart = 0.5 * ((p * (p / q).log()).sum() + (q * (q / p).log()).sum())
    for logits, expected in ((torch.cat([one, one]), -p[1].log()), (torch.cat([one, two]), mean + 3 * apart)):
        torch.testing.assert_close(r_drop_loss(logits, labels, label_smoothing=0.0, weight=3.0), expected)


@pytest.mark.parametrize("name", ["laptop-translator", "recurrent-translator"])
def test_a_batch_s_loss_is_the_sum_of_its_pairs_losses(name: str) -> None:
    size = {"width": 16} if name.startswith("recurrent") else {"width": 16, "heads": 2, "layers": 1}
    model = heedful.build(name, vocabulary=30, **size).eval()
    batches, objective = _pairs(), Seq2SeqLoss()
    (everything,) = batches.plan(0)
    together = objective.loss(model, batches.batch(0, everything))
    alone = sum(objective.loss(model, batches.batch(0, everything[i : i + 1])) for i in range(3))
    torch.testing.assert_close(together, alone)
    assert objective.token_count(batches.batch(0, everything)) == batches.labels_per_epoch == 2 + 4 + 1 + 3


def test_label_smoothing_and_r_drop_apply_in_training_only() -> None:
    model = heedful.build("laptop-translator", vocabulary=30, width=16, heads=2, layers=1, dropout=0.5)
    batches = _pairs()
    batch = batches.batch(0, batches.plan(0)[0])
    plain, strict = Seq2SeqLoss(), Seq2SeqLoss(label_smoothing=0.2, r_drop=2.0)
    assert plain.loss(model.eval(), batch) == strict.loss(model.eval(), batch)
    assert plain.loss(model.train(), batch) != strict.loss(model.train(), batch)


def test_every_token_of_running_text_is_a_label_once() -> None:
    model = heedful.build("laptop-writer", vocabulary=30, width=16, heads=2, layers=1).eval()
    text = Sequences.from_lists([list(range(6, 29))])
    batches = TextBatches(text, context=8, rows=2, seed=0, shuffle=False)
    labels = [int(label) for plan in batches.plan(0) for label in batches.batch(0, plan).labels.flatten() if label]
    assert labels == list(range(7, 29))
    label_total = sum(CausalLMLoss().token_count(batches.batch(0, plan)) for plan in batches.plan(0))
    assert label_total == batches.labels_per_epoch == 22
    assert all(CausalLMLoss().loss(model, batches.batch(0, plan)) > 0 for plan in batches.plan(0))
