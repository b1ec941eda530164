"""Text as it is written: whole characters, the same text in the end, and nothing past a stop text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.generation.incremental_detokenizer import detokenize_stream, until_stop_string

Make = Callable[..., Any]
KINDS = ["byte_bpe", "unigram", "wordpiece", "words", "characters"]


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_join_to_the_decoded_text(kind: str, make_tokenizer: Make, texts: list[str]) -> None:
    tokenizer = make_tokenizer(kind, 1000)
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        assert "".join(detokenize_stream(ids, tokenizer, context="")) == tokenizer.decode([ids])[0] == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_goes_on_as_if_it_had_never_been_cut(kind: str, make_tokenizer: Make, texts: list[str]) -> None:
    """The space between a prompt and the next word is there."""
    tokenizer = make_tokenizer(kind, 1000)
    for text, ids in zip(texts[:40], tokenizer.encode(texts[:40]), strict=True):
        for cut in range(1, len(ids)):
            before = tokenizer.decode([ids[:cut]])[0]
            if "\ufffd" not in before:
                assert before + "".join(detokenize_stream(ids[cut:], tokenizer, context=before)) == text


def test_no_piece_ends_inside_a_character(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer("byte_bpe", 270)  # hardly any merges: nearly every token is one byte
    text = "naïve 雪 🙂 é"
    (ids,) = tokenizer.encode([text])
    pieces = list(detokenize_stream(ids, tokenizer, context=""))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_text_show_as_the_tokenizer_shows_them(make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer("byte_bpe", 270)
    (ids,) = tokenizer.encode(["雪 a"])
    for broken in (ids[1:], ids[:1], ids[:2] + ids[3:]):
        assert "".join(detokenize_stream(broken, tokenizer, context="")) == tokenizer.decode([broken])[0]


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    pieces=st.lists(st.text("ab\n", max_size=4), max_size=6),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=2),
)
def test_text_ends_before_the_first_stop_text_wherever_pieces_are_cut(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    ends = [whole.find(stop) for stop in stops if stop in whole]
    assert "".join(until_stop_string(pieces, stops)) == whole[: min(ends, default=len(whole))]


def test_only_what_may_begin_a_stop_text_is_held_back() -> None:
    assert list(until_stop_string(["one t", "wo", " three"], ["two!"])) == ["one ", "two three"]
