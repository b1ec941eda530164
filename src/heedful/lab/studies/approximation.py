"""Q1: universal approximation by width or by embedding dimension: one hidden layer, and one head of attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful.lab.plotting import Lines
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.layers.multi_head_attention import SelfAttention

INPUTS = 4
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sine": lambda x: torch.sin(math.pi * x.mean(1)),
    "maximum": lambda x: x.amax(1),
    "product": lambda x: 2 * x[:, 0] * x[:, 1] - x[:, 2] * x[:, 3],
}
"""Functions of four numbers between −1 and 1."""


class HiddenLayer(nn.Sequential):
    """max(0, x W_1 + b_1) w_2 + b_2 of all inputs side by side        Barron 1993 · Q1"""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, 1))


class OneHead(nn.Module):
    """Each input as a token of width d with its position, one head of self-attention, the mean, and a linear output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(1, width)
        self.positions = nn.Parameter(torch.randn(INPUTS, width) / math.sqrt(width))
        self.attention = SelfAttention(width, 1)
        self.output = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x[..., None]) + self.positions
        result: Tensor = self.output((tokens + self.attention(tokens)).mean(1))
        return result


MODELS: dict[str, type[nn.Module]] = {"one hidden layer": HiddenLayer, "one head": OneHead}


def relative_error(model: nn.Module, function: Callable[[Tensor], Tensor], trial: Trial) -> float:
    """Root mean square error on fresh inputs after training, relative to the function's standard deviation."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, trial.budget["steps"])
    for _ in range(trial.budget["steps"]):
        x = 2 * torch.rand(256, INPUTS, device=trial.device) - 1
        loss = (model(x)[:, 0] - function(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.inference_mode():
        x = 2 * torch.rand(4096, INPUTS, device=trial.device) - 1
        y = function(x)
        return float(((model(x)[:, 0] - y).square().mean() / y.var()).sqrt())


def measure(trial: Trial) -> dict[str, Measured]:
    measured: dict[str, Measured] = {}
    for name, function in FUNCTIONS.items():
        model = MODELS[trial.text("model")](trial.number("size")).to(trial.device)
        measured[name] = relative_error(model, function, trial)
        measured["parameters"] = float(sum(weight.numel() for weight in model.parameters()))
    return measured


STUDY = Study(
    name="approximation",
    question="How well do one hidden layer and one head approximate the same functions as they grow?",
    concept="Q1",
    setup=(
        "Functions of four numbers, uniform in [−1, 1]: sin(π x̄), max x, and 2 x₁x₂ − x₃x₄. One hidden layer of ReLUs "
        "reads the four side by side; its size is the width. One head of self-attention reads them as four tokens with "
        "learned positions, a skip-connection and a mean, without a feed-forward network; its size is the embedding "
        "dimension. Adam, fresh inputs at every step. Error: root mean square, relative to the function's standard "
        "deviation; 100% is no better than a constant."
    ),
    variants=grid(model=tuple(MODELS), size=(4, 16, 64)),
    measure=measure,
    measures=(
        Measure("sine", "error, sine", "percent", 3, "the error on the sine"),
        Measure("maximum", "error, maximum", "percent", 3, "the error on the maximum"),
        Measure("product", "error, product", "percent", 3, "the error on the product"),
        Measure("parameters", "parameters", digits=0),
    ),
    predictions=(
        Claim(
            "the error of one hidden layer falls by more than half from width 4 to width 64, on the maximum",
            lambda r: r.is_more(
                "maximum", {"model": "one hidden layer", "size": 4}, {"model": "one hidden layer", "size": 64},
                by=r.estimate("maximum", {"model": "one hidden layer", "size": 4}).mean / 2,
            ),
        ),
        Claim(
            "the error of one head also falls from dimension 4 to 64, on the product",
            lambda r: r.is_more("product", {"model": "one head", "size": 4}, {"model": "one head", "size": 64}),
        ),
        Claim(
            "at size 64 one head, without any nonlinearity but the softmax, has a greater error on the maximum "
            "than one hidden layer",
            lambda r: r.is_more(
                "maximum", {"model": "one head", "size": 64}, {"model": "one hidden layer", "size": 64}
            ),
        ),
    ),
    wording={"size": "at size {}"},
    panels=tuple(Lines(name, x="size", log_x=True, log=True) for name in FUNCTIONS),
    would_change=(
        "Longer training or another optimizer: these errors include what training did not reach, not only what the "
        "form cannot express. Several heads or layers are another question."
    ),
    budget={"steps": 3000},
    quick={"steps": 300},
)  # fmt: skip
