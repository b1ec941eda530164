"""CTranslate2 behind our calls: the same texts and scores, converted once, and refused where it would be wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful import HeedfulError
from heedful.generation.backends import ctranslate2_cache as converted
from heedful.generation.backends.ctranslate2_backend import CTranslate2, split_batches, unfit
from heedful.generation.backends.ctranslate2_cache import ctranslate2_engine
from heedful.generation.continuation import generate_ids
from heedful.generation.search.logits_rules import LogitsRules
from heedful.generation.search.sampling import SamplingConfig
from heedful.generation.sequence_to_sequence import translate_ids
from heedful.text.special_tokens import END, SPECIAL_TOKENS

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: no engine here")

VOCABULARY = 60
NAMES = [[*SPECIAL_TOKENS, *(f"w{token}" for token in range(6, VOCABULARY))]]
SMALL: dict[str, Any] = {"vocabulary": VOCABULARY, "width": 32, "heads": 2, "layers": 2, "max_length": 40}


@torch.no_grad()
def opinionated(preset: str, **settings: Any) -> Any:
    """A random model, moved from its mild beginnings so that texts differ and some end early."""
    torch.manual_seed(1)
    model = heedful.build(preset, **{**SMALL, "tie_output": False, "output_bias": True, **settings}).eval()
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.15)
    model.heads.next_token.bias[END] += 1.5
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return opinionated("laptop-translator", positions="rotary")


@pytest.fixture(scope="module")
def engine(model: Any, tmp_path_factory: pytest.TempPathFactory) -> CTranslate2:
    return ctranslate2_engine(model, NAMES, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(6, VOCABULARY, (int(n),), generator=generator).tolist() for n in torch.arange(1, 25)]


def test_greedy_texts_their_tokens_and_numbers_are_torchs(
    model: Any, engine: CTranslate2, sources: list[list[int]]
) -> None:
    ours, theirs = translate_ids(model, sources, beam=1), engine.translate_ids(sources, beam=1)
    for (a,), (b,) in zip(ours, theirs, strict=True):
        assert a.tokens == b.tokens
        assert a.ended == b.ended
        assert a.token_log_probabilities == pytest.approx(b.token_log_probabilities, abs=1e-3)
        assert (a.log_probability, a.score) == pytest.approx((b.log_probability, b.score), abs=1e-3)
    assert {text.ended for (text,) in ours} == {True, False}  # some of each, or the test says little


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_beams_texts_have_the_scores_that_torch_gives_those_texts(
    model: Any, engine: CTranslate2, sources: list[list[int]], length_penalty: float
) -> None:
    options: dict[str, Any] = {"beam": 4, "n_best": 4, "length_penalty": length_penalty, "at_most": [12] * len(sources)}
    ours, theirs = translate_ids(model, sources, **options), engine.translate_ids(sources, **options)
    same = 0
    for mine, found in zip(ours, theirs, strict=True):
        assert [text.score for text in found] == sorted((text.score for text in found), reverse=True)
        known = {tuple(text.tokens): text for text in mine}
        for text in found:
            if (also := known.get(tuple(text.tokens))) is not None and also.ended == text.ended:
                assert text.score == pytest.approx(also.score, abs=1e-3)
                same += 1
        assert mine[0].score > found[0].score - 1e-3  # ours never stops before the engine does
    assert same > len(sources)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
def test_in_a_hurry_torchs_beam_search_stops_where_this_one_does(
    model: Any, engine: CTranslate2, sources: list[list[int]], length_penalty: float
) -> None:
    options: dict[str, Any] = {"beam": 4, "length_penalty": length_penalty}
    theirs = engine.translate_ids(sources, **options)
    hurried, patient = (translate_ids(model, sources, hurry=hurry, **options) for hurry in (True, False))
    assert [texts[0].tokens for texts in hurried] == [texts[0].tokens for texts in theirs]
    if length_penalty >= 1:  # a longer text could still have won, and sometimes did
        gains = [a[0].score - b[0].score for a, b in zip(patient, hurried, strict=True)]
        assert min(gains) > -1e-4
        assert max(gains) > 0.01


def test_a_forced_prefix_is_written_and_counts(model: Any, engine: CTranslate2, sources: list[list[int]]) -> None:
    prefixes = [[7, 9][: i % 3] for i in range(len(sources))]
    ours = translate_ids(model, sources, beam=1, prefixes=prefixes)
    theirs = engine.translate_ids(sources, beam=1, prefixes=prefixes)
    for (a,), (b,), prefix in zip(ours, theirs, prefixes, strict=True):
        assert a.tokens == b.tokens
        assert b.tokens[: len(prefix)] == prefix
        assert a.log_probability == pytest.approx(b.log_probability, abs=1e-3)


def test_no_text_is_longer_than_its_own_limit_or_shorter_than_asked(
    model: Any, engine: CTranslate2, sources: list[list[int]]
) -> None:
    at_most = [3 + i % 9 for i in range(len(sources))]
    options: dict[str, Any] = {"beam": 1, "at_most": at_most, "rules": LogitsRules(min_length=2)}
    ours, theirs = translate_ids(model, sources, **options), engine.translate_ids(sources, **options)
    assert [texts[0].tokens for texts in theirs] == [texts[0].tokens for texts in ours]
    assert all(2 <= len(texts[0].tokens) <= most for texts, most in zip(theirs, at_most, strict=True))


def test_batches_and_their_order_change_no_text(engine: CTranslate2, sources: list[list[int]]) -> None:
    done: list[int] = []
    whole = engine.translate_ids(sources, beam=2)
    small = engine.translate_ids(sources, beam=2, tokens=40, progress=done.append)
    assert [texts[0].tokens for texts in small] == [texts[0].tokens for texts in whole]
    assert sum(done) == len(sources)
    assert len(done) > 3
    assert engine.translate_ids([]) == []


def test_probabilities_of_tokens_can_be_left_out(engine: CTranslate2, sources: list[list[int]]) -> None:
    whole, less = (engine.translate_ids(sources, beam=2, each_token=told) for told in (True, False))
    for (a,), (b,) in zip(whole, less, strict=True):
        assert (a.tokens, a.ended) == (b.tokens, b.ended)
        assert all(map(math.isnan, b.token_log_probabilities))
        assert a.score == pytest.approx(b.score, abs=1e-3)


def test_a_language_model_goes_on_as_torchs_does(tmp_path: Path) -> None:
    model = opinionated("laptop-writer", positions="alibi")
    engine = ctranslate2_engine(model, NAMES, tmp_path)
    prompts = [[7, 8, 9], [], [20], [30, 31, 32, 33]]
    ours, theirs = generate_ids(model, prompts, limit=12), engine.generate_ids(prompts, limit=12)
    assert [texts[0].tokens for texts in theirs] == [texts[0].tokens for texts in ours]
    for (a,), (b,) in zip(ours, theirs, strict=True):
        assert a.log_probability == pytest.approx(b.log_probability, abs=1e-3)
    assert list(engine.generate_tokens(prompts[0], limit=12)) == ours[0][0].tokens


def test_a_model_is_converted_once_and_again_when_its_weights_change(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ctranslate2_engine(model, NAMES, tmp_path)
    assert first.folder == tmp_path / "engines" / "ctranslate2-float32"
    made = (first.folder / "model.bin").stat().st_mtime_ns
    ctranslate2_engine(model, NAMES, tmp_path)
    assert (first.folder / "model.bin").stat().st_mtime_ns == made
    other = opinionated("laptop-translator", positions="rotary", layers=1)
    again = ctranslate2_engine(other, NAMES, tmp_path)
    assert again.folder == first.folder
    assert (first.folder / "model.bin").stat().st_mtime_ns != made
    assert [file.name for file in (tmp_path / "engines").iterdir()] == ["ctranslate2-float32"]


def test_where_nothing_can_be_written_the_cache_keeps_it(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").write_text("a file, where a folder cannot be made")
    for folder in (tmp_path / "model", None):
        found = ctranslate2_engine(model, NAMES, folder, "int8")
        assert found.folder.parent == tmp_path / "cache" / "engines"
    assert len(list(found.folder.parent.iterdir())) == 1


def test_an_engine_that_answers_otherwise_is_refused_then_and_later(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = opinionated("laptop-translator", positions="rotary", rotary_base=10.0)
    with monkeypatch.context() as patched:
        write = converted.export_ctranslate2
        patched.setattr(converted, "export_ctranslate2", lambda _, *rest, **options: write(wrong, *rest, **options))
        with pytest.raises(HeedfulError, match=r"torch is used instead$"):
            ctranslate2_engine(model, NAMES, tmp_path)
    with pytest.raises(HeedfulError, match="torch is used instead"):
        ctranslate2_engine(model, NAMES, tmp_path)
    assert json.loads((tmp_path / "engines" / "ctranslate2-float32" / "checked.json").read_text())["problem"]


def test_what_the_engine_cannot_serve_is_said(model: Any) -> None:
    assert unfit(model) is None
    assert unfit(model, rules=LogitsRules(min_length=3), longest=10_000) is None  # rotary positions have no end
    assert "by chance" in str(unfit(model, draw=SamplingConfig(1.0, 0, 1.0, 0.0, 0)))
    assert "every bit" in str(unfit(model, exact=True))
    assert "repetitions" in str(unfit(model, rules=LogitsRules(repetition_penalty=1.2)))
    with heedful.record(model, "decoder.0.cross.weights"):
        assert "taps" in str(unfit(model))
    recurrent = heedful.build("recurrent-translator", vocabulary=VOCABULARY, width=16)
    assert unfit(recurrent) == "ctranslate2 cannot express family='recurrent_encoder_decoder'"
    learned = heedful.build("laptop-writer", **SMALL)
    assert "40 positions" in str(unfit(learned, longest=41))


def test_a_batch_is_shared_out_and_torch_keeps_its_threads(model: Any, tmp_path: Path) -> None:
    engine, before = ctranslate2_engine(model, NAMES, tmp_path), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert [len(part) for part in split_batches([[*range(7)]])] == [3, 2, 2]
        assert split_batches([[0], [1], [2], [3]]) == [[0], [1], [2], [3]]
        engine.translate_ids([[7, 8, 9]], beam=1)
        assert torch.get_num_threads() == 3  # the library alone would have left one
    finally:
        torch.set_num_threads(before)
