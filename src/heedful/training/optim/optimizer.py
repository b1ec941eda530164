"""Optimizer of a model: AdamW, Muon for the matrices of blocks, or AdaGrad with one step size per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heedful.layers.block import Stack
from heedful.training.checkpoint.sharded_tensors import SliceableTensor
from heedful.training.distributed.fsdp import full_tensor, shard_like
from heedful.training.optim.layerwise_lr import learning_rate_factors
from heedful.training.optim.muon import Muon
from heedful.training.optim.row_adagrad import RowAdaGrad
from heedful.training.recipe import TrainingRecipe


class Optimizer:
    """Parameter groups by optimizer, layer-wise learning rate and weight decay.

    Weight decay applies to matrices only, not to norms and biases (Loshchilov & Hutter 2019). Lower layers may learn
    more slowly (`layer_decay`) or not at all (`freeze`): see `layerwise_lr`.
    """

    def __init__(self, model: nn.Module, recipe: TrainingRecipe) -> None:
        self.recipe = recipe
        self.lr_factor = 1.0
        factors = learning_rate_factors(model, recipe)
        self.parameters = {name: weight for name, weight in model.named_parameters() if name in factors}
        rate = recipe.learning_rate
        self.optimizers: list[torch.optim.Optimizer]
        if recipe.optimizer == "row_adagrad":
            self.optimizers = [RowAdaGrad(self._groups(factors, set(factors)), lr=rate)]
            return
        muon = set(factors) & block_matrices(model) if recipe.optimizer == "muon" else set()
        groups = self._groups(factors, set(factors) - muon)
        self.optimizers = [torch.optim.AdamW(groups, lr=rate, betas=recipe.betas, eps=1e-9, fused=True)]
        if muon:  # match_rms_adamw: one learning rate suits both optimizers
            self.optimizers.append(Muon(self._groups(factors, muon), lr=rate, adjust_lr_fn="match_rms_adamw"))

    def _groups(self, factors: Mapping[str, float], names: set[str]) -> list[dict[str, Any]]:
        """Parameters that share a learning rate and weight decay: matrices first, then from the top layer down."""
        groups: dict[tuple[bool, float], list[Tensor]] = {}
        for name, weight in self.parameters.items():
            if name in names:
                groups.setdefault((weight.ndim > 1, factors[name]), []).append(weight)
        return [
            {"params": weights, "lr_factor": factor, "weight_decay": self.recipe.weight_decay if is_matrix else 0.0}
            for (is_matrix, factor), weights in sorted(groups.items(), key=lambda item: item[0], reverse=True)
        ]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step, of the top layer."""
        return self.recipe.learning_rate * self.lr_factor

    def gradient_norm(self) -> Tensor:
        """The norm of all gradients together."""
        gradients = [weight.grad for weight in self.parameters.values() if weight.grad is not None]
        return full_tensor(nn.utils.get_total_norm([g._values() if g.is_sparse else g for g in gradients]))

    def step(self, lr_factor: float, found_inf: Tensor, grad_scale: Tensor | None = None) -> None:
        """Update the weights with gradients divided by `grad_scale`; where `found_inf` is 1, change nothing.

        Both stay on the device, under the names that AdamW's fused kernel reads: looking at them on the host would
        stall every step, and dividing the gradients beforehand would pass over them once more.
        """
        self.lr_factor = lr_factor
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.recipe.learning_rate * lr_factor * group["lr_factor"]
            optimizer.found_inf, optimizer.grad_scale = found_inf, grad_scale  # type: ignore[attr-defined]
            optimizer.step()
            optimizer.found_inf, optimizer.grad_scale = None, None  # type: ignore[attr-defined]

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=not self.recipe.cuda_graphs)  # a CUDA graph adds to fixed addresses

    def state_dict(self) -> dict[str, Tensor]:
        """The state by names of weights; learning rates and the like come from the recipe."""
        return {
            f"{name}.{slot}": tensor
            for name, weight in self.parameters.items()
            for optimizer in self.optimizers
            for slot, tensor in optimizer.state.get(weight, {}).items()
        }

    def load_state_dict(self, state: Mapping[str, SliceableTensor]) -> None:
        groups = [(optimizer, group) for optimizer in self.optimizers for group in optimizer.param_groups]
        states = {weight: optimizer.state[weight] for optimizer, group in groups for weight in group["params"]}
        for key, tensor in state.items():
            name, _, slot = key.rpartition(".")
            weight = self.parameters[name]
            states[weight][slot] = shard_like(tensor, weight)


def block_matrices(model: nn.Module) -> set[str]:
    """The names of the matrices in blocks, which Muon updates."""
    stacks = [(path, module) for path, module in model.named_modules() if isinstance(module, Stack)]
    return {name for path, stack in stacks for name, weight in stack.named_parameters(path) if weight.ndim == 2}
