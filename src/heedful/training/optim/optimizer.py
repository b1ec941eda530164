"""What turns gradients into better weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heedful.layers.block import Stack
from heedful.training.checkpoint.sharded_tensors import Sliced
from heedful.training.distributed.fsdp import placed, whole
from heedful.training.optim.layerwise_lr import learning_rates
from heedful.training.optim.muon import Muon
from heedful.training.optim.row_adagrad import RowAdaGrad
from heedful.training.recipe import TrainingRecipe


class Optimizer:
    """AdamW for everything; or Muon for the matrices of the blocks and AdamW for the rest; or a rate for each row.

    Weight decay falls on matrices only: norms and biases have no scale to shrink (Loshchilov & Hutter 2019). Lower
    layers may learn more slowly (`layer_decay`) or not at all (`freeze`): see `layers`.
    """

    def __init__(self, model: nn.Module, recipe: TrainingRecipe) -> None:
        self.recipe = recipe
        self.factor = 1.0
        rates = learning_rates(model, recipe)
        self.named = named = {name: weight for name, weight in model.named_parameters() if name in rates}
        self.parts: list[torch.optim.Optimizer]
        if recipe.optimizer == "rows":
            groups_of_rows = [{"params": [weight], "share": rates[name]} for name, weight in named.items()]
            self.parts = [RowAdaGrad(groups_of_rows, lr=recipe.learning_rate)]
            return
        muon = set(_block_matrices(model)) & set(named) if recipe.optimizer == "muon" else set()
        groups: dict[tuple[bool, float, bool], list[Tensor]] = {}
        for name, weight in named.items():
            groups.setdefault((name in muon, rates[name], weight.ndim > 1), []).append(weight)
        chosen = sorted(groups.items(), key=lambda group: (not group[0][2], -group[0][1]))  # matrices first

        def parameters(by_muon: bool) -> list[dict[str, Any]]:
            decay = recipe.weight_decay
            return [
                {"params": weights, "share": rate, "weight_decay": decay if is_matrix else 0.0}
                for (is_muon, rate, is_matrix), weights in chosen
                if is_muon == by_muon
            ]

        self.parts = [
            torch.optim.AdamW(parameters(False), lr=recipe.learning_rate, betas=recipe.betas, eps=1e-9, fused=True)
        ]
        if muon:
            self.parts.append(
                Muon(
                    parameters(True),
                    lr=recipe.learning_rate,
                    weight_decay=recipe.weight_decay,
                    adjust_lr_fn="match_rms_adamw",  # one learning rate then suits both
                )
            )

    @property
    def rate(self) -> float:
        """The learning rate of the last step, at the top."""
        return self.recipe.learning_rate * self.factor

    def length(self) -> Tensor:
        """Of all gradients together."""
        gradients = [weight.grad for weight in self.named.values() if weight.grad is not None]
        return whole(nn.utils.get_total_norm([g._values() if g.is_sparse else g for g in gradients]))

    def step(self, factor: float, skip: Tensor, shrink: Tensor | None = None) -> None:
        """Update the weights by gradients divided by `shrink`; or, where `skip` is 1, leave everything as it is.

        Both stay on the device, under the names AdamW's fused kernel knows them by: reading them would make every
        step wait, and dividing beforehand would be one more way through all gradients.
        """
        self.factor = factor
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self.recipe.learning_rate * factor * group["share"]
            part.found_inf, part.grad_scale = skip, shrink  # type: ignore[attr-defined]
            part.step()
            part.found_inf, part.grad_scale = None, None  # type: ignore[attr-defined]

    def zero(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=not self.recipe.record)  # a recording adds to gradients where they are

    def state(self) -> dict[str, Tensor]:
        """All that resuming needs, by the weights' names; rates and the like come from the recipe."""
        state: dict[Tensor, dict[str, Tensor]] = {}
        for part in self.parts:
            state |= part.state
        return {
            f"{name}.{slot}": tensor
            for name, weight in self.named.items()
            for slot, tensor in state.get(weight, {}).items()
        }

    def restore(self, state: Mapping[str, Sliced]) -> None:
        owners = {weight: part for part in self.parts for group in part.param_groups for weight in group["params"]}
        for full, tensor in state.items():
            name, _, slot = full.rpartition(".")
            weight = self.named[name]
            owners[weight].state[weight][slot] = placed(tensor, weight)


def _block_matrices(model: nn.Module) -> Iterator[str]:
    for path, module in model.named_modules():
        if isinstance(module, Stack):
            for name, weight in module.named_parameters(prefix=path):
                if weight.ndim == 2:
                    yield name
