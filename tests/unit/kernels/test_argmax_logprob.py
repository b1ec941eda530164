"""One kernel for the likeliest token equals what it stands for."""

from __future__ import annotations

import pytest
import torch

from heedful.generation.search.decode_loop import masked_log_softmax

pytest.importorskip("triton")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [9, 4096, 20_000])
def test_the_likeliest_token_and_its_log_probability(kind: torch.dtype, vocabulary: int) -> None:
    compare(torch.device("cuda"), kind, vocabulary)


def compare(device: torch.device, kind: torch.dtype, vocabulary: int) -> None:
    from heedful.kernels.argmax_logprob import argmax_logprob

    drawn = torch.Generator().manual_seed(vocabulary)
    logits = (3 * torch.randn(5, vocabulary, generator=drawn)).to(kind)
    logits[1, 0] = 100.0  # never to be written
    logits[2, [7, vocabulary - 1]] = 50.0  # a tie
    tokens, likely = argmax_logprob(logits.to(device))
    expected = masked_log_softmax(logits.clone())
    assert tokens.tolist() == expected.argmax(-1).tolist()
    assert tokens[2] == 7
    torch.testing.assert_close(likely.cpu(), expected.amax(-1), rtol=1e-5, atol=1e-5)
