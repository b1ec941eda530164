"""short_attention and its gradients equal the reference attention's."""

from __future__ import annotations

import pytest
import torch

from heedful.kernels.short_attention import short_attention
from heedful.layers.attention import attention
from heedful.layers.masks import Mask, causal, padding


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys", "width"), [(32, 32, 64), (5, 40, 16), (64, 64, 32), (1, 3, 128)])
@pytest.mark.parametrize("mask", ["unmasked", "causal", "padding", "table", "bias"])
def test_short_attention_and_its_gradients_equal_attention(
    dtype: torch.dtype, queries: int, keys: int, width: int, mask: str, device: torch.device
) -> None:
    if dtype == torch.bfloat16 and device.type == "cpu":
        pytest.skip("GPU only: tl.dot of Triton's interpreter is NumPy's, which has no bfloat16")
    generator = torch.Generator().manual_seed(keys)
    batch, heads = 2, 2

    def random(tokens: int) -> torch.Tensor:
        return torch.randn(batch, tokens, heads, width, generator=generator).to(dtype).to(device)

    inputs = [random(tokens).requires_grad_() for tokens in (queries, keys, keys)]
    grad = random(queries).transpose(1, 2)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    allowed = torch.rand(batch, 1, queries, keys, generator=generator).to(device) < 0.5
    allowed[0, 0, 0] = False  # a query that may attend to nothing
    masks = {
        "unmasked": Mask(),
        "causal": causal(),
        "padding": padding(torch.tensor([1, 3], device=device), keys),
        "table": Mask(allowed=allowed),
        "bias": Mask(bias=torch.randn(1, heads, queries, keys, generator=generator).to(device)),
    }
    resolved = masks[mask].resolve(queries, keys, device)
    expected = attention(*(tensor.transpose(1, 2) for tensor in exact), resolved)
    expected_all = [expected, *torch.autograd.grad(expected, exact, grad.double())]
    query, key, value = inputs
    layouts = [inputs, [query, torch.cat([key, value], 2)], *([[torch.cat(inputs, 2)]] if queries == keys else [])]
    for parts in layouts:  # separate tensors, or side by side as one linear layer projects them
        output = short_attention(parts, resolved).transpose(1, 2)
        for actual, wanted in zip([output, *torch.autograd.grad(output, inputs, grad)], expected_all, strict=True):
            torch.testing.assert_close(actual.double(), wanted, rtol=0.05, atol=0.05)
