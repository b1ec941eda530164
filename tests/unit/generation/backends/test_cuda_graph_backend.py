"""CUDA graphs: decoding in a static KV cache equals the model's own; on a GPU the steps are replayed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.cuda_graph_backend import CudaGraphBackend, CudaGraphDecoder, padded_length
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.search.settings import SearchSettings

Make = Callable[..., Any]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def _random_tokens(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(6, 11, (length,), generator=generator).tolist() for length in lengths]


def _tokens(results: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in results]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("settings", "with_prefixes"),
    [
        pytest.param(SearchSettings(), False, id="greedy"),
        pytest.param(SearchSettings(beam=4, n_best=3), False, id="beam"),
        pytest.param(SearchSettings(beam=5), True, id="prefixes"),
        pytest.param(SearchSettings(sampling=SamplingConfig(seed=3), n_best=2), False, id="sampling"),
    ],
)
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "alibi", "learned"])
def test_translations_equal_the_models_own(
    device: str, settings: SearchSettings, with_prefixes: bool, positions: str, make_model: Make
) -> None:
    model = make_model("paper-base", positions=positions, head_width=16, key_value_heads=1).to(device)
    sources = _random_tokens([3, 9, 1, 30, 4, 17, 12])
    prefixes = [[7] * (number % 3) for number in range(len(sources))] if with_prefixes else None
    decoder = CudaGraphDecoder(model)
    expected = _tokens(TorchBackend(model).translate(SearchRequest(sources, settings, prefixes=prefixes)))
    for _ in range(2):  # in the second iteration every graph is already captured
        assert _tokens(TorchBackend(decoder).translate(SearchRequest(sources, settings, prefixes=prefixes))) == expected
    assert sum(len(cache.steps) for cache in decoder.free_caches) > 1  # steps shrink as rows finish


@pytest.mark.parametrize("device", DEVICES)
def test_any_head_width_is_supported(device: str, make_model: Make) -> None:
    model = make_model("paper-base", head_width=6, value_width=10).to(device)
    request = SearchRequest(_random_tokens([3, 9, 1]), SearchSettings(beam=4))
    results, expected = (TorchBackend(decoding).translate(request) for decoding in (CudaGraphDecoder(model), model))
    assert _tokens(results) == _tokens(expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "search",
    [{"beam": 1}, {"beam": 3}, {"sampling": SamplingConfig(seed=3), "n_best": 2}],
    ids=lambda search: "-".join(search),
)
def test_language_model_continues_past_its_window_as_without_graphs(
    device: str, search: dict[str, Any], make_model: Make
) -> None:
    model = make_model("gpt2", max_length=20).to(device)
    decoder, prompts = CudaGraphDecoder(model), _random_tokens([5, 5, 2, 12])
    settings = SearchSettings(rules=LogitsRules(min_length=45), max_length=50, **search)
    results, expected = (
        TorchBackend(decoding).generate(SearchRequest(prompts, settings)) for decoding in (decoder, model)
    )
    assert _tokens(results) == _tokens(expected)
    assert decoder.free_caches


def test_padded_lengths_are_few_and_waste_little() -> None:
    sizes = [padded_length(number) for number in range(1, 4097)]
    assert all(size >= number for number, size in enumerate(sizes, 1))
    assert all(size <= 1.25 * number for number, size in enumerate(sizes, 1) if number >= 256)
    assert len(set(sizes)) < 25


def test_terms_alignments_and_streams_work_over_graphs(
    make_trained: Make, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("laptop-translator", "laptop-writer"):
        plain, graphs = make_trained(name), make_trained(name)
        decoder = CudaGraphDecoder(graphs.model)
        monkeypatch.setattr(graphs.backends, "torch_backends", (TorchBackend(decoder),))
        if name == "laptop-translator":
            sources = [*texts[:4], "<b>3</b> May {year}"]
            assert graphs.translate(sources, engine="torch") == plain.translate(sources, engine="torch")
            aligned = [
                list(translator.iter_translate(sources, engine="torch", alignments=True))
                for translator in (graphs, plain)
            ]
            assert [result.alignment for result in aligned[0]] == [result.alignment for result in aligned[1]]
        else:
            long: dict[str, Any] = {"min_length": 9, "max_length": 9}
            assert graphs.generate("3 May", seed=2, **long) == plain.generate("3 May", seed=2, **long)
            assert list(graphs.stream("3 May", **long)) == list(plain.stream("3 May", **long))
        assert decoder.free_caches


@pytest.mark.parametrize("device", DEVICES)
def test_interleaved_streams_do_not_change_each_other(device: str, make_model: Make) -> None:
    decoder = CudaGraphDecoder(make_model("gpt2").to(device))
    settings = SearchSettings(rules=LogitsRules(min_length=12), max_length=12)
    requests = [SearchRequest([prompt], settings) for prompt in _random_tokens([5, 5, 3])]
    expected = [list(TorchBackend(decoder).stream(request)) for request in requests]
    streams = [TorchBackend(decoder).stream(request) for request in requests]
    assert [list(tokens) for tokens in zip(*zip(*streams, strict=True), strict=True)] == expected
    assert len(decoder.free_caches) == 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beam", [1, 3])
def test_concurrent_threads_do_not_change_each_other(device: str, beam: int, make_model: Make) -> None:
    decoder = CudaGraphDecoder(make_model("paper-base").to(device))
    requests = [SearchRequest([source], SearchSettings(beam=beam)) for source in _random_tokens([6] * 8)]
    expected = [TorchBackend(decoder).translate(request) for request in requests]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            assert list(threads.map(TorchBackend(decoder).translate, requests)) == expected


def test_only_the_last_used_cache_sizes_are_kept(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.generation.backends.cuda_graph_backend.CACHE_SIZE", 2)
    decoder = CudaGraphDecoder(make_model("paper-base"))
    for rows in (1, 2, 4, 8, 1):
        TorchBackend(decoder).translate(SearchRequest(_random_tokens([5] * rows), SearchSettings(beam=2, max_length=3)))
    assert [cache.size.sources for cache in decoder.free_caches] == [8, 1]
    assert len(decoder.encoders) == 2


def test_unsupported_requests_are_named(make_model: Make) -> None:
    transformer, recurrent = (CudaGraphBackend(make_model(name)) for name in ("paper-base", "recurrent-translator"))
    assert transformer.unsupported(SearchRequest()) == "the model is on cpu"
    assert "modules" in str(transformer.unsupported(SearchRequest(settings=SearchSettings(exact=True))))
    assert "not a transformer" in str(recurrent.unsupported(SearchRequest()))
