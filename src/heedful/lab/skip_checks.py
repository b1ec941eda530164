"""Check that skip-connections are as configured, and carry tokens past all sub-layers (B1)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from heedful.lab.model_probe import ModelProbe
from heedful.layers.residual import Residual
from heedful.layers.taps import edit, tap_names

SUBLAYER_OUTPUTS = (".attention.output", ".cross.output", ".feed_forward.output")


def residuals(model: nn.Module) -> Iterator[tuple[str, Residual]]:
    """Every residual connection with the name of its sub-layer, such as decoder.0.cross."""
    for path, module in model.named_modules():
        if isinstance(module, Residual):
            stack, _, layer, *_ = path.removeprefix("_orig_mod.").split(".")
            yield f"{stack}.{layer}.{module.alias}", module


def changed_skips(probe: ModelProbe) -> list[str]:
    """Sub-layers whose skip-connection is not as configured: pass the input on unchanged, or drop it."""
    changed = []
    x = torch.randn(2, 3, probe.config.width, generator=torch.Generator().manual_seed(1)).to(probe.model.device)
    x = x.to(next(probe.model.parameters()).dtype)
    for name, residual in residuals(probe.model):
        kept = x if probe.config.sublayer(name)["skip"] else torch.zeros_like(x)
        expected = kept if residual.order == "pre" else residual.norm(kept)
        if probe.difference(expected + 1, residual(x, torch.zeros_like) + 1) > probe.tolerance:
            changed.append(name)
    return changed


def all_skips(probe: ModelProbe) -> bool:
    """Whether the configuration has a skip-connection around every sub-layer."""
    return all(probe.config.sublayer(name)["skip"] for name, _ in residuals(probe.model))


def tokens_reach_the_end(probe: ModelProbe) -> bool:
    """Whether states after the last block still differ by token if every sub-layer is ablated."""
    taps = [name for name in tap_names(probe.model) if name.endswith(SUBLAYER_OUTPUTS)]
    with edit(probe.model, {name: lambda value, site: torch.zeros_like(value) for name in taps}):
        return min(float(states.float().std(dim=1).mean()) for states in _last_states(probe)) > 1e-4


def _last_states(probe: ModelProbe) -> Iterator[Tensor]:
    """The last states of every stack."""
    if not probe.is_pair:
        yield probe.model.states(probe.source)
        return
    memory = probe.model.encode(probe.source)
    yield memory.states
    yield probe.model.states(probe.target, memory)
