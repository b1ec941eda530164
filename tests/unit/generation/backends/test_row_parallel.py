"""Rows side by side: the same texts, in order; an error or Ctrl-C stops all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import heedful
from heedful.generation.backends.cpu_decoder import lasting
from heedful.generation.backends.row_parallel import DecodingCancelled, worker_count, run_row_parallel, worth_it
from heedful.generation.backends.thread_pools import ROWS_PER_THREAD, WIDE_MODEL
from heedful.generation.continuation import generate_ids
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.sequence_to_sequence import translate_ids

SIZE: dict[str, Any] = {"vocabulary": 40, "width": WIDE_MODEL, "heads": 4, "layers": 1, "feed_forward": 64}
SOURCES = [[6 + (3 * i + j) % 30 for j in range(1 + i % 5)] for i in range(2 * ROWS_PER_THREAD)]


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(2)
    return lasting(heedful.build("laptop-translator", **SIZE).eval())


def test_only_many_rows_of_wide_models_that_nobody_watches_are_shared_out(model: Any) -> None:
    assert worker_count(model, 2 * ROWS_PER_THREAD, 1) == worker_count(model, ROWS_PER_THREAD // 2, 4) == 2
    assert worker_count(model, ROWS_PER_THREAD, 1) == worker_count(model, 1, 100) == worker_count(model.model, 100, 1) == 1
    narrow = heedful.build("laptop-translator", **{**SIZE, "width": 64}).eval()
    assert worker_count(lasting(narrow), 100, 1) == 1
    assert worth_it(model.config, 2 * ROWS_PER_THREAD, 1)
    assert not worth_it(model.config, 2 * ROWS_PER_THREAD - 1, 1)
    assert not worth_it(model.config, 1, 100)
    assert not worth_it(narrow.config, 100, 4)
    with heedful.record(model.model, "decoder.0.cross.weights"):
        assert worker_count(model, 2 * ROWS_PER_THREAD, 1) == 1


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 4, "n_best": 2}, {"draw": SamplingConfig(1.0), "n_best": 2}])
def test_texts_are_those_written_together_in_the_same_order(model: Any, options: dict[str, Any]) -> None:
    def write(model: Any, part: Sequence[int], progress: Callable[[int], object]) -> Any:
        return translate_ids(model, [SOURCES[i] for i in part], at_most=8, progress=progress, **options)

    done: list[int] = []
    found = run_row_parallel(model, [*map(len, SOURCES)], 2, write, done.append)
    torch.set_num_threads(1)
    together = translate_ids(model, SOURCES, at_most=8, **options)
    torch.set_num_threads(2)
    shared, whole = ([[text.tokens for text in texts] for texts in every] for every in (found, together))
    assert shared == whole
    assert sum(done) == len(SOURCES)


def test_a_language_model_goes_on_from_prompts_so_too() -> None:
    torch.manual_seed(3)
    model = lasting(heedful.build("laptop-writer", **SIZE).eval())

    def write(model: Any, part: Sequence[int], progress: Callable[[int], object]) -> Any:
        return generate_ids(model, [SOURCES[i] for i in part], limit=6)

    found = run_row_parallel(model, [*map(len, SOURCES)], 2, write, lambda _: None)
    torch.set_num_threads(1)
    together = generate_ids(model, SOURCES, limit=6)
    torch.set_num_threads(2)
    assert [a.tokens for a, *_ in found] == [a.tokens for a, *_ in together]


@pytest.mark.parametrize("place", [0, 1])
def test_an_error_in_one_share_stops_the_others_and_is_told(model: Any, place: int) -> None:
    stopped: list[int] = []

    def write(model: Any, part: Sequence[int], progress: Callable[[int], object]) -> Any:
        if place in part:  # the longest text is the last; 0 and 1 are in different shares
            raise KeyboardInterrupt
        try:
            while True:
                translate_ids(model, SOURCES[:2], beam=1)
        except DecodingCancelled:
            stopped.append(place)
            raise

    with pytest.raises(KeyboardInterrupt):
        run_row_parallel(model, [2, 1], 2, write, lambda _: None)
    assert stopped == [place]
