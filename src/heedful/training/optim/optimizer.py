"""What turns gradients into better weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heedful.layers.block import Stack
from heedful.training.checkpoint.sharded_tensors import SliceableTensor
from heedful.training.distributed.fsdp import shard_like, full_tensor
from heedful.training.optim.layerwise_lr import learning_rate_factors
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
        self.lr_factor = 1.0
        rates = learning_rate_factors(model, recipe)
        self.parameters = named = {name: weight for name, weight in model.named_parameters() if name in rates}
        self.optimizers: list[torch.optim.Optimizer]
        if recipe.optimizer == "rows":
            groups_of_rows = [{"params": [weight], "share": rates[name]} for name, weight in named.items()]
            self.optimizers = [RowAdaGrad(groups_of_rows, lr=recipe.learning_rate)]
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

        self.optimizers = [
            torch.optim.AdamW(parameters(False), lr=recipe.learning_rate, betas=recipe.betas, eps=1e-9, fused=True)
        ]
        if muon:
            self.optimizers.append(
                Muon(
                    parameters(True),
                    lr=recipe.learning_rate,
                    weight_decay=recipe.weight_decay,
                    adjust_lr_fn="match_rms_adamw",  # one learning rate then suits both
                )
            )

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step, at the top."""
        return self.recipe.learning_rate * self.lr_factor

    def gradient_norm(self) -> Tensor:
        """Of all gradients together."""
        gradients = [weight.grad for weight in self.parameters.values() if weight.grad is not None]
        return full_tensor(nn.utils.get_total_norm([g._values() if g.is_sparse else g for g in gradients]))

    def step(self, lr_factor: float, found_inf: Tensor, grad_scale: Tensor | None = None) -> None:
        """Update the weights by gradients divided by `shrink`; or, where `skip` is 1, leave everything as it is.

        Both stay on the device, under the names AdamW's fused kernel knows them by: reading them would make every
        step wait, and dividing beforehand would be one more way through all gradients.
        """
        self.lr_factor = lr_factor
        for part in self.optimizers:
            for group in part.param_groups:
                group["lr"] = self.recipe.learning_rate * lr_factor * group["share"]
            part.found_inf, part.grad_scale = found_inf, grad_scale  # type: ignore[attr-defined]
            part.step()
            part.found_inf, part.grad_scale = None, None  # type: ignore[attr-defined]

    def zero_grad(self) -> None:
        for part in self.optimizers:
            part.zero_grad(set_to_none=not self.recipe.cuda_graphs)  # a recording adds to gradients where they are

    def state_dict(self) -> dict[str, Tensor]:
        """All that resuming needs, by the weights' names; rates and the like come from the recipe."""
        state: dict[Tensor, dict[str, Tensor]] = {}
        for part in self.optimizers:
            state |= part.state
        return {
            f"{name}.{slot}": tensor
            for name, weight in self.parameters.items()
            for slot, tensor in state.get(weight, {}).items()
        }

    def load_state_dict(self, state: Mapping[str, SliceableTensor]) -> None:
        owners = {weight: part for part in self.optimizers for group in part.param_groups for weight in group["params"]}
        for full, tensor in state.items():
            name, _, slot = full.rpartition(".")
            weight = self.parameters[name]
            owners[weight].state[weight][slot] = shard_like(tensor, weight)


def _block_matrices(model: nn.Module) -> Iterator[str]:
    for path, module in model.named_modules():
        if isinstance(module, Stack):
            for name, weight in module.named_parameters(prefix=path):
                if weight.ndim == 2:
                    yield name
