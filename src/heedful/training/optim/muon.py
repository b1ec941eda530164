"""Muon that can be told, on the device, to leave everything as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """torch's Muon with what its fused AdamW has: gradients are divided by `grad_scale`, and where `found_inf` is 1, a
    step changes nothing.

    A gradient that equals the momentum leaves the momentum as it was, and the weights are put back from a
    copy that lives for the length of the step.
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
