"""Row-parallel decoding: the same texts in the same order; an error or Ctrl-C in one thread stops the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import heedful
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.cpu_decoder import CpuDecoder
from heedful.generation.backends.row_parallel import DecodingCancelled, run_row_parallel
from heedful.generation.backends.thread_pools import ROWS_PER_THREAD, WIDE_MODEL
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.search.settings import SearchSettings

SIZE: dict[str, Any] = {"vocabulary": 40, "width": WIDE_MODEL, "heads": 4, "layers": 1, "feed_forward": 64}
SOURCES = [[6 + (3 * i + j) % 30 for j in range(1 + i % 5)] for i in range(2 * ROWS_PER_THREAD)]


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def _decoder(preset: str) -> CpuDecoder:
    torch.manual_seed(2)
    return CpuDecoder(heedful.build(preset, **SIZE).eval(), keep_weights=True)


@pytest.fixture(scope="module")
def decoder() -> CpuDecoder:
    return _decoder("laptop-translator")


@pytest.mark.parametrize(
    "search", [{"beam": 1}, {"beam": 4, "n_best": 2}, {"sampling": SamplingConfig(1.0), "n_best": 2}]
)
def test_two_threads_equal_one_in_order(decoder: CpuDecoder, search: dict[str, Any]) -> None:
    done: list[int] = []
    request = SearchRequest(SOURCES, SearchSettings(max_length=8, **search), progress=done.append)
    parallel = run_row_parallel(decoder, request, 2, TorchBackend.translate)
    assert sum(done) == len(SOURCES)
    torch.set_num_threads(1)
    single = TorchBackend(decoder).translate(request)
    torch.set_num_threads(2)
    texts, expected = (
        [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in results] for results in (parallel, single)
    )
    assert texts == expected


def test_prompts_are_continued_row_parallel() -> None:
    decoder, request = _decoder("laptop-writer"), SearchRequest(SOURCES, SearchSettings(max_length=6))
    parallel = run_row_parallel(decoder, request, 2, TorchBackend.generate)
    torch.set_num_threads(1)
    single = TorchBackend(decoder).generate(request)
    torch.set_num_threads(2)
    assert [best.tokens for best, *_ in parallel] == [best.tokens for best, *_ in single]


@pytest.mark.parametrize("failing", [0, 1])
def test_error_in_one_thread_stops_the_others_and_is_raised(decoder: CpuDecoder, failing: int) -> None:
    cancelled: list[int] = []

    def search(backend: TorchBackend, request: SearchRequest) -> Any:
        if [7] * (2 - failing) in request.texts:  # the two texts are decoded by different threads
            raise KeyboardInterrupt
        try:
            while True:
                backend.translate(SearchRequest(SOURCES[:2]))
        except DecodingCancelled:
            cancelled.append(failing)
            raise

    with pytest.raises(KeyboardInterrupt):
        run_row_parallel(decoder, SearchRequest([[7, 7], [7]]), 2, search)
    assert cancelled == [failing]
