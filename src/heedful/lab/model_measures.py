"""Measure gradients and token representations by layer, and the loss at every position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.data.text_dataset import TextBatch
from heedful.lab.fitting import LabTask
from heedful.layers.block import Stack
from heedful.layers.taps import record, tap_names
from heedful.objectives.objective import to_device


def first_batch(task: LabTask, seed: int, device: torch.device) -> Any:
    """The first training batch of a task."""
    batches = task.batches(seed)
    return to_device(batches.batch(0, batches.plan(0)[0]), device)


def gradient_norms(model: Any, task: LabTask, batch: Any, stack: str = "decoder") -> list[float]:
    """The gradient norm of each block's weights, from the first block to the last, for the mean loss of a batch."""
    model.zero_grad()
    loss: Tensor = task.objective.loss(model, batch) / task.objective.token_count(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    blocks: Stack = getattr(model, stack)
    norms = []
    for block in blocks.blocks:
        gradients = [weight.grad for weight in block.parameters() if weight.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
    model.zero_grad()
    return norms


@torch.inference_mode()
def token_spread(model: Any, batch: TextBatch, stack: str = "decoder") -> list[float]:
    """Spread of the tokens of a text after each block: 0 = all states equal (rank collapse), 1 = maximum.

    |X − 1 x̄ᵀ| / |X| in the Frobenius norm, averaged over the texts        Dong 2021, 2.2
    """
    names = [name for name in tap_names(model) if name.startswith(f"{stack}.") and name.endswith(".residual")]
    taps = list({name.split(".")[1]: name for name in names}.values())  # the last of each block
    with record(model, *taps) as recorded:
        model.states(batch.tokens)
    return [float(spread(recorded[tap]).mean()) for tap in taps]


def spread(states: Tensor) -> Tensor:
    """|X − 1 x̄ᵀ| / |X| of every text of a batch."""
    centered = states - states.mean(1, keepdim=True)
    norms: Tensor = states.flatten(1).norm(dim=1).clamp(min=1e-30)
    relative: Tensor = centered.flatten(1).norm(dim=1) / norms
    return relative


@torch.inference_mode()
def loss_by_position(model: Any, batch: TextBatch) -> Tensor:
    """−log P of the label at every position, averaged over the texts of a batch; all of one length."""
    logits = model(batch.tokens)
    losses = F.cross_entropy(logits.flatten(0, 1).float(), batch.labels.flatten(), reduction="none")
    return losses.view_as(batch.labels).mean(0)
