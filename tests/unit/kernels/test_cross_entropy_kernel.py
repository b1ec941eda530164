"""cross_entropy_inplace equals cross_entropy_and_gradient."""

from __future__ import annotations

import pytest
import torch

from heedful.kernels.cross_entropy_kernel import cross_entropy_inplace
from heedful.objectives.cross_entropy import cross_entropy_and_gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [5, 8192, 20_000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("gradient", [True, False])
def test_loss_and_inplace_gradient_equal_log_softmax(
    dtype: torch.dtype, vocabulary: int, smoothing: float, gradient: bool, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (5 * torch.randn(7, vocabulary, generator=generator)).to(dtype)
    labels = torch.randint(vocabulary, (7, 1), generator=generator)
    labels[3] = 0  # padding
    loss, grad = cross_entropy_and_gradient(logits.double(), labels, smoothing, vocabulary, gradient=True)
    padded = torch.nn.functional.pad(logits, (0, -vocabulary % 64), value=9.0).to(device)
    kernel_loss, changed = cross_entropy_inplace(padded, labels.to(device), smoothing, vocabulary, gradient=gradient)
    assert changed is padded
    real, padding = padded[:, :vocabulary], padded[:, vocabulary:]
    assert torch.equal(padding, torch.zeros_like(padding) if gradient else torch.full_like(padding, 9.0))
    torch.testing.assert_close(kernel_loss.cpu().double(), loss, rtol=1e-5, atol=1e-5)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 8e-3, "atol": 1e-4}
    torch.testing.assert_close(real.cpu().double(), grad if gradient else logits.double(), **tolerance)
