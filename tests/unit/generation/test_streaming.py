"""Streams: growing batches of inputs, incremental detokenization, and stop strings in pieces of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.errors import DataError
from heedful.generation.streaming import detokenize_stream, stream_batches, until_stop_string

Make = Callable[..., Any]
TOKENIZERS = ["byte_bpe", "unigram", "wordpiece", "words", "characters"]


def test_batches_double_and_none_flushes() -> None:
    stream = iter([*"abc", None, *"defgh", None, None, *"ij"])
    assert ["".join(batch) for batch in stream_batches(stream, first=2, largest=4)] == ["ab", "c", "defg", "h", "ij"]


def test_texts_before_an_error_are_yielded_first() -> None:
    def broken() -> Iterator[str]:
        yield from "abc"
        raise DataError("no more")

    batches = stream_batches(broken(), first=2)
    assert [next(batches), next(batches)] == [["a", "b"], ["c"]]
    with pytest.raises(DataError, match="no more"):
        next(batches)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_streamed_pieces_join_to_the_decoded_text(kind: str, make_tokenizer: Make, texts: list[str]) -> None:
    tokenizer = make_tokenizer(kind, 1000)
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        assert "".join(detokenize_stream(ids, tokenizer, context="")) == tokenizer.decode([ids])[0] == text


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_streaming_after_a_context_keeps_the_space_between_words(
    kind: str, make_tokenizer: Make, texts: list[str]
) -> None:
    tokenizer = make_tokenizer(kind, 1000)
    for text, ids in zip(texts[:40], tokenizer.encode(texts[:40]), strict=True):
        for cut in range(1, len(ids)):
            context = tokenizer.decode([ids[:cut]])[0]
            if "\ufffd" not in context:
                assert context + "".join(detokenize_stream(ids[cut:], tokenizer, context=context)) == text


def test_no_piece_ends_inside_a_character(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer("byte_bpe", 270)  # hardly any merges: nearly every token is one byte
    text = "naïve 雪 🙂 é"
    (ids,) = tokenizer.encode([text])
    pieces = list(detokenize_stream(ids, tokenizer, context=""))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_invalid_bytes_are_shown_as_the_tokenizer_shows_them(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer("byte_bpe", 270)
    (ids,) = tokenizer.encode(["雪 a"])
    for broken in (ids[1:], ids[:1], ids[:2] + ids[3:]):
        assert "".join(detokenize_stream(broken, tokenizer, context="")) == tokenizer.decode([broken])[0]


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    pieces=st.lists(st.text("ab\n", max_size=4), max_size=6),
    stop_strings=st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=2),
)
@example(["ab", "b"], ["b", "abb"])
def test_text_ends_before_the_stop_string_that_is_complete_first(pieces: list[str], stop_strings: list[str]) -> None:
    text = "".join(pieces)
    matches = [(text.find(stop) + len(stop), text.find(stop)) for stop in stop_strings if stop in text]
    _, start = min(matches, default=(0, len(text)))
    assert "".join(until_stop_string(pieces, stop_strings)) == text[:start]


def test_only_a_possible_stop_string_is_held_back() -> None:
    assert list(until_stop_string(["one t", "wo", " three"], ["two!"])) == ["one ", "two three"]
