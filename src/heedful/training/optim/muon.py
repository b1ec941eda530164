"""Muon with gradient scaling and skipped steps on the device, like torch's fused AdamW."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """torch's Muon (momentum orthogonalized by Newton-Schulz iterations, Jordan 2024) with `grad_scale`, `found_inf`.

    Gradients are divided by `grad_scale`. Where `found_inf` is 1, a step changes nothing: a gradient equal to the
    momentum leaves the momentum unchanged, and the weights are restored from a copy that lives during the step.
    """

    found_inf: Tensor | None
    grad_scale: Tensor | None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert self.found_inf is not None
        skip = self.found_inf.bool()
        weights = [weight for group in self.param_groups for weight in group["params"] if weight.grad is not None]
        before = [weight.clone() for weight in weights]
        for weight in weights:
            momentum = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
            assert weight.grad is not None
            if self.grad_scale is not None:
                weight.grad /= self.grad_scale
            weight.grad.copy_(torch.where(skip, momentum, weight.grad))
        super().step(closure)  # type: ignore[no-untyped-call]
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(torch.where(skip, old, weight))
