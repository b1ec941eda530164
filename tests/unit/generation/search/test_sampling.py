"""Sampling: chance within bounds, the same for the same seed, in any company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from heedful.errors import UsageError
from heedful.generation.continuation import generate_ids, generate_tokens
from heedful.generation.search.sampling import SamplingConfig, draw_tokens
from heedful.generation.sequence_to_sequence import translate_ids

SCORES = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.07, 0.03]]))
Make = Callable[..., Any]


def _drawn(**options: Any) -> set[int]:
    shares = SamplingConfig(**{"temperature": 1.0, **options}).probabilities(SCORES.expand(2000, -1))
    return set(draw_tokens(shares, torch.rand(2000)).tolist())


def test_top_k_keeps_the_k_likeliest() -> None:
    assert _drawn(top_k=2) == {0, 1}


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    assert _drawn(top_p=0.7) == {0, 1}
    assert _drawn(top_p=0.76) == {0, 1, 2}


def test_min_p_keeps_what_is_a_share_as_likely_as_the_likeliest() -> None:
    assert _drawn(min_p=0.28) == {0, 1, 2}
    assert _drawn(min_p=1.0) == {0}


def test_bounds_hold_together() -> None:
    assert _drawn(top_k=3, top_p=0.95, min_p=0.4) == {0, 1}


def test_without_bounds_everything_is_drawn_in_proportion() -> None:
    chance = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    drawn = draw_tokens(SCORES.exp().expand(20_000, -1), chance)
    torch.testing.assert_close(torch.bincount(drawn, minlength=5) / 20_000, SCORES[0].exp(), atol=0.015, rtol=0)


def test_temperature_sharpens_and_flattens() -> None:
    cold, hot = (SamplingConfig(temperature=degrees).probabilities(SCORES)[0] for degrees in (0.5, 2.0))
    torch.testing.assert_close(cold, (2 * SCORES[0]).softmax(-1))
    torch.testing.assert_close(hot, (SCORES[0] / 2).softmax(-1))


def test_what_has_no_share_is_never_drawn_however_chance_falls() -> None:
    shares = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    for chance in (0.0, 0.299, 0.3, 0.9999, 1 - 2**-24, 1.0):
        assert int(draw_tokens(shares, torch.tensor([chance]))) in (1, 3)


@pytest.mark.parametrize("name", ["laptop-writer", "recurrent-writer"])
def test_the_same_seed_gives_the_same_text_and_another_another(name: str, make_model: Make) -> None:
    model = make_model(name, vocabulary=40, sharper=1.0)
    one, again, other = (generate_ids(model, [[7, 8, 9]], limit=20, draw=SamplingConfig(seed=seed)) for seed in (1, 1, 2))
    assert one == again != other


def test_what_is_drawn_depends_neither_on_company_nor_on_the_limit(make_model: Make) -> None:
    model = make_model("laptop-writer", vocabulary=40, sharper=1.0)
    prompts = [[7, 8, 9], [9], [10, 11, 12], []]
    together = generate_ids(model, prompts, limit=20, draw=SamplingConfig(), exact=True)
    for prompt, found in zip(prompts, together, strict=True):
        assert generate_ids(model, [prompt], limit=20, draw=SamplingConfig(), exact=True) == [found]
        assert list(generate_tokens(model, prompt, limit=12, draw=SamplingConfig())) == found[0].tokens[:12]


@pytest.mark.parametrize("name", ["laptop-translator", "recurrent-translator"])
def test_translations_can_be_drawn_too_several_of_each(name: str, make_model: Make) -> None:
    model = make_model(name, vocabulary=40, sharper=1.0)
    how = {"draw": SamplingConfig(temperature=1.0), "n_best": 3}
    found = translate_ids(model, [[7, 8, 9], [9]], **how)
    assert [len(texts) for texts in found] == [3, 3]
    assert len({tuple(text.tokens) for text in found[0]}) == 3
    assert [text.tokens for text in translate_ids(model, [[9]], **how)[0]] == [text.tokens for text in found[1]]


def test_impossible_bounds_are_refused() -> None:
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"min_p": 1.5}):
        with pytest.raises(UsageError, match="temperature"):
            SamplingConfig(**wrong)  # type: ignore[arg-type]
