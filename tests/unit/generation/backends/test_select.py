"""The choice of the backend, which does not change the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.errors import UsageError
from heedful.generation.backends import cpu_backend
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.thread_pools import WIDE_MODEL
from heedful.generation.decoding_config import DecodingConfig

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _separate_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))


def _saved(trained: Any, folder: Path) -> Any:
    trained.tokenizers[0].save(heedful.save(trained.model, folder) / "tokenizer.json")
    return heedful.load(folder)


def _selected(trained: Any, **options: Any) -> str:
    settings = trained.backends.settings(DecodingConfig(**options), default_beam=1)
    name: str = trained.backends.select(SearchRequest([[7, 8, 9]], settings)).name
    return name


def test_model_without_a_folder_is_converted_only_on_request(make_trained: Make) -> None:
    trained = make_trained("laptop-translator")
    assert _selected(trained) == "cpu"
    assert _selected(trained, engine="ctranslate2") == "ctranslate2"


def test_unsupported_settings_are_served_by_torch(make_trained: Make, tmp_path: Path) -> None:
    trained = _saved(make_trained("laptop-translator"), tmp_path / "model")
    assert _selected(trained) == "ctranslate2"
    assert _selected(trained, temperature=1.0) == _selected(trained, engine="torch") == "cpu"
    assert _selected(trained, exact=True) == "torch"
    assert _selected(make_trained("recurrent-translator")) == "torch"
    with pytest.raises(UsageError, match="use engine torch"):
        trained.translate("3 May", engine="ctranslate2", temperature=1.0)
    with pytest.raises(UsageError, match="leave out int8"):
        make_trained("recurrent-translator").translate("3 May", int8=True)


def test_exact_requests_give_the_cpu_decoders_texts(make_trained: Make) -> None:
    trained = make_trained("laptop-translator")
    fast, exact = (trained.translate(["3 May 1999", "12.4.2001"], exact=exact) for exact in (False, True))
    assert fast == exact


@pytest.mark.parametrize("name", ["laptop-translator", "laptop-writer"])
def test_engines_give_the_same_texts(name: str, make_trained: Make, tmp_path: Path, texts: list[str]) -> None:
    trained = _saved(make_trained(name), tmp_path / "model")
    options: dict[str, Any] = {"beam": 1, "temperature": 0.0, "max_length": 12}
    run = trained.iter_translate if name.endswith("translator") else trained.iter_generate
    by_torch, by_ctranslate2 = (list(run(texts[:10], engine=engine, **options)) for engine in ("torch", "ctranslate2"))
    assert [result.text for result in by_torch] == [result.text for result in by_ctranslate2]
    assert [result.log_probability for result in by_torch] == pytest.approx(
        [result.log_probability for result in by_ctranslate2], abs=1e-2
    )


def test_word_probabilities_are_computed_only_on_request(make_trained: Make, tmp_path: Path, texts: list[str]) -> None:
    trained = _saved(make_trained("laptop-translator"), tmp_path / "model")
    scored, unscored = (
        list(trained.iter_translate(texts[:5], beam=1, word_probabilities=wanted)) for wanted in (True, False)
    )
    assert any(result.words for result in scored)
    assert not any(result.words for result in unscored)
    expected = trained.translate(texts[:5], beam=1)
    assert [result.text for result in scored] == [result.text for result in unscored] == expected


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["laptop-translator", "laptop-writer"])
def test_the_cpu_backend_splits_many_rows_of_a_wide_model_and_gives_the_texts_of_ctranslate2(
    name: str, make_trained: Make, tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[int] = []
    run_row_parallel = cpu_backend.run_row_parallel

    def watched(model: Any, request: SearchRequest, number: int, search: Any) -> Any:
        workers.append(number)
        return run_row_parallel(model, request, number, search)

    monkeypatch.setattr(cpu_backend, "run_row_parallel", watched)
    with threads(1):
        wide: dict[str, Any] = {"width": WIDE_MODEL, "heads": 4, "layers": 1, "feed_forward": 64}
        trained = _saved(make_trained(name, **wide), tmp_path / "model")
        options: dict[str, Any] = {"beam": 2, "max_length": 10}
        run = trained.iter_translate if name.endswith("translator") else trained.iter_generate
        short = [text for text in texts if text][:8]
        single = [result.text for text in short for result in run([text], **options)]
        by_ctranslate2 = [result.text for result in run(short, engine="ctranslate2", **options)]
        assert workers == []
    with threads(2):
        assert [result.text for result in run(short, **options)] == single
        assert workers == []
        batched = [result.text for result in run(short, engine="torch", **options)]
    assert workers == [2]  # one for each thread
    assert batched == single == by_ctranslate2


def test_weights_changed_in_memory_are_converted_again(make_trained: Make, tmp_path: Path, texts: list[str]) -> None:
    trained = _saved(make_trained("laptop-translator"), tmp_path / "model")
    before = trained.translate(texts[:5], beam=1)
    with torch.no_grad():
        trained.model.table.weight.neg_()
    after = [trained.translate(texts[:5], beam=1, engine=engine) for engine in ("auto", "torch")]
    assert after[0] == after[1] != before
