"""CTranslate2: texts and scores equal torch's; models are converted once, and wrong conversions are refused."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful import HeedfulError
from heedful.generation.backends import ctranslate2_cache
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.ctranslate2_backend import CTranslate2Backend
from heedful.generation.backends.ctranslate2_cache import converted_engine
from heedful.generation.backends.ctranslate2_engine import CTranslate2Engine, split_batches
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.search.settings import SearchSettings
from heedful.generation.search.stop_strings import StringAutomaton
from heedful.layers.taps import TapEdits
from heedful.text.special_tokens import END, SPECIAL_TOKENS
from heedful.text.tokenizer import Tokenizer

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")

VOCABULARY = 60
NAMES = [[*SPECIAL_TOKENS, *(f"w{token}" for token in range(6, VOCABULARY))]]
SMALL: dict[str, Any] = {"vocabulary": VOCABULARY, "width": 32, "heads": 2, "layers": 2, "max_length": 40}


@torch.no_grad()
def random_model(preset: str, **settings: Any) -> Any:
    """A model with weights far from their initial values, so that texts differ and some end early."""
    torch.manual_seed(1)
    model = heedful.build(preset, **{**SMALL, "tie_output": False, "output_bias": True, **settings}).eval()
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.15)
    model.heads.next_token.bias[END] += 1.5
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model("laptop-translator", positions="rotary")


@pytest.fixture(scope="module")
def engine(model: Any) -> CTranslate2Engine:
    return converted_engine(model, NAMES)


@pytest.fixture(scope="module")
def sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(6, VOCABULARY, (int(n),), generator=generator).tolist() for n in torch.arange(1, 25)]


def best_tokens(results: list[list[Any]]) -> list[list[int]]:
    return [hypotheses[0].tokens for hypotheses in results]


def test_greedy_tokens_and_log_probabilities_equal_torchs(
    model: Any, engine: CTranslate2Engine, sources: list[list[int]]
) -> None:
    expected, results = (backend.translate(SearchRequest(sources)) for backend in (TorchBackend(model), engine))
    for (a,), (b,) in zip(expected, results, strict=True):
        assert a.tokens == b.tokens
        assert a.ended == b.ended
        assert a.token_log_probabilities == pytest.approx(b.token_log_probabilities, abs=1e-3)
        assert (a.log_probability, a.score) == pytest.approx((b.log_probability, b.score), abs=1e-3)
    assert {text.ended for (text,) in expected} == {True, False}  # both kinds occur


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beam_scores_equal_torchs_for_the_same_texts(
    model: Any, engine: CTranslate2Engine, sources: list[list[int]], length_penalty: float
) -> None:
    settings = SearchSettings(beam=4, n_best=4, length_penalty=length_penalty, max_length=12)
    expected, results = (
        backend.translate(SearchRequest(sources, settings)) for backend in (TorchBackend(model), engine)
    )
    compared = 0
    for torch_hypotheses, hypotheses in zip(expected, results, strict=True):
        assert [hypothesis.score for hypothesis in hypotheses] == sorted(
            (hypothesis.score for hypothesis in hypotheses), reverse=True
        )
        known = {tuple(hypothesis.tokens): hypothesis for hypothesis in torch_hypotheses}
        for hypothesis in hypotheses:
            if (same := known.get(tuple(hypothesis.tokens))) is not None and same.ended == hypothesis.ended:
                assert hypothesis.score == pytest.approx(same.score, abs=1e-3)
                compared += 1
        assert torch_hypotheses[0].score > hypotheses[0].score - 1e-3  # torch's beam search never stops earlier
    assert compared > len(sources)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
def test_torchs_early_stopping_equals_ctranslate2s(
    model: Any, engine: CTranslate2Engine, sources: list[list[int]], length_penalty: float
) -> None:
    early, patient = (
        TorchBackend(model).translate(
            SearchRequest(sources, SearchSettings(beam=4, length_penalty=length_penalty, early_stopping=early_stopping))
        )
        for early_stopping in (True, False)
    )
    results = engine.translate(SearchRequest(sources, SearchSettings(beam=4, length_penalty=length_penalty)))
    assert best_tokens(early) == best_tokens(results)
    if length_penalty >= 1:  # a longer text can still win, and sometimes does
        gains = [a[0].score - b[0].score for a, b in zip(patient, early, strict=True)]
        assert min(gains) > -1e-4
        assert max(gains) > 0.01


def test_forced_prefix_comes_first_and_is_scored(
    model: Any, engine: CTranslate2Engine, sources: list[list[int]]
) -> None:
    prefixes = [[7, 9][: i % 3] for i in range(len(sources))]
    expected = TorchBackend(model).translate(SearchRequest(sources, SearchSettings(), prefixes=prefixes))
    results = engine.translate(SearchRequest(sources, SearchSettings(), prefixes=prefixes))
    for (a,), (b,), prefix in zip(expected, results, prefixes, strict=True):
        assert a.tokens == b.tokens
        assert b.tokens[: len(prefix)] == prefix
        assert a.log_probability == pytest.approx(b.log_probability, abs=1e-3)


def test_minimum_and_maximum_lengths_hold_for_each_text(
    model: Any, engine: CTranslate2Engine, sources: list[list[int]]
) -> None:
    max_lengths = [3 + i % 9 for i in range(len(sources))]
    settings = SearchSettings(rules=LogitsRules(min_length=2))
    expected = TorchBackend(model).translate(SearchRequest(sources, settings, max_lengths=max_lengths))
    results = engine.translate(SearchRequest(sources, settings, max_lengths=max_lengths))
    assert best_tokens(results) == best_tokens(expected)
    assert all(2 <= len(text) <= limit for text, limit in zip(best_tokens(results), max_lengths, strict=True))


def test_batch_size_does_not_change_texts(engine: CTranslate2Engine, sources: list[list[int]]) -> None:
    done: list[int] = []
    settings = SearchSettings(beam=2)
    expected = engine.translate(SearchRequest(sources, settings))
    small = CTranslate2Engine(engine.read_files, NAMES, engine.config, batch_tokens=40)
    assert best_tokens(small.translate(SearchRequest(sources, settings, progress=done.append))) == best_tokens(expected)
    assert sum(done) == len(sources)
    assert len(done) > 3
    assert engine.translate(SearchRequest([], settings)) == []


def test_token_log_probabilities_can_be_left_out(engine: CTranslate2Engine, sources: list[list[int]]) -> None:
    scored, unscored = (
        engine.translate(SearchRequest(sources, SearchSettings(beam=2, token_log_probabilities=wanted)))
        for wanted in (True, False)
    )
    for (a,), (b,) in zip(scored, unscored, strict=True):
        assert (a.tokens, a.ended) == (b.tokens, b.ended)
        assert all(map(math.isnan, b.token_log_probabilities))
        assert a.score == pytest.approx(b.score, abs=1e-3)


def test_continuations_and_streams_equal_torchs() -> None:
    model = random_model("laptop-writer", positions="alibi")
    engine = converted_engine(model, NAMES)
    prompts, settings = [[7, 8, 9], [], [20], [30, 31, 32, 33]], SearchSettings(max_length=12)
    expected, results = (
        backend.generate(SearchRequest(prompts, settings)) for backend in (TorchBackend(model), engine)
    )
    assert best_tokens(results) == best_tokens(expected)
    for (a,), (b,) in zip(expected, results, strict=True):
        assert a.log_probability == pytest.approx(b.log_probability, abs=1e-3)
    assert list(engine.stream(SearchRequest([prompts[0]], settings))) == expected[0][0].tokens


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The engines folder of an empty cache."""
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


def tokens(engine: CTranslate2Engine) -> list[list[int]]:
    """Translations with newly loaded files."""
    return best_tokens(engine.translate(SearchRequest([[7, 8, 9], [20], [30, 31, 32, 33]], SearchSettings())))


def test_model_is_converted_once_and_for_each_change_of_weights_or_vocabulary(model: Any, cache: Path) -> None:
    converted_engine(model, NAMES)
    (first,) = cache.iterdir()
    converted_at = (first / "model.bin").stat().st_mtime_ns
    converted_engine(model, NAMES)
    assert (first / "model.bin").stat().st_mtime_ns == converted_at
    converted_engine(random_model("laptop-translator", positions="rotary", layers=1), NAMES)
    converted_engine(model, [[*NAMES[0][:-1], "renamed"]])
    converted_engine(model, NAMES, "int8")
    assert len([*cache.iterdir()]) == 4


def test_only_the_user_can_read_the_engines(model: Any, cache: Path) -> None:
    converted_engine(model, NAMES)
    for folder in (cache, *cache.iterdir()):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_damaged_engine_is_converted_again(model: Any, cache: Path) -> None:
    expected = tokens(converted_engine(model, NAMES))
    (folder,) = cache.iterdir()
    intact = {file.name: file.read_bytes() for file in folder.iterdir()}
    for name, content in intact.items():
        (folder / name).write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
        assert tokens(converted_engine(model, NAMES)) == expected, name
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == intact, name


def test_an_engine_that_is_damaged_after_it_was_opened_is_converted_again(model: Any, cache: Path) -> None:
    engine = converted_engine(model, NAMES)
    (folder,) = cache.iterdir()
    (folder / "model.bin").write_bytes(b"")
    assert tokens(engine) == tokens(converted_engine(model, NAMES))


def test_the_engine_of_another_model_is_never_used(model: Any, cache: Path) -> None:
    """An intact engine with a valid manifest and record is not used for another model."""
    expected = tokens(converted_engine(model, NAMES))
    (folder,) = cache.iterdir()
    other_model = random_model("laptop-translator", positions="rotary", layers=1)
    assert tokens(converted_engine(other_model, NAMES)) != expected
    (stranger,) = {*cache.iterdir()} - {folder}
    shutil.rmtree(folder)
    stranger.rename(folder)
    assert tokens(converted_engine(model, NAMES)) == expected


def test_a_cache_that_is_a_link_or_another_users_is_not_used(
    model: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens(converted_engine(model, NAMES))
    elsewhere = cache.rename(cache.with_name("elsewhere"))
    cache.symlink_to(elsewhere)
    with pytest.raises(HeedfulError, match="engines is a link or another user's; set HEEDFUL_CACHE"):
        converted_engine(model, NAMES)
    cache.unlink()
    cache.mkdir()
    (folder,) = elsewhere.iterdir()
    (cache / folder.name).symlink_to(folder)
    (folder / "model.bin").write_bytes(b"")
    assert tokens(converted_engine(model, NAMES)) == expected
    assert not (cache / folder.name).is_symlink()
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(HeedfulError, match="another user's"):
        converted_engine(model, NAMES)


def test_the_least_recently_used_engines_are_deleted(model: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted_engine(model, NAMES)
    (first,) = cache.iterdir()
    converted_engine(model, NAMES, "int8")
    size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    monkeypatch.setattr(ctranslate2_cache, "MAX_CACHE_BYTES", size + 1000)
    os.utime(first, (0, 0))
    converted_engine(random_model("laptop-translator", positions="rotary", layers=1), NAMES, "int8")
    assert first not in cache.iterdir()
    assert len([*cache.iterdir()]) == 2


def test_an_unwritable_cache_falls_back_to_torch(model: Any, cache: Path) -> None:
    cache.parent.write_text("a file, where a folder cannot be made")
    with pytest.raises(HeedfulError, match="set HEEDFUL_CACHE to another folder"):
        converted_engine(model, NAMES)


def test_a_conversion_whose_texts_differ_from_torchs_is_refused_now_and_later(
    model: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = random_model("laptop-translator", positions="rotary", rotary_base=10.0)
    with monkeypatch.context() as patched:
        export = ctranslate2_cache.export_ctranslate2
        patched.setattr(
            ctranslate2_cache,
            "export_ctranslate2",
            lambda _, *arguments, **options: export(wrong, *arguments, **options),
        )
        with pytest.raises(HeedfulError, match=r"torch is used instead$"):
            converted_engine(model, NAMES)
    with pytest.raises(HeedfulError, match="torch is used instead"):
        converted_engine(model, NAMES)
    (folder,) = cache.iterdir()
    assert json.loads((folder / "checked.json").read_text())["problem"]


def test_unsupported_requests_are_named(tmp_path: Path, make_tokenizer: Callable[..., Tokenizer]) -> None:
    tokenizer = make_tokenizer()
    model = random_model("laptop-translator", positions="rotary", vocabulary=len(tokenizer))
    backend = CTranslate2Backend(model, [tokenizer], tmp_path)

    def reason(texts: int = 0, longest: int = 0, **settings: Any) -> str | None:
        return backend.unsupported(SearchRequest([[5] * longest] * texts, SearchSettings(**settings)))

    assert reason() is None
    assert reason(1, 10_000, rules=LogitsRules(min_length=3)) is None  # rotary positions have no maximum
    assert "sample" in str(reason(sampling=SamplingConfig(1.0)))
    assert "bitwise" in str(reason(exact=True))
    assert "repetition" in str(reason(rules=LogitsRules(repetition_penalty=1.2)))
    assert "stop strings" in str(reason(rules=LogitsRules(automaton=StringAutomaton([b"a"], stop=["a"]))))
    assert reason(engine="torch") == "engine is torch"
    with heedful.record(model, "decoder.0.cross.weights"):
        assert "tap is listening" in str(reason())
    hook = model.decoder.register_forward_hook(lambda *_: None)
    assert "forward hook" in str(reason())
    hook.remove()
    assert "interventions" in str(reason(edits=TapEdits()))
    assert reason() is None
    backend = CTranslate2Backend(heedful.build("recurrent-translator", vocabulary=VOCABULARY, width=16), [], tmp_path)
    assert reason() == "ctranslate2 does not support family='recurrent_encoder_decoder'"
    backend = CTranslate2Backend(heedful.build("laptop-writer", **SMALL), [], tmp_path)
    assert "40 positions" in str(reason(1, 31, max_length=10))
    backend = CTranslate2Backend(model, [], None)
    assert "without a folder" in str(reason())


def test_batches_are_split_for_all_threads_and_torch_keeps_its_threads(model: Any) -> None:
    engine, before = converted_engine(model, NAMES), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert [len(part) for part in split_batches([[*range(7)]])] == [3, 2, 2]
        assert split_batches([[0], [1], [2], [3]]) == [[0], [1], [2], [3]]
        sizes = [len(part) for part in split_batches([[*range(248)], [*range(248, 256)], [256]])]
        assert sizes == [83, 83, 82, 8, 1]  # a large batch and small ones: every thread has a part of the large one
        engine.translate(SearchRequest([[7, 8, 9]], SearchSettings()))
        assert torch.get_num_threads() == 3  # the library alone would have left one
    finally:
        torch.set_num_threads(before)
