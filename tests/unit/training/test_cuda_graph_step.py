"""CUDA-graph steps give the same losses as plain ones."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from heedful.data.pair_dataset import PairBatches
from heedful.data.token_store import Sequences
from heedful.models.build import build
from heedful.models.presets import make_config
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.training.cuda_graph_step import CudaGraphForwardBackward
from heedful.training.recipe import TrainingRecipe
from heedful.training.reporting.events import Events
from heedful.training.trainer import Trainer


def run(
    *, cuda_graphs: bool, optimizer: str = "adamw", accumulate: int = 1, r_drop: float = 0.0
) -> tuple[list[float], Any]:
    draw = torch.Generator().manual_seed(1)
    texts = [torch.randint(6, 60, (3 + n % 5,), generator=draw).tolist() for n in range(64)]
    batches = PairBatches(Sequences.from_lists(texts), Sequences.from_lists(texts[::-1]), max_tokens=120, seed=1)
    torch.manual_seed(1)
    model = build(
        make_config(
            {"family": "encoder_decoder", "vocabulary": 60, "width": 32, "heads": 2, "layers": 2, "dropout": 0.1}
        )
    )
    recipe = TrainingRecipe.model_validate(
        {
            "steps": 60,
            "warmup": 5,
            "average": "none",
            "cuda_graphs": cuda_graphs,
            "optimizer": optimizer,
            "accumulate": accumulate,
            "precision": "bfloat16",
        }
    )
    device = torch.device("cuda")
    trainer = Trainer(model, Seq2SeqLoss(0.1, r_drop), batches, recipe, seed=1, device=device, events=Events())
    stream = trainer.batch_stream()
    return [float(trainer.step(stream).loss) for _ in range(60)], trainer


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_losses_equal_those_of_plain_steps(optimizer: str, accumulate: int) -> None:
    plain, _ = run(cuda_graphs=False, optimizer=optimizer, accumulate=accumulate)
    captured, trainer = run(cuda_graphs=True, optimizer=optimizer, accumulate=accumulate)
    assert isinstance(trainer.forward_backward, CudaGraphForwardBackward)
    assert trainer.forward_backward.captured  # something was replayed
    assert captured == pytest.approx(plain, rel=2e-2)
    assert captured[:10] == pytest.approx(plain[:10], rel=1e-3)  # with the same dropout masks


@pytest.mark.gpu
def test_r_drop_can_be_captured() -> None:
    plain, _ = run(cuda_graphs=False, r_drop=1.0)
    captured, _ = run(cuda_graphs=True, r_drop=1.0)
    assert captured == pytest.approx(plain, rel=2e-2)


COMPILED = """
import sys, torch, heedful
from heedful.data.text_dataset import TextBatches
from heedful.data.token_store import Sequences
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.training.reporting.events import Events
from heedful.training.trainer import Trainer
from heedful.training.recipe import TrainingRecipe

batches = TextBatches(Sequences.from_lists([list(range(6, 29)) * 9]), context=8, rows=7, seed=0)
assert len({len(indices) for indices in batches.plan(0)}) == 2  # the last batch of an epoch is smaller
losses = []
for fast in (False, True):
    torch.manual_seed(1)
    model = heedful.build("laptop-writer", vocabulary=30, width=16, heads=2, layers=1, dropout=0.0)
    recipe = TrainingRecipe(steps=20, warmup=1, average="none", cuda_graphs=fast, compile=fast)
    cuda = torch.device("cuda")
    trainer = Trainer(model, CausalLMLoss(), batches, recipe, seed=1, device=cuda, events=Events())
    stream = trainer.batch_stream()
    losses.append([float(trainer.step(stream).loss) for _ in range(20)])
assert len(trainer.forward_backward.captured) == 2
torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-2, atol=1e-2)
"""


@pytest.mark.gpu
def test_steps_are_compiled_before_they_are_captured() -> None:
    """In a subprocess: the shape checks added by tests cannot be compiled."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True, capture_output=True)
