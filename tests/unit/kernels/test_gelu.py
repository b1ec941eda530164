"""The GELU kernels equal torch.nn.functional.gelu and its derivative."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from heedful.kernels.gelu import gelu_kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_and_its_gradient_equal_torch_s(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.linspace(-9, 9, 3003).view(3, 7, 143).to(device, dtype)
    x = x.transpose(0, 2).requires_grad_()  # not contiguous
    exact = x.detach().double().requires_grad_()
    grad = torch.randn(x.shape).to(device, dtype)
    output, expected = gelu_kernel(x), F.gelu(exact)
    (grad_x,), (expected_grad,) = (
        torch.autograd.grad(output, x, grad),
        torch.autograd.grad(expected, exact, grad.double()),
    )
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 8e-3, "atol": 1e-5}
    torch.testing.assert_close(output.double(), expected, **tolerance)
    torch.testing.assert_close(grad_x.double(), expected_grad, **tolerance)
