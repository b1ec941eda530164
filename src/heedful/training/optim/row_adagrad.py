"""Tables of vectors learn by rows: each has a rate of its own, and those that a batch does not touch cost nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import embedding_bag

POWER = 0.3
"""½ is AdaGrad, 0 one rate for all."""


class RowAdaGrad(torch.optim.Optimizer):
    """v_w ← v_w − η g_w / (Σ |g_w|²/d)^p,  p = 0.3        after Duchi 2011, one sum for each row

    A frequent word gets its gradients from many places of a batch at once, a rare one from a single place every now
    and then. One rate for both either tears the first to and fro or leaves the second where it was; divided by the
    size of the gradients that came so far, each goes at its own pace. AdaGrad divides by the root, p = ½, and so slows
    frequent words down too much to learn from all that is said of them: p lies between it and one rate for all, p = 0.
    """

    found_inf: Tensor | None = None
    """1 where the gradients are not finite: nothing changes then."""
    grad_scale: Tensor | None = None
    """What the gradients are divided by."""

    def __init__(self, weights: Iterable[nn.Parameter] | Iterable[dict[str, Any]], lr: float) -> None:
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group["lr"])

    def _update(self, weight: Tensor, rate: float) -> None:
        rows, gradient = coalesced_rows(weight.grad)
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale
        if self.found_inf is not None:
            gradient = _zero_where(self.found_inf, gradient)
        state = self.state[weight]
        if "squares" not in state:
            state["squares"] = torch.zeros(len(weight), device=weight.device)
        squares: Tensor = state["squares"]
        squares.index_add_(0, rows, gradient.square().mean(1))
        pace = squares[rows].pow(POWER).clamp(min=1e-20)
        weight.index_add_(0, rows, gradient / pace[:, None], alpha=-rate)


def _zero_where(skip: Tensor, gradient: Tensor) -> Tensor:
    """The gradient, or zeros. Only where asking would make a device wait, both are worked out."""
    if skip.device.type != "cpu" or isinstance(skip, FakeTensor):
        return torch.where(skip > 0, 0.0, gradient)
    return torch.zeros_like(gradient) if skip else gradient


def coalesced_rows(gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    """The rows that a gradient has something for, each once, and what that is."""
    assert gradient is not None
    if not gradient.is_sparse:
        return torch.arange(len(gradient), device=gradient.device), gradient
    rows, values = gradient._indices()[0], gradient._values()
    if isinstance(values, FakeTensor):  # a rehearsal: rows without contents cannot be told apart
        return rows, values
    rows, order = torch.sort(rows)
    rows, times = torch.unique_consecutive(rows, return_counts=True)
    return rows, embedding_bag(order, values, times.cumsum(0) - times, mode="sum")  # as index_add_, but faster
