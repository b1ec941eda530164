"""A GRU or LSTM one time step at a time, with a tap at every gate: what PyTorch's fused cells compute inside (F4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heedful.shapes import Float, Int

GATES = {
    nn.GRU: ("reset", "update", "candidate", "hidden"),
    nn.LSTM: ("input", "forget", "candidate", "output", "cell", "hidden"),
}
GateTap = Callable[[str, int, Tensor], Tensor]
"""Passes a gate's value at a time step to its tap, called "layer.gate" or "layer.backward.gate"."""
Hidden = tuple[Tensor, ...]


def gate_taps(cell: nn.RNNBase) -> tuple[str, ...]:
    """The names of the taps of all gates."""
    return tuple(f"{prefix}.{gate}" for prefix, _ in _directions(cell) for gate in GATES[type(cell)])


def run_time_steps(
    cell: nn.RNNBase,
    x: Float[Tensor, "batch tokens width"],
    hidden: Hidden,
    lengths: Int[Tensor, " batch"] | None,
    tap: GateTap,
) -> tuple[Float[Tensor, "batch tokens width"], Hidden]:
    """States at every token and the hidden state after the last real one, equal to the fused cell's without dropout."""
    tokens = x.shape[1]
    real = torch.ones(len(x), tokens, dtype=torch.bool, device=x.device)
    if lengths is not None:
        real = torch.arange(tokens, device=x.device) < lengths[:, None]
    ends: list[Hidden] = []
    by_direction: list[Tensor] = []
    directions = 2 if cell.bidirectional else 1
    for row, (prefix, suffix) in enumerate(_directions(cell)):
        state = tuple(part[row] for part in hidden)
        outputs: dict[int, Tensor] = {}
        for t in reversed(range(tokens)) if suffix.endswith("reverse") else range(tokens):

            def tap_gate(gate: str, value: Tensor, prefix: str = prefix, t: int = t) -> Tensor:
                return tap(f"{prefix}.{gate}", t, value[:, None])[:, 0]

            new = _step(cell, x[:, t], state, suffix, tap_gate)
            live = real[:, t, None]
            state = tuple(torch.where(live, after, before) for after, before in zip(new, state, strict=True))
            outputs[t] = new[0] * live
        by_direction.append(torch.stack([outputs[t] for t in range(tokens)], 1))
        ends.append(state)
        if len(by_direction) == directions:
            x, by_direction = torch.cat(by_direction, -1), []
    return x, tuple(torch.stack(parts) for parts in zip(*ends, strict=True))


def _directions(cell: nn.RNNBase) -> Iterator[tuple[str, str]]:
    """The tap prefix and the suffix of the weights' names, of each layer and direction in PyTorch's order."""
    for layer in range(cell.num_layers):
        yield str(layer), f"l{layer}"
        if cell.bidirectional:
            yield f"{layer}.backward", f"l{layer}_reverse"


def _step(cell: nn.RNNBase, x: Tensor, state: Hidden, suffix: str, tap: Callable[[str, Tensor], Tensor]) -> Hidden:
    """One time step.

    GRU:   h' = (1 − z) ⊙ n + z ⊙ h,  n = tanh(W_n x + r ⊙ U_n h)        Cho 2014, eq. 5–8
    LSTM:  c' = f ⊙ c + i ⊙ g,  h' = o ⊙ tanh(c')        Hochreiter & Schmidhuber 1997
    """
    h = state[0]
    inputs = F.linear(x, getattr(cell, f"weight_ih_{suffix}"), getattr(cell, f"bias_ih_{suffix}"))
    recurrent = F.linear(h, getattr(cell, f"weight_hh_{suffix}"), getattr(cell, f"bias_hh_{suffix}"))
    if isinstance(cell, nn.GRU):
        (x_r, x_z, x_n), (h_r, h_z, h_n) = inputs.chunk(3, -1), recurrent.chunk(3, -1)
        r, z = tap("reset", torch.sigmoid(x_r + h_r)), tap("update", torch.sigmoid(x_z + h_z))
        n = tap("candidate", torch.tanh(x_n + r * h_n))
        return (tap("hidden", (1 - z) * n + z * h),)
    i, f, g, o = (inputs + recurrent).chunk(4, -1)
    i, f = tap("input", torch.sigmoid(i)), tap("forget", torch.sigmoid(f))
    g, o = tap("candidate", torch.tanh(g)), tap("output", torch.sigmoid(o))
    c = tap("cell", f * state[1] + i * g)
    return tap("hidden", o * torch.tanh(c)), c
