"""AdaGrad with one step size per row, for tables of vectors; rows that a batch does not touch cost nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import embedding_bag

POWER = 0.3
"""p below: ½ is AdaGrad, 0 plain SGD."""


class RowAdaGrad(torch.optim.Optimizer):
    """v_w ← v_w − η g_w / (Σ |g_w|²/d)^p,  p = 0.3        after Duchi 2011, with one sum per row

    The gradient of a frequent word comes from many positions of a batch, that of a rare word from one position now and
    then: a single learning rate is too high for the first or too low for the second. AdaGrad (p = ½) slows frequent
    words down too much; p = 0.3 lies between it and SGD (p = 0).
    """

    found_inf: Tensor | None = None
    """1 if a gradient is not finite: the step changes nothing then."""
    grad_scale: Tensor | None = None
    """Gradients are divided by this."""

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
        scale = squares[rows].pow(POWER).clamp(min=1e-20)
        weight.index_add_(0, rows, gradient / scale[:, None], alpha=-rate)


def _zero_where(skip: Tensor, gradient: Tensor) -> Tensor:
    """The gradient, or zeros; both are computed where reading `skip` would wait for a device."""
    if skip.device.type != "cpu" or isinstance(skip, FakeTensor):
        return torch.where(skip > 0, 0.0, gradient)
    return torch.zeros_like(gradient) if skip else gradient


def coalesced_rows(gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    """The rows of a (sparse) gradient, each once, and their summed values."""
    assert gradient is not None
    if not gradient.is_sparse:
        return torch.arange(len(gradient), device=gradient.device), gradient
    rows, values = gradient._indices()[0], gradient._values()
    if isinstance(values, FakeTensor):  # a dry run: rows without contents cannot be compared
        return rows, values
    rows, order = torch.sort(rows)
    rows, counts = torch.unique_consecutive(rows, return_counts=True)
    return rows, embedding_bag(order, values, counts.cumsum(0) - counts, mode="sum")  # faster than index_add_
