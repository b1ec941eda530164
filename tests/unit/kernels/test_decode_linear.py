"""decode_linear equals the norm, linear, activation and residual modules it fuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heedful.kernels.decode_linear import decode_linear
from heedful.layers.activations import ACTIVATIONS


@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.bfloat16), (3, torch.float32)])
@pytest.mark.parametrize("norm", ["none", "layer", "layer without bias", "rms"])
@pytest.mark.parametrize("activation", ["", "relu", "gelu", "gelu_tanh", "silu"])
def test_fused_linear_equals_norm_linear_activation_and_residual(
    rows: int, dtype: torch.dtype, norm: str, activation: str, device: torch.device
) -> None:
    width, outputs, gated = 40, 7, activation in ("gelu", "silu")
    norm_before, residual_norm = random_norm(norm, width), random_norm(norm, outputs)
    linear = nn.Linear(width, outputs * (2 if gated else 1), bias=norm != "layer without bias")
    x, residual = 3 * torch.randn(rows, width) + 1, torch.randn(rows, outputs)
    modules = [module if module is None else module.to(device, dtype) for module in (norm_before, residual_norm)]
    with torch.no_grad():
        fused = decode_linear(
            x.to(device, dtype),
            linear.to(device, dtype),
            norm=modules[0],
            activation=activation,
            gated=gated,
            residual=residual.to(device, dtype),
            residual_norm=modules[1],
        )
        exact = [module if module is None else module.to("cpu", torch.float64) for module in modules]
        x, residual = x.to(dtype).double(), residual.to(dtype).double()
        y = linear.to("cpu", torch.float64)(x if exact[0] is None else exact[0](x))
        act = ACTIVATIONS.get(activation, lambda y: y)
        y = act(y[:, :outputs]) * y[:, outputs:] if gated else act(y)
        expected = y + (residual if exact[1] is None else exact[1](residual))
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.05}
    torch.testing.assert_close(fused.cpu().double(), expected, **tolerance)


def random_norm(name: str, width: int) -> nn.Module | None:
    if name == "none":
        return None
    norm = nn.RMSNorm(width, eps=1e-5) if name == "rms" else nn.LayerNorm(width, bias=name == "layer")
    for weight in norm.parameters():
        nn.init.normal_(weight, 1.0)
    return norm
