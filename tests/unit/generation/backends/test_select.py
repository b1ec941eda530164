"""Which engine serves a request, and that it makes no difference to the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.errors import UsageError
from heedful.generation.backends import select as engines
from heedful.generation.backends.thread_pools import WIDE_MODEL
from heedful.generation.decoding_config import DecodingConfig
from heedful.generation.search.logits_rules import NO_RULES

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: no second engine here")
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))


def _saved(trained: Any, folder: Path) -> Any:
    trained.tokenizers[0].save(heedful.save(trained.model, folder) / "tokenizer.json")
    return heedful.load(folder)


def test_a_model_that_lies_nowhere_is_not_converted_unasked(make_trained: Make) -> None:
    trained = make_trained("laptop-translator")
    assert trained.engines.choose(DecodingConfig(), NO_RULES) is None
    assert trained.engines.choose(DecodingConfig(engine="ctranslate2"), NO_RULES) is not None


def test_what_only_torch_can_do_torch_does(make_trained: Make, tmp_path: Path) -> None:
    trained = _saved(make_trained("laptop-translator"), tmp_path / "model")
    assert trained.engines.choose(DecodingConfig(), NO_RULES) is not None
    for options in ({"temperature": 1.0}, {"exact": True}, {"engine": "torch"}):
        assert trained.engines.choose(DecodingConfig(**options), NO_RULES) is None
    with pytest.raises(UsageError, match="--engine torch can"):
        trained.translate("3 May", engine="ctranslate2", temperature=1.0)
    with pytest.raises(UsageError, match="without --int8, torch can"):
        make_trained("recurrent-translator").translate("3 May", int8=True)


@pytest.mark.parametrize("name", ["laptop-translator", "laptop-writer"])
def test_texts_are_the_same_by_either_engine(name: str, make_trained: Make, tmp_path: Path, texts: list[str]) -> None:
    trained = _saved(make_trained(name), tmp_path / "model")
    options: dict[str, Any] = {"beam": 1, "temperature": 0.0, "max_length": 12}
    ask = trained.translations if name.endswith("translator") else trained.continuations
    ours, theirs = (list(ask(texts[:10], engine=engine, **options)) for engine in ("torch", "ctranslate2"))
    assert [answer.text for answer in ours] == [answer.text for answer in theirs]
    assert [answer.log_probability for answer in ours] == pytest.approx(
        [answer.log_probability for answer in theirs], abs=1e-2
    )


def test_how_likely_words_are_is_worked_out_only_if_wanted(
    make_trained: Make, tmp_path: Path, texts: list[str]
) -> None:
    trained = _saved(make_trained("laptop-translator"), tmp_path / "model")
    told, untold = (list(trained.translations(texts[:5], beam=1, words=words)) for words in (True, False))
    assert any(answer.words for answer in told)
    assert not any(answer.words for answer in untold)
    assert (
        [answer.text for answer in told] == [answer.text for answer in untold] == trained.translate(texts[:5], beam=1)
    )


WIDE_ONE: dict[str, Any] = {"width": WIDE_MODEL, "heads": 4, "layers": 1, "feed_forward": 64}


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["laptop-translator", "laptop-writer"])
def test_many_rows_of_a_wide_model_are_torchs_and_no_text_depends_on_that(
    name: str, make_trained: Make, tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_out: list[int] = []
    side_by_side = engines.run_row_parallel

    def watched(model: Any, lengths: Any, count: int, *rest: Any) -> Any:
        shared_out.append(count)
        return side_by_side(model, lengths, count, *rest)

    monkeypatch.setattr(engines, "side_by_side", watched)
    with threads(1):
        trained = _saved(make_trained(name, **WIDE_ONE), tmp_path / "model")
        options: dict[str, Any] = {"beam": 2, "max_length": 10}
        ask = trained.translations if name.endswith("translator") else trained.continuations
        some = [text for text in texts if text][:8]
        alone = [answer.text for text in some for answer in ask([text], **options)]
        theirs = [answer.text for answer in ask(some, engine="ctranslate2", **options)]
        assert shared_out == []
    with threads(2):
        together = [answer.text for answer in ask(some, **options)]
    assert shared_out == [2]  # a share for each thread
    assert together == alone == theirs


def test_weights_changed_in_memory_are_converted_again(make_trained: Make, tmp_path: Path, texts: list[str]) -> None:
    trained = _saved(make_trained("laptop-translator"), tmp_path / "model")
    before = trained.translate(texts[:5], beam=1)
    with torch.no_grad():
        trained.model.table.weight.neg_()
    after = [trained.translate(texts[:5], beam=1, engine=engine) for engine in ("auto", "torch")]
    assert after[0] == after[1] != before
