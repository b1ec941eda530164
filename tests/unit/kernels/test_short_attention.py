"""The kernels for short texts equal the equation, and so do their gradients."""

from __future__ import annotations

import pytest
import torch

from heedful.layers.attention import attention
from heedful.layers.masks import Mask, causal

pytest.importorskip("triton")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys", "width"), [(32, 32, 64), (5, 40, 16), (64, 64, 128), (1, 3, 32)])
@pytest.mark.parametrize("mask", ["open", "causal", "padded", "table", "bias"])
def test_it_reads_and_learns_what_attention_does(
    kind: torch.dtype, queries: int, keys: int, width: int, mask: str
) -> None:
    compare(torch.device("cuda"), kind, queries, keys, width, mask)


def compare(device: torch.device, kind: torch.dtype, queries: int, keys: int, width: int, mask: str) -> None:
    from heedful.kernels.short_attention import short_attention

    drawn = torch.Generator().manual_seed(keys)
    batch, heads = 3, 2

    def parts(tokens: int) -> torch.Tensor:
        return torch.randn(batch, tokens, heads, width, generator=drawn).to(kind).to(device)

    given = [parts(tokens).requires_grad_() for tokens in (queries, keys, keys)]
    slope = parts(queries).transpose(1, 2)
    exact = [part.detach().double().requires_grad_() for part in given]
    allowed = torch.rand(batch, 1, queries, keys, generator=drawn).to(device) < 0.5
    allowed[0, 0, 0] = False  # one that may read nothing
    kinds = {
        "open": Mask(),
        "causal": causal() if queries <= keys else Mask(),
        "padded": Mask(
            allowed=torch.arange(keys, device=device) < torch.tensor([[[[1]]], [[[2]]], [[[3]]]]).to(device)
        ),
        "table": Mask(allowed=allowed),
        "bias": Mask(bias=torch.randn(1, heads, queries, keys, generator=drawn).to(device)),
    }
    settled = kinds[mask].resolve(queries, keys, device)
    expected = attention(*(part.transpose(1, 2) for part in exact), settled)
    wanted = [expected, *torch.autograd.grad(expected, exact, slope.double())]
    near = {"rtol": 1e-4, "atol": 1e-5} if kind == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    query, key, value = given
    ways = [given, [query, torch.cat([key, value], 2)], *([[torch.cat(given, 2)]] if queries == keys else [])]
    for parts in ways:  # apart, or side by side as they are projected
        found = short_attention(parts, settled).transpose(1, 2)
        for ours, theirs in zip([found, *torch.autograd.grad(found, given, slope)], wanted, strict=True):
            torch.testing.assert_close(ours.double(), theirs, **near)
