"""One kernel for norm, linear, activation and residual equals the modules it stands for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heedful.layers.activations import ACTIVATIONS

pytest.importorskip("triton")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", ["none", "layer", "bare", "rms"])
@pytest.mark.parametrize("activation", ["", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("gated", [False, True])
def test_it_is_norm_linear_activation_and_residual(
    rows: int, kind: torch.dtype, norm: str, activation: str, gated: bool
) -> None:
    compare(torch.device("cuda"), rows, kind, norm, activation, gated)


def compare(device: torch.device, rows: int, kind: torch.dtype, norm: str, activation: str, gated: bool) -> None:
    from heedful.kernels.decode_linear import NormWeights, decode_linear

    torch.manual_seed(rows)
    width, wide = 200, 72
    before, behind = made(norm, width), made(norm, wide)
    linear = nn.Linear(width, wide * (2 if gated else 1), bias=norm != "bare")
    x, skip = 3 * torch.randn(rows, width) + 1, torch.randn(rows, wide)
    parts = [part if part is None else part.to(device, kind) for part in (before, behind)]
    moved = linear.to(device, kind)
    with torch.no_grad():
        found = decode_linear(
            x.to(device, kind), moved, norm=NormWeights.from_module(parts[0]), activation=activation, gated=gated,
            residual=skip.to(device, kind), residual_norm=NormWeights.from_module(parts[1]),
        )  # fmt: skip
        exact = [part if part is None else part.to("cpu", torch.float64) for part in parts]
        x, skip = x.to(kind).double(), skip.to(kind).double()
        y = linear.to("cpu", torch.float64)(x if exact[0] is None else exact[0](x))
        act = ACTIVATIONS.get(activation, lambda y: y)
        y = act(y[:, :wide]) * y[:, wide:] if gated else act(y)
        expected = y + (skip if exact[1] is None else exact[1](skip))
    near = {"rtol": 1e-4, "atol": 1e-4} if kind == torch.float32 else {"rtol": 0.02, "atol": 0.05}
    torch.testing.assert_close(found.cpu().double(), expected, **near)


def made(norm: str, width: int) -> nn.Module | None:
    if norm == "none":
        return None
    found = nn.RMSNorm(width, eps=1e-5) if norm == "rms" else nn.LayerNorm(width, bias=norm == "layer")
    for weight in found.parameters():
        nn.init.normal_(weight, 1.0)
    return found
