"""`heedful.probe`: time and memory of a model's forward and backward pass against the length of the text (A8, Q7)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.device import describe_machine, select_device
from heedful.errors import UsageError, require_positive
from heedful.inference.trained_model import TrainedModel
from heedful.models.build import build
from heedful.models.model_config import ModelConfig
from heedful.quantities import format_bytes
from heedful.text.special_tokens import NEVER_GENERATED
from heedful.training.forecast.dry_run import AllocationTracker

LENGTHS = (64, 128, 256, 512)


@dataclass(frozen=True)
class PassCost:
    """Time and memory of the passes over texts of one length."""

    length: int
    """Tokens of each text; in an encoder-decoder of source and target alike."""
    forward_seconds: float
    """Time of a forward pass without gradients: the fastest of the repeats."""
    backward_seconds: float
    """Time of a forward and backward pass."""
    forward_bytes: int
    """Peak of a forward pass without gradients, beyond the weights."""
    backward_bytes: int
    """Peak of a forward and backward pass, gradients included, beyond the weights."""


@dataclass(frozen=True)
class Probe:
    """The costs of a model at several lengths, shortest first."""

    costs: tuple[PassCost, ...]
    batch: int
    parameters: int
    machine: str

    def exponent(self, cost: str, last: int = 3) -> float:
        """p of cost ≈ c · lengthᵖ, by least squares on the logarithms of the `last` longest lengths."""
        costs = self.costs[-last:]
        if len(costs) < 2 or cost not in PassCost.__dataclass_fields__ or cost == "length":
            names = ", ".join(name for name in PassCost.__dataclass_fields__ if name != "length")
            raise UsageError(f"an exponent needs two lengths and one of {names}; got {len(costs)} and '{cost}'")
        x = [math.log(pass_cost.length) for pass_cost in costs]
        y = [math.log(max(getattr(pass_cost, cost), 1e-12)) for pass_cost in costs]
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.parameters:,} parameters, batch of {self.batch}, {self.machine}"]
        lines += [f"{'tokens':>8} {'forward':>21} {'forward and backward':>24}"]
        for cost in self.costs:
            forward = f"{1e3 * cost.forward_seconds:9.2f} ms {format_bytes(cost.forward_bytes):>9}"
            backward = f"{1e3 * cost.backward_seconds:9.2f} ms {format_bytes(cost.backward_bytes):>9}"
            lines.append(f"{cost.length:>8,} {forward:>21} {backward:>24}")
        return "\n".join(lines)


def probe(
    model: nn.Module | TrainedModel | ModelConfig | str,
    lengths: Sequence[int] = LENGTHS,
    *,
    batch: int = 1,
    repeats: int = 3,
    device: str | torch.device = "auto",
) -> Probe:
    """Measure a model, or a fresh one of a configuration or preset, on random texts: `heedful.probe("gpt2", [64, 99])`.

    Seconds are the fastest of `repeats` after a first run. Bytes are the peak of the tensors alive, counted on a CPU as
    they are allocated and on a GPU by its allocator. The model's weights, gradients and mode stay as they are; one that
    is built stays on `device`, another one where it is.
    """
    require_positive(batch=batch, repeats=repeats, **{f"length {index}": n for index, n in enumerate(lengths)})
    module = _module(model, device)
    costs = tuple(_pass_cost(module, batch, length, repeats) for length in sorted(lengths))
    parameters = sum(weight.numel() for weight in module.parameters())
    return Probe(costs, batch, parameters, describe_machine(module.device))


def _module(model: Any, device: str | torch.device) -> Any:
    """The model to measure, built on the device from a configuration or preset."""
    if isinstance(model, TrainedModel):
        model = model.model
    elif not isinstance(model, nn.Module):
        model = build(model).to(select_device(device))
    if model.config.family == "word_vectors":
        raise UsageError("word vectors read no texts: there is no pass to measure")
    return model


def _pass_cost(model: Any, batch: int, length: int, repeats: int) -> PassCost:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(NEVER_GENERATED), model.config.vocabulary, (batch, length), generator=generator)
    tokens = tokens.to(model.device)
    has_target = model.config.family.endswith("encoder_decoder")
    inputs = (tokens, tokens % (model.config.target_vocabulary or model.config.vocabulary)) if has_target else (tokens,)
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def forward() -> Tensor:
        with torch.inference_mode():
            output: Tensor = model(*inputs)
        return output

    def backward() -> Tensor:
        with torch.enable_grad():
            torch.autograd.grad(model(*inputs).float().square().mean(), weights, allow_unused=True)
        return tokens

    mode = model.training
    try:
        forward_cost = _measure(forward, model.eval(), repeats)
        backward_cost = _measure(backward, model.train(), repeats)
    finally:
        model.train(mode)
    return PassCost(length, forward_cost[0], backward_cost[0], forward_cost[1], backward_cost[1])


def _measure(run: Callable[[], Tensor], model: Any, repeats: int) -> tuple[float, int]:
    """The fastest time of the passes, and their peak of bytes."""
    device = model.device
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        peak = torch.cuda.max_memory_allocated(device) - before
    else:
        with AllocationTracker() as tracker:
            run()
        peak = tracker.peak
    fastest = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fastest = min(fastest, time.perf_counter() - start)
    return fastest, peak
