"""A recorded step does what a plain one does, only sooner."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from heedful.data.batching import PairBatches
from heedful.data.token_store import Sequences
from heedful.models.build import build
from heedful.models.presets import make_config
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.training.cuda_graph_step import CudaGraphForwardBackward
from heedful.training.recipe import TrainingRecipe
from heedful.training.reporting.events import Events
from heedful.training.trainer import Trainer

needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def run(*, record: bool, optimizer: str = "adamw", accumulate: int = 1, r_drop: float = 0.0) -> tuple[list[float], Any]:
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
            "record": record,
            "optimizer": optimizer,
            "accumulate": accumulate,
            "precision": "bfloat16",
        }
    )
    device = torch.device("cuda")
    trainer = Trainer(model, Seq2SeqLoss(0.1, r_drop), batches, recipe, seed=1, device=device, events=Events())
    stream = trainer.batch_stream()
    return [float(trainer.step(stream).loss) for _ in range(60)], trainer


@needs_a_gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_recorded_run_is_the_plain_run(optimizer: str, accumulate: int) -> None:
    plain, _ = run(record=False, optimizer=optimizer, accumulate=accumulate)
    recorded, trainer = run(record=True, optimizer=optimizer, accumulate=accumulate)
    assert isinstance(trainer.gradients, CudaGraphForwardBackward)
    assert trainer.gradients.captured  # and something was replayed
    assert recorded == pytest.approx(plain, rel=2e-2)
    assert recorded[:10] == pytest.approx(plain[:10], rel=1e-3)  # dropout included: the same values fall out


@needs_a_gpu
def test_two_passes_under_different_dropout_are_recorded_too() -> None:
    plain, _ = run(record=False, r_drop=1.0)
    recorded, _ = run(record=True, r_drop=1.0)
    assert recorded == pytest.approx(plain, rel=2e-2)


COMPILED = """
import sys, torch, heedful
from heedful.data.batching import TextBatches
from heedful.data.token_store import Sequences
from heedful.objectives.causal_lm_loss import Language
from heedful.training.reporting.events import Events
from heedful.training.trainer import Trainer
from heedful.training.recipe import TrainingRecipe

batches = TextBatches(Sequences.of([list(range(6, 29)) * 9]), context=8, rows=7, seed=0)
assert len({len(indices) for indices in batches.plan(0)}) == 2  # the last batch of an epoch is smaller
losses = []
for fast in (False, True):
    torch.manual_seed(1)
    model = heedful.build("laptop-writer", vocabulary=30, width=16, heads=2, layers=1, dropout=0.0)
    recipe = TrainingRecipe(steps=20, warmup=1, average="none", record=fast, compile=fast)
    cuda = torch.device("cuda")
    trainer = Trainer(model, Language(), batches, recipe, seed=1, device=cuda, events=Events())
    stream = trainer.stream()
    losses.append([float(trainer.step(stream).loss) for _ in range(20)])
assert len(trainer.gradients.recordings) == 2
torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-2, atol=1e-2)
"""


@needs_a_gpu
def test_compiled_steps_are_compiled_before_they_are_recorded() -> None:
    """In a process of its own: the checks of shapes that tests add are not for compilers."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True, capture_output=True)
