"""One kernel for surprise and slope equals what it stands for."""

from __future__ import annotations

import pytest
import torch

from heedful.objectives.cross_entropy import cross_entropy_and_gradient

pytest.importorskip("triton")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [5, 65, 8192, 20_000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("learn", [True, False])
def test_logits_become_their_slope_in_place(kind: torch.dtype, vocabulary: int, smoothing: float, learn: bool) -> None:
    compare(torch.device("cuda"), kind, vocabulary, smoothing, learn)


def compare(device: torch.device, kind: torch.dtype, vocabulary: int, smoothing: float, learn: bool) -> None:
    from heedful.kernels.cross_entropy_kernel import cross_entropy_inplace

    drawn = torch.Generator().manual_seed(vocabulary)
    logits = (5 * torch.randn(7, vocabulary, generator=drawn)).to(kind)
    labels = torch.randint(vocabulary, (7, 1), generator=drawn)
    surprise, slope = cross_entropy_and_gradient(logits.double(), labels, smoothing, vocabulary, learn=True)
    filled = torch.nn.functional.pad(logits, (0, -vocabulary % 64), value=9.0).to(device)
    found, changed = cross_entropy_inplace(filled, labels.to(device), smoothing, vocabulary, learn=learn)
    assert changed is filled
    given, rest = filled[:, :vocabulary], filled[:, vocabulary:]
    assert torch.equal(rest, torch.zeros_like(rest) if learn else torch.full_like(rest, 9.0))
    torch.testing.assert_close(found.cpu().double(), surprise, rtol=1e-5, atol=1e-5)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if kind == torch.float32 else {"rtol": 8e-3, "atol": 1e-4}
    torch.testing.assert_close(given.cpu().double(), slope if learn else logits.double(), **tolerance)
