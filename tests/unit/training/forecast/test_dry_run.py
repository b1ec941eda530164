"""A dry run counts the memory and FLOPs of a real step."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from heedful.data.pair_dataset import PairBatch
from heedful.data.text_dataset import TextBatch
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.models.presets import make_config
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.objectives.objective import Objective
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.training.forecast.dry_run import dry_run_step
from heedful.training.optim.optimizer import Optimizer
from heedful.training.recipe import TrainingRecipe
from heedful.training.step import ForwardBackward, train_step

CPU = torch.device("cpu")
SHAPE = {"vocabulary": 50, "width": 32, "layers": 2, "heads": 4, "dropout": 0.1}
PAIRS = PairBatch(
    torch.full((6, 9), 7), torch.full((6,), 9), target=torch.full((6, 5), 8), labels=torch.full((6, 5), 9)
)
TEXT = TextBatch(torch.full((4, 16), 7), torch.full((4, 16), 8))
CASES = [("encoder_decoder", Seq2SeqLoss(0.1), PAIRS), ("decoder", CausalLMLoss(), TEXT)]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(("family", "objective", "batch"), CASES, ids=["pairs", "text"])
def test_flops_equal_those_of_a_real_step(
    family: str, objective: Objective, batch: PairBatch | TextBatch, optimizer: str
) -> None:
    config = make_config({"family": family, **SHAPE})
    recipe = TrainingRecipe.model_validate({"steps": 1, "optimizer": optimizer})
    model = build(config)
    with FlopCounterMode(display=False) as counter:
        forward_backward = ForwardBackward(model, objective, CPU, torch.float32)
        train_step(forward_backward, [batch], Optimizer(model, recipe), step=0, seed=0)
    assert dry_run_step(config, recipe, objective, batch, CPU).flops == counter.get_total_flops() > 0


@pytest.mark.parametrize(
    ("settings", "states"),
    [({"optimizer": "adamw"}, 2), ({"optimizer": "muon"}, None)],
)
def test_weights_gradients_and_optimizer_state_are_counted_to_the_byte(
    settings: dict[str, str], states: int | None
) -> None:
    config = make_config({"family": "decoder", **SHAPE})
    cost = dry_run_step(config, TrainingRecipe.model_validate({"steps": 1, **settings}), CausalLMLoss(), TEXT, CPU)
    model = build(config)
    weights = sum(weight.nbytes for weight in model.parameters())
    assert weights <= cost.weights <= weights + 4096  # and buffers
    assert cost.gradients == weights
    if states:
        counters = 4 * sum(1 for _ in model.parameters())
        assert cost.optimizer == states * weights + counters
    else:
        assert weights < cost.optimizer < 2 * weights  # Muon keeps one number per weight, AdamW two


def test_larger_batches_need_more_memory_and_dry_runs_are_repeatable() -> None:
    config = make_config({"family": "decoder", **SHAPE})
    recipe = TrainingRecipe(steps=1)
    once = dry_run_step(config, recipe, CausalLMLoss(), TEXT, CPU)
    twice = dry_run_step(
        config, recipe, CausalLMLoss(), TextBatch(TEXT.tokens.repeat(2, 1), TEXT.labels.repeat(2, 1)), CPU
    )
    assert 1.5 < twice.step / once.step < 2.1
    assert twice.weights == once.weights
    assert once == dry_run_step(config, recipe, CausalLMLoss(), TEXT, CPU)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_models_can_be_dry_run(cell: str) -> None:
    config: ModelConfig = make_config(
        {"family": "recurrent_encoder_decoder", "vocabulary": 50, "width": 32, "cell": cell}
    )
    cost = dry_run_step(config, TrainingRecipe(steps=1), Seq2SeqLoss(), PAIRS, CPU)
    assert cost.step > 0
    matrices = sum(weight.numel() for name, weight in build(config).named_parameters() if "weight_" in name)
    assert cost.flops > 6 * 6 * 5 * matrices / 2


def test_a_model_far_larger_than_the_machine_can_be_dry_run() -> None:
    config = make_config(
        {"family": "decoder", "vocabulary": 320, "width": 8192, "layers": 4, "heads": 64, "norm_order": "pre"}
    )
    cost = dry_run_step(
        config, TrainingRecipe(steps=1), CausalLMLoss(), TextBatch(*(torch.zeros(64, 2048).long(),) * 2), CPU
    )
    assert cost.weights > 12 * 4 * 8192**2 * 4
    assert cost.step > 100e9
