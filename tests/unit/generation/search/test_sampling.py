"""Sampling: top-k, top-p, min-p and temperature; the same samples for the same seed, whatever the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.sampling import SamplingConfig, draw_tokens
from heedful.generation.search.settings import SearchSettings

SCORES = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.07, 0.03]]))
Make = Callable[..., Any]


def _samples(**options: Any) -> set[int]:
    config = SamplingConfig(**{"temperature": 1.0, **options})
    return set(draw_tokens(config.probabilities(SCORES.expand(2000, -1)), torch.rand(2000)).tolist())


def test_top_k_keeps_the_k_most_likely_tokens() -> None:
    assert _samples(top_k=2) == {0, 1}


def test_top_p_keeps_the_fewest_tokens_that_reach_p() -> None:
    assert _samples(top_p=0.7) == {0, 1}
    assert _samples(top_p=0.76) == {0, 1, 2}


def test_min_p_is_relative_to_the_most_likely_token() -> None:
    assert _samples(min_p=0.28) == {0, 1, 2}
    assert _samples(min_p=1.0) == {0}


def test_top_k_top_p_and_min_p_combine() -> None:
    assert _samples(top_k=3, top_p=0.95, min_p=0.4) == {0, 1}


def test_unlimited_samples_follow_the_distribution() -> None:
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    tokens = draw_tokens(SCORES.exp().expand(20_000, -1), uniform)
    torch.testing.assert_close(torch.bincount(tokens, minlength=5) / 20_000, SCORES[0].exp(), atol=0.015, rtol=0)


def test_temperature_sharpens_and_flattens() -> None:
    cold, hot = (SamplingConfig(temperature=value).probabilities(SCORES)[0] for value in (0.5, 2.0))
    torch.testing.assert_close(cold, (2 * SCORES[0]).softmax(-1))
    torch.testing.assert_close(hot, (SCORES[0] / 2).softmax(-1))


def test_tokens_of_zero_probability_are_never_drawn() -> None:
    probabilities = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    for uniform in (0.0, 0.299, 0.3, 0.9999, 1 - 2**-24, 1.0):
        assert int(draw_tokens(probabilities, torch.tensor([uniform]))) in (1, 3)


@pytest.mark.parametrize("name", ["laptop-writer", "recurrent-writer"])
def test_seed_decides_the_sample(name: str, make_model: Make) -> None:
    backend = TorchBackend(make_model(name, vocabulary=40, sharper=1.0))
    first, repeated, different_seed = (
        backend.generate(SearchRequest([[7, 8, 9]], SearchSettings(sampling=SamplingConfig(seed=seed), max_length=20)))
        for seed in (1, 1, 2)
    )
    assert first == repeated != different_seed


def test_samples_depend_neither_on_the_batch_nor_on_the_limit(make_model: Make) -> None:
    backend = TorchBackend(make_model("laptop-writer", vocabulary=40, sharper=1.0))
    prompts = [[7, 8, 9], [9], [10, 11, 12], []]
    settings = SearchSettings(sampling=SamplingConfig(), max_length=20, exact=True)
    shorter = SearchSettings(sampling=SamplingConfig(), max_length=12)
    for prompt, hypotheses in zip(prompts, backend.generate(SearchRequest(prompts, settings)), strict=True):
        assert backend.generate(SearchRequest([prompt], settings)) == [hypotheses]
        assert list(backend.stream(SearchRequest([prompt], shorter))) == hypotheses[0].tokens[:12]


@pytest.mark.parametrize("name", ["laptop-translator", "recurrent-translator"])
def test_several_translations_can_be_sampled(name: str, make_model: Make) -> None:
    backend = TorchBackend(make_model(name, vocabulary=40, sharper=1.0))
    settings = SearchSettings(sampling=SamplingConfig(temperature=1.0), n_best=3)
    results = backend.translate(SearchRequest([[7, 8, 9], [9]], settings))
    assert [len(hypotheses) for hypotheses in results] == [3, 3]
    assert len({tuple(hypothesis.tokens) for hypothesis in results[0]}) == 3
    single = backend.translate(SearchRequest([[9]], settings))[0]
    assert [hypothesis.tokens for hypothesis in single] == [hypothesis.tokens for hypothesis in results[1]]
