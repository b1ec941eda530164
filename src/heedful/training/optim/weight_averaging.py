"""Weight averaging over training steps, whose result often scores better than the last weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from heedful.training.checkpoint.sharded_tensors import SliceableTensor
from heedful.training.distributed.fsdp import shard_like


class WeightAverage:
    """Averaged copies of a model's weights, which can replace them temporarily."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = _copies(model)
        self.updates = 0

    @contextmanager
    def swapped_into(self, model: nn.Module) -> Iterator[None]:
        """Within the block, the model has the averaged weights: for evaluation and saving."""
        trained = _copies(model)
        _load(self.weights, model)
        try:
            yield
        finally:
            _load(trained, model)

    def state_dict(self) -> dict[str, Tensor]:
        return {"updates": torch.tensor(self.updates)} | {str(i): weight for i, weight in enumerate(self.weights)}

    def load_state_dict(self, state: Mapping[str, SliceableTensor]) -> None:
        self.updates = int(state["updates"][()])
        for i, weight in enumerate(self.weights):
            weight.copy_(shard_like(state[str(i)], weight))


class ExponentialMovingAverage(WeightAverage):
    """EMA of the weights: w̄ ← β w̄ + (1 − β) w after every step        Polyak & Juditsky 1992

    Early on β is lower, (1 + t) / (10 + t), so that the random initial weights decay quickly.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.weights, [weight.detach() for weight in model.parameters()], 1 - decay)
        self.updates += 1


class CheckpointAverage(WeightAverage):
    """Mean of the weights at the last k evaluations        Vaswani 2017, 6.1"""

    def __init__(self, model: nn.Module, last: int) -> None:
        super().__init__(model)
        self.last = last
        self.snapshots: list[list[Tensor]] = []

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.snapshots = [*self.snapshots, _copies(model)][-self.last :]
        self._mean()
        self.updates += 1

    def _mean(self) -> None:
        for average, *weights in zip(self.weights, *self.snapshots, strict=True):
            average.copy_(torch.stack(weights).mean(0))

    def state_dict(self) -> dict[str, Tensor]:
        snapshots = {f"{k}.{i}": weight for k, weights in enumerate(self.snapshots) for i, weight in enumerate(weights)}
        return {"updates": torch.tensor(self.updates)} | snapshots

    def load_state_dict(self, state: Mapping[str, SliceableTensor]) -> None:
        self.updates = int(state["updates"][()])
        self.snapshots = [
            [shard_like(state[f"{k}.{i}"], weight) for i, weight in enumerate(self.weights)]
            for k in range(min(self.updates, self.last))
        ]
        if self.snapshots:
            self._mean()


def _copies(model: nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


@torch.no_grad()
def _load(weights: list[Tensor], model: nn.Module) -> None:
    for new, weight in zip(weights, model.parameters(), strict=True):
        weight.copy_(new)
