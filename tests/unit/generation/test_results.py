"""Translations and continuations: one per input in order, with words, alternatives and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from heedful.errors import UsageError
from heedful.generation.results import ScoredWord

Make = Callable[..., Any]
FAMILIES = ["laptop-translator", "recurrent-translator"]


@pytest.mark.parametrize("name", FAMILIES)
def test_streamed_translations_equal_single_ones_in_order(name: str, make_trained: Make, texts: list[str]) -> None:
    translator = make_trained(name)
    inputs = [texts[0], "", *texts[1:20], "   ", texts[20]]
    options = {"beam": 2, "max_length": 5}
    results = list(translator.iter_translate(iter(inputs), **options))
    assert [result.source for result in results] == inputs
    assert [result.text for result in results] == translator.translate(inputs, **options)
    assert [result.text for result in results] == [translator.translate(text, **options) for text in inputs]
    assert results[1].text == results[21].text == ""
    assert any(result.text for result in results)


def test_results_come_before_the_stream_has_ended(make_trained: Make) -> None:
    consumed: list[str] = []

    def stream() -> Iterator[str | None]:
        for text in ("3 May", "4 May", "5 May"):
            consumed.append(text)
            yield text
            yield None

    results = make_trained("laptop-translator").iter_translate(stream(), beam=1)
    assert next(results).source == "3 May"
    assert consumed == ["3 May"]


def test_words_join_to_the_text_and_alternatives_are_ranked(make_trained: Make) -> None:
    translator = make_trained("laptop-translator", "byte_bpe", sharper=1.5)
    for result in translator.iter_translate(["3 May 1990", "12.7.2003"], n_best=3):
        for output in (result, *result.alternatives):
            assert [word.text for word in output.words] == output.text.split()
            assert all(0 <= word.probability <= 1 for word in output.words)
        assert len(result.alternatives) == 2
        assert result.score >= result.alternatives[0].score >= result.alternatives[1].score
        assert set(result.to_json()) >= {"source", "text", "score", "words", "alternatives"}


@pytest.mark.parametrize("name", FAMILIES)
def test_long_text_is_split_with_a_warning(name: str, make_trained: Make) -> None:
    translator = make_trained(name, **({"max_length": 40} if name.startswith("laptop") else {}))
    text = "3 May 1990, then 4 May 1990. " * 20
    (result,) = translator.iter_translate([text], beam=1, max_length=5)
    assert any("exceed the model's input limit" in warning for warning in result.warnings)
    (short,) = translator.iter_translate(["3 May 1990"], beam=1, max_length=5)
    assert len(result.text) > len(short.text)


def test_small_probabilities_are_not_rounded_to_zero(make_trained: Make) -> None:
    (result,) = make_trained("laptop-writer").iter_generate(["3 May"], max_length=3)
    rare = replace(result, words=(ScoredWord("zyx", 0.0000123456), ScoredWord("may", 0.123456)))
    assert [word["probability"] for word in rare.to_json()["words"]] == [0.00001235, 0.1235]


def test_very_long_text_is_translated(make_trained: Make) -> None:
    translator = make_trained("laptop-translator", max_length=512)
    (result,) = translator.iter_translate(["3 May " * 3000], beam=1, max_length=2)
    assert "exceed the model's input limit" in result.warnings[0]


def test_translation_cut_off_at_its_limit_has_a_warning(make_trained: Make) -> None:
    (result,) = make_trained("laptop-translator").iter_translate(["3 May 1990"], max_length=2, min_length=2)
    assert result.warnings == ("the translation was cut off after 2 tokens (see max_length)",)


def test_unknown_tokens_are_counted_in_a_warning(make_trained: Make) -> None:
    (result,) = make_trained("laptop-translator").iter_translate(["☃☃☃"], beam=1, max_length=5)
    assert "3 of 3 tokens are unknown to the model" in result.warnings


def test_translation_begins_with_the_prefix(make_trained: Make) -> None:
    translator = make_trained("laptop-translator")
    assert translator.translate("3 May 1990", prefix="199").startswith("199")
    with pytest.raises(UsageError, match="cannot represent the prefix"):
        translator.translate("3 May 1990", prefix="☃")


def test_stop_string_is_not_part_of_the_text(make_trained: Make) -> None:
    for name in ("laptop-translator", "laptop-writer"):
        trained = make_trained(name)
        run = trained.translate if name.endswith("translator") else trained.generate
        options = {"temperature": 1.0, "seed": 1, "min_length": 8}
        free = run("3 May 1990", **options)
        generated = free.removeprefix("3 May 1990")
        stop = generated[2:4]
        assert len(stop) == 2
        before = free[: free.index(stop, len(free) - len(generated))]
        assert run("3 May 1990", **options, stop=(stop,)) == before


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_progress_counts_texts_not_their_parts(engine: str, make_trained: Make) -> None:
    translator = make_trained("laptop-translator", max_length=40)
    texts = ["3 May 1990, then 4 May 1990. " * 10, "", "3 May 1990", "<b>4 May</b> 1990. " * 10]
    done: list[int] = []
    list(translator.iter_translate(texts, beam=1, max_length=5, engine=engine, progress=done.append))
    assert sum(done) == len(texts)
    assert min(done) >= 0


@pytest.mark.parametrize("kind", ["characters", "byte_bpe", "words"])
@pytest.mark.parametrize("name", ["laptop-writer", "recurrent-writer"])
def test_streamed_text_equals_generated_text(name: str, kind: str, make_trained: Make) -> None:
    generator = make_trained(name, kind, sharper=1.5)
    options = {"seed": 5, "max_length": 60, "stop": ("19",)}
    for prompt in ("", "3 May"):
        assert prompt + "".join(generator.stream(prompt, **options)) == generator.generate(prompt, **options)


def test_prompt_longer_than_the_context_has_a_warning(make_trained: Make) -> None:
    generator = make_trained("laptop-writer", max_length=8)
    (result,) = generator.iter_generate(["3 May 1990, 3 May 1990"], max_length=3)
    assert result.warnings == ("the prompt has 22 tokens, the model's context 8: only the last 4 are used",)
    assert generator.prompt_warnings("3 May 1990, 3 May 1990") == result.warnings


def test_beams_and_several_samples_cannot_be_streamed(make_trained: Make) -> None:
    for options in ({"beam": 3}, {"n_best": 2}):
        with pytest.raises(UsageError, match="cannot be streamed"):
            make_trained("laptop-writer").stream("3 May", **options)
