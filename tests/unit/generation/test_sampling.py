"""Sampling: chance within bounds, the same for the same seed."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.errors import UsageError
from heedful.generation.sampling import choose, sample

SCORES = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.07, 0.03]]))


def _drawn(**options: float) -> set[int]:
    generator = torch.Generator().manual_seed(0)
    rows = SCORES.expand(2000, -1)
    return set(choose(rows, generator=generator, **options).tolist())  # type: ignore[arg-type]


def test_temperature_zero_takes_the_likeliest() -> None:
    assert _drawn(temperature=0.0) == {0}


def test_top_k_keeps_the_k_likeliest() -> None:
    assert _drawn(top_k=2) == {0, 1}


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    assert _drawn(top_p=0.7) == {0, 1}
    assert _drawn(top_p=0.76) == {0, 1, 2}


def test_without_bounds_everything_is_drawn_in_proportion() -> None:
    drawn = choose(SCORES.expand(20_000, -1), generator=torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn, minlength=5) / 20_000
    torch.testing.assert_close(shares, SCORES[0].exp(), atol=0.015, rtol=0)


@pytest.mark.parametrize("name", ["laptop-writer", "recurrent-writer"])
def test_the_same_seed_gives_the_same_text_and_another_another(name: str) -> None:
    size = {"width": 16} if name.startswith("recurrent") else {"width": 16, "heads": 2, "layers": 1}
    model = heedful.build(name, vocabulary=40, **size).eval()
    prompt = torch.tensor([[7, 8, 9]])
    texts = [sample(model, model.start(1), prompt, limit=20, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_impossible_options_are_refused() -> None:
    model = heedful.build("laptop-writer", vocabulary=40, width=16, heads=2, layers=1)
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}):
        with pytest.raises(UsageError, match="temperature"):
            sample(model, model.start(1), torch.tensor([[7]]), limit=1, **wrong)  # type: ignore[arg-type]
