"""Language models in the torch backend: cached, windowed and streamed texts equal those computed from scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.decoding_batch import masked_log_softmax
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.search.settings import SearchSettings
from heedful.text.special_tokens import END

Make = Callable[..., Any]
PROMPTS = [[7, 8, 9], [10, 11, 12], [9], []]
POSITIONS = ["rotary", "sinusoidal", "learned", "alibi", "none"]


def _uncached(model: Any, prompt: list[int], steps: int, window: int | None) -> list[int]:
    """Greedy search that reads the whole window again at every step."""
    tokens, first = list(prompt) or [END], 0
    prompt_length = len(tokens)
    for _ in range(steps):
        if window is not None and len(tokens) - first > window:
            first = len(tokens) - window // 2
        with torch.no_grad():
            best = int(masked_log_softmax(model(torch.tensor([tokens[first:]]))[:, -1]).argmax())
        if best == END:
            break
        tokens.append(best)
    return tokens[prompt_length:]


def _greedy(model: Any, prompts: list[list[int]], max_length: int) -> list[list[int]]:
    results = TorchBackend(model).generate(SearchRequest(prompts, SearchSettings(max_length=max_length)))
    return [hypothesis.tokens for (hypothesis,) in results]


@pytest.mark.parametrize("name", ["laptop-writer", "recurrent-writer"])
def test_batched_prompts_equal_uncached_single_prompts(name: str, make_model: Make) -> None:
    model = make_model(name, vocabulary=40)
    assert _greedy(model, PROMPTS, 12) == [_uncached(model, prompt, 12, None) for prompt in PROMPTS]


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("size", [3, 8, 11, 30])
def test_past_its_window_a_model_continues_from_the_second_half(positions: str, size: int, make_model: Make) -> None:
    """For every kind of positions, with prompts shorter and longer than the window."""
    model = make_model("laptop-writer", vocabulary=40, positions=positions, max_length=8)
    prompt = [6 + (5 * number) % 34 for number in range(size)]
    assert _greedy(model, [prompt], 25) == [_uncached(model, prompt, 25, 8)]


def test_recurrent_model_has_no_window(make_model: Make) -> None:
    model = make_model("recurrent-writer", vocabulary=40)
    assert _greedy(model, [[7, 8]], 40) == [_uncached(model, [7, 8], 40, None)]


@pytest.mark.parametrize("sampling", [None, SamplingConfig(1.0, seed=3)])
def test_stream_equals_generate(sampling: SamplingConfig | None, make_model: Make) -> None:
    backend = TorchBackend(make_model("laptop-writer", vocabulary=40, max_length=16))
    settings = SearchSettings(sampling=sampling, max_length=30)
    ((hypothesis,),) = backend.generate(SearchRequest([[7, 8]], settings))
    assert list(backend.stream(SearchRequest([[7, 8]], settings))) == hypothesis.tokens


def test_first_token_streams_before_the_second_is_computed(make_model: Make) -> None:
    model = make_model("laptop-writer", vocabulary=40)
    steps: list[int] = []
    extend = model.extend

    def counted(tokens: Any, state: Any, **options: Any) -> Any:
        steps.append(tokens.shape[1])
        return extend(tokens, state, **options)

    model.extend = counted
    settings = SearchSettings(sampling=SamplingConfig(seed=1), rules=LogitsRules(min_length=2), max_length=30)
    next(TorchBackend(model).stream(SearchRequest([[7, 8]], settings)))
    assert steps == [2]


def test_beam_search_finds_a_text_at_least_as_likely_as_greedy(make_model: Make) -> None:
    backend = TorchBackend(make_model("laptop-writer", vocabulary=20, sharper=1.5))
    searches = [SearchSettings(beam=width, length_penalty=0.0, max_length=6) for width in (1, 50)]
    greedy, beam = (backend.generate(SearchRequest([[7, 8]], search))[0][0].log_probability for search in searches)
    assert beam >= greedy
