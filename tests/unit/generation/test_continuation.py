"""Language models: what was cached, slid over or streamed is what would be read and written afresh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from heedful.generation.continuation import generate_ids, generate_tokens
from heedful.generation.search.decode_loop import masked_log_softmax
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.text.special_tokens import END

Make = Callable[..., Any]
PROMPTS = [[7, 8, 9], [10, 11, 12], [9], []]
POSITIONS = ["rotary", "sinusoidal", "learned", "alibi", "none"]


def _afresh(model: Any, prompt: list[int], steps: int, window: int | None) -> list[int]:
    """The likeliest tokens, reading the whole window again at every step."""
    text, first = list(prompt) or [END], 0
    opening = len(text)
    for _ in range(steps):
        if window is not None and len(text) - first > window:
            first = len(text) - window // 2
        with torch.no_grad():
            best = int(masked_log_softmax(model(torch.tensor([text[first:]]))[:, -1]).argmax())
        if best == END:
            break
        text.append(best)
    return text[opening:]


@pytest.mark.parametrize("name", ["laptop-writer", "recurrent-writer"])
def test_many_prompts_together_are_each_read_and_continued_afresh(name: str, make_model: Make) -> None:
    model = make_model(name, vocabulary=40)
    for prompt, (found,) in zip(PROMPTS, generate_ids(model, PROMPTS, limit=12), strict=True):
        assert found.tokens == _afresh(model, prompt, 12, None)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("size", [3, 8, 11, 30])
def test_past_its_window_a_model_goes_on_from_the_second_half(positions: str, size: int, make_model: Make) -> None:
    """With every kind of position, and from prompts shorter and longer than the window."""
    model = make_model("laptop-writer", vocabulary=40, positions=positions, max_length=8)
    prompt = [6 + (5 * number) % 34 for number in range(size)]
    ((found,),) = generate_ids(model, [prompt], limit=25)
    assert found.tokens == _afresh(model, prompt, 25, 8)


def test_a_recurrent_model_never_slides(make_model: Make) -> None:
    model = make_model("recurrent-writer", vocabulary=40)
    ((found,),) = generate_ids(model, [[7, 8]], limit=40)
    assert found.tokens == _afresh(model, [7, 8], 40, None)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_stream_as_they_would_come_all_at_once(temperature: float, make_model: Make) -> None:
    model = make_model("laptop-writer", vocabulary=40, max_length=16)
    draw = SamplingConfig(temperature=temperature, seed=3)
    ((found,),) = generate_ids(model, [[7, 8]], limit=30, draw=draw)
    assert list(generate_tokens(model, [7, 8], limit=30, draw=draw)) == found.tokens


def test_the_first_token_streams_before_the_second_is_chosen(make_model: Make) -> None:
    model = make_model("laptop-writer", vocabulary=40)
    read: list[int] = []
    extend = model.extend

    def counted(tokens: Any, state: Any, **options: Any) -> Any:
        read.append(tokens.shape[1])
        return extend(tokens, state, **options)

    model.extend = counted
    stream = generate_tokens(model, [7, 8], limit=30, draw=SamplingConfig(seed=1), rules=LogitsRules(min_length=2))
    next(stream)
    assert read == [2]


def test_a_beam_finds_texts_at_least_as_likely(make_model: Make) -> None:
    model = make_model("laptop-writer", vocabulary=20, sharper=1.5)
    greedy, beam = (
        generate_ids(model, [[7, 8]], limit=6, beam=width, length_penalty=0.0)[0][0].log_probability
        for width in (1, 50)
    )
    assert beam >= greedy
