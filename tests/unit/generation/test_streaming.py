"""Texts in, answers out: in order, one for one, nothing lost and nothing cut off without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from heedful.errors import DataError, UsageError
from heedful.generation.streaming import stream_batches

Make = Callable[..., Any]
KINDS = ["laptop-translator", "recurrent-translator"]


def test_windows_double_and_go_at_once_when_nothing_is_waiting() -> None:
    stream = iter([*"abc", None, *"defgh", None, None, *"ij"])
    assert ["".join(window) for window in stream_batches(stream, first=2, largest=4)] == ["ab", "c", "defg", "h", "ij"]


def test_what_came_before_trouble_is_handed_over_first() -> None:
    def broken() -> Iterator[str]:
        yield from "abc"
        raise DataError("no more")

    found = stream_batches(broken(), first=2)
    assert [next(found), next(found)] == [["a", "b"], ["c"]]
    with pytest.raises(DataError, match="no more"):
        next(found)


@pytest.mark.parametrize("name", KINDS)
def test_a_stream_gives_what_single_texts_give_in_order(name: str, make_trained: Make, texts: list[str]) -> None:
    trained = make_trained(name)
    some = [texts[0], "", *texts[1:20], "   ", texts[20]]
    how = {"beam": 2, "max_length": 5}
    answers = list(trained.translations(iter(some), **how))
    assert [answer.source for answer in answers] == some
    assert [answer.text for answer in answers] == trained.translate(some, **how)
    assert [answer.text for answer in answers] == [trained.translate(text, **how) for text in some]
    assert answers[1].text == answers[21].text == ""
    assert any(answer.text for answer in answers)


def test_answers_come_before_the_stream_has_ended(make_trained: Make) -> None:
    trained = make_trained("laptop-translator")
    asked: list[str] = []

    def stream() -> Iterator[str | None]:
        for text in ("3 May", "4 May", "5 May"):
            asked.append(text)
            yield text
            yield None

    answers = trained.translations(stream(), beam=1)
    assert next(answers).source == "3 May"
    assert asked == ["3 May"]


def test_words_spell_the_answer_and_their_probabilities_make_up_its_own(make_trained: Make) -> None:
    trained = make_trained("laptop-translator", "byte_bpe", sharper=1.5)
    for answer in trained.translations(["3 May 1990", "12.7.2003"], n_best=3):
        for each in (answer, *answer.rivals):
            assert [word.text for word in each.words] == each.text.split()
            assert all(0 <= word.probability <= 1 for word in each.words)
        assert len(answer.rivals) == 2
        assert answer.score >= answer.rivals[0].score >= answer.rivals[1].score
        assert set(answer.to_json()) >= {"source", "text", "score", "words", "alternatives"}


@pytest.mark.parametrize("name", KINDS)
def test_a_long_text_is_read_in_parts_and_said_so(name: str, make_trained: Make) -> None:
    trained = make_trained(name, **({"max_length": 40} if name.startswith("laptop") else {}))
    text = "3 May 1990, then 4 May 1990. " * 20
    (answer,) = trained.translations([text], beam=1, max_length=5)
    assert any("more than the model reads at once" in warning for warning in answer.warnings)
    (short,) = trained.translations(["3 May 1990"], beam=1, max_length=5)
    assert len(answer.text) > len(short.text)


def test_a_megabyte_is_read_too(make_trained: Make) -> None:
    trained = make_trained("laptop-translator", max_length=512)
    (answer,) = trained.translations(["3 May " * 3000], beam=1, max_length=2)
    assert "18,000" in answer.warnings[0] or "tokens are more" in answer.warnings[0]


def test_a_translation_that_does_not_end_says_where_it_was_cut(make_trained: Make) -> None:
    trained = make_trained("laptop-translator")
    (answer,) = trained.translations(["3 May 1990"], max_length=2, min_length=2)
    assert answer.warnings == ("the translation was cut off after 2 tokens (see --max-length)",)


def test_symbols_never_seen_are_counted(make_trained: Make) -> None:
    trained = make_trained("laptop-translator")
    (answer,) = trained.translations(["☃☃☃"], beam=1, max_length=5)
    assert "3 of 3 tokens are unknown to the model" in answer.warnings


def test_a_prefix_begins_the_translation_and_one_that_cannot_be_written_is_refused(make_trained: Make) -> None:
    trained = make_trained("laptop-translator")
    assert trained.translate("3 May 1990", prefix="199").startswith("199")
    with pytest.raises(UsageError, match="cannot write the prefix"):
        trained.translate("3 May 1990", prefix="☃")


def test_stop_texts_are_no_part_of_the_answer(make_trained: Make) -> None:
    for name in ("laptop-translator", "laptop-writer"):
        trained = make_trained(name)
        ask = trained.translate if name.endswith("translator") else trained.generate
        how = {"temperature": 1.0, "seed": 1, "min_length": 8}
        free = ask("3 May 1990", **how)
        written = free.removeprefix("3 May 1990")
        stop = written[2:4]
        assert len(stop) == 2
        before = free[: free.index(stop, len(free) - len(written))]
        assert ask("3 May 1990", **how, stop=(stop,)) == before


@pytest.mark.parametrize("kind", ["characters", "byte_bpe", "words"])
@pytest.mark.parametrize("name", ["laptop-writer", "recurrent-writer"])
def test_a_streamed_text_is_the_text(name: str, kind: str, make_trained: Make) -> None:
    trained = make_trained(name, kind, sharper=1.5)
    options = {"seed": 5, "max_length": 60, "stop": ("19",)}
    for prompt in ("", "3 May"):
        assert prompt + "".join(trained.stream(prompt, **options)) == trained.generate(prompt, **options)


def test_a_prompt_longer_than_the_model_sees_says_so(make_trained: Make) -> None:
    trained = make_trained("laptop-writer", max_length=8)
    (answer,) = trained.continuations(["3 May 1990, 3 May 1990"], max_length=3)
    assert answer.warnings == ("the prompt has 22 tokens and the model sees 8: it goes on from the last 4",)
    assert trained.prompt_warnings("3 May 1990, 3 May 1990") == answer.warnings


def test_several_answers_cannot_stream(make_trained: Make) -> None:
    trained = make_trained("laptop-writer")
    for options in ({"beam": 3}, {"n_best": 2}):
        with pytest.raises(UsageError, match="cannot be streamed"):
            trained.stream("3 May", **options)


def test_a_model_says_what_it_was_made_for(make_trained: Make) -> None:
    with pytest.raises(UsageError, match="is a language model; use `generate`"):
        make_trained("laptop-writer").translate("3 May")
    with pytest.raises(UsageError, match="is a translator; use `translate`"):
        make_trained("laptop-translator").generate("3 May")
