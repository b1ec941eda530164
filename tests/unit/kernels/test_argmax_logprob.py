"""argmax_logprob equals masked log-softmax followed by max."""

from __future__ import annotations

import pytest
import torch

from heedful.generation.search.decoding_batch import masked_log_softmax
from heedful.kernels.argmax_logprob import argmax_logprob


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [9, 4096, 20_000])
def test_argmax_and_its_log_probability_equal_masked_log_softmax(
    dtype: torch.dtype, vocabulary: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (3 * torch.randn(5, vocabulary, generator=generator)).to(dtype)
    logits[1, 0] = 100.0  # a special token that is never generated
    logits[2, [7, vocabulary - 1]] = 50.0  # a tie
    tokens, logprobs = argmax_logprob(logits.to(device))
    expected = masked_log_softmax(logits.clone())
    assert tokens.tolist() == expected.argmax(-1).tolist()
    assert tokens[2] == 7
    torch.testing.assert_close(logprobs.cpu(), expected.amax(-1), rtol=1e-5, atol=1e-5)
