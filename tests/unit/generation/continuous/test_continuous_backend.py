"""Texts of concurrent callers, decoded in one batch, equal those of separate calls."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import torch

from heedful.cancellation import REQUEST_IS_OVER, WorkCancelledError
from heedful.errors import UsageError
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.continuous.continuous_backend import ContinuousBackend
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.search.settings import SearchSettings
from heedful.inference.trained_model import TrainedModel

MakeTrained = Callable[..., TrainedModel]
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("laptop-translator", {}),
    ("laptop-translator", {"positions": "alibi"}),
    ("laptop-translator", {"positions": "learned", "max_length": 64}),
    ("laptop-writer", {"max_length": 48}),
    ("laptop-writer", {"positions": "learned", "max_length": 40}),
    ("laptop-writer", {"positions": "sinusoidal", "window": 9}),
    ("laptop-translator", {"sublayers": [{"part": "decoder.0.attention", "heads": 1}]}),
    ("recurrent-translator", {}),
    ("recurrent-writer", {}),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_options(rng: random.Random, is_translator: bool) -> dict[str, Any]:
    """Greedy search, a beam or samples, with some of the rules."""
    beam = rng.choice([1, 1, 2, 4, 7])
    options: dict[str, Any] = {"beam": beam, "n_best": rng.randint(1, beam)}
    if rng.random() < 0.4:
        options = {"temperature": rng.choice([0.5, 1.0]), "seed": rng.randrange(99), "n_best": rng.choice([1, 3])}
        options |= rng.choice([{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.05}])
    rules = [{"repetition_penalty": 1.3}, {"min_length": 8}, {"stop": ["er"]}, {"forbidden": ["a"]}, {"stop": ["1"]}]
    options |= rng.choice([{}, {}, *rules])
    if is_translator and rng.random() < 0.2:
        options["prefix"] = "on M"
    return options | {"max_length": rng.choice([8, 20, 60])}


def served(trained: Any) -> Callable[[str, dict[str, Any]], Any]:
    """A function that translates or continues one text in the batch that all calls share."""
    backend, shared = ContinuousBackend(trained.backends), type(trained)(trained.model, trained.tokenizers)
    shared.backends.select = lambda _: backend
    return lambda text, options: alone(shared, text, options)


def alone(trained: Any, text: str, options: dict[str, Any]) -> Any:
    method = getattr(trained, "iter_translate", None) or trained.iter_generate
    return next(method([text], **options))


def texts_of(result: Any) -> list[str]:
    return [result.text, *(alternative.text for alternative in result.alternatives)]


@pytest.mark.parametrize(("family", "settings"), FAMILIES)
def test_mixed_requests_equal_single_calls(
    make_trained: MakeTrained, texts: list[str], family: str, settings: dict[str, Any]
) -> None:
    trained, rng = make_trained(family, **settings), random.Random(family)
    calls = [
        (rng.choice(texts)[: rng.choice([0, 3, 12, 60])], random_options(rng, "translator" in family))
        for _ in range(24)
    ]
    shared = served(trained)
    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(lambda call: shared(*call), calls))
    for call, result in zip(calls, results, strict=True):
        expected = alone(trained, *call)
        assert texts_of(result)[0] == texts_of(expected)[0], call
        assert result.log_probability == pytest.approx(expected.log_probability, abs=1e-3), call
        assert result.warnings == expected.warnings
        assert len(result.alternatives) == len(expected.alternatives)


def writer_backend(make_trained: MakeTrained) -> ContinuousBackend:
    trained: Any = make_trained("laptop-writer", max_length=512)
    return ContinuousBackend(trained.backends)


def searches(backend: ContinuousBackend) -> list[Any]:
    return [search for worker in backend.workers for search in worker.searches]


def steps(backend: ContinuousBackend) -> int:
    return sum(worker.steps for worker in backend.workers)


LONG = SearchSettings(max_length=400, rules=LogitsRules(min_length=400))
SHORT = SearchSettings(max_length=3)


def test_a_short_text_does_not_wait_for_a_long_one(make_trained: MakeTrained) -> None:
    backend = writer_backend(make_trained)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(backend.generate, SearchRequest([[9]], LONG))
        while not steps(backend):
            time.sleep(0.001)
        backend.generate(SearchRequest([[7]], SHORT))
        assert not long.done()
        assert len(long.result()[0][0].tokens) == 400


def test_a_cancelled_text_leaves_at_the_next_step(make_trained: MakeTrained) -> None:
    backend, over = writer_backend(make_trained), Event()

    def generate() -> Any:
        REQUEST_IS_OVER.set(over.is_set)
        return backend.generate(SearchRequest([[9]], LONG))

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(generate)
        while not searches(backend):
            time.sleep(0.001)
        over.set()
        before = steps(backend)
        with pytest.raises(WorkCancelledError):
            pending.result(10.0)
        assert steps(backend) <= before + 2
        assert not searches(backend)


def test_a_closed_stream_leaves_the_batch(make_trained: MakeTrained) -> None:
    backend = writer_backend(make_trained)
    sampled = SearchSettings(max_length=400, rules=LogitsRules(min_length=400), sampling=SamplingConfig(seed=1))
    streams = [backend.stream(SearchRequest([[9]], sampled)) for _ in range(8)]
    begun = [next(stream) for stream in streams]
    assert len(set(begun)) == 1
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]
    backend.generate(SearchRequest([[7]], SHORT))
    assert not searches(backend)


def test_a_failing_text_does_not_fail_others(make_trained: MakeTrained) -> None:
    backend = writer_backend(make_trained)
    unknown = [[10**6]]  # no such token
    with ThreadPoolExecutor(8) as pool:
        healthy = [pool.submit(backend.generate, SearchRequest([[token]], LONG)) for token in range(6, 10)]
        failing = pool.submit(backend.generate, SearchRequest(unknown, SHORT))
        with pytest.raises(UsageError, match="outside the vocabulary"):
            failing.result()
        assert all(len(future.result()[0][0].tokens) == 400 for future in healthy)


def test_a_restarted_stream_repeats_no_tokens(make_trained: MakeTrained) -> None:
    backend = writer_backend(make_trained)
    request = SearchRequest([[9]], SearchSettings(max_length=60, rules=LogitsRules(min_length=60)))
    expected = list(backend.stream(request))
    stream = backend.stream(request)
    begun = [next(stream), next(stream)]
    with pytest.raises(UsageError):
        backend.generate(SearchRequest([[10**6]], SHORT))
    assert begun + list(stream) == expected


def test_memory_is_bounded_and_every_text_is_decoded(
    make_trained: MakeTrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.generation.continuous.step_worker.MEMORY_POSITIONS", 200)
    backend, most = writer_backend(make_trained), 0
    request = SearchRequest([[token] for token in range(6, 36)], SearchSettings(max_length=40, beam=2))
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(backend.generate, request)
        while not pending.done():
            most = max(most, len(searches(backend)))
            time.sleep(0.0001)
    assert len(pending.result()) == 30
    assert 1 <= most <= 3
