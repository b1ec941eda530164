"""Passage windows and character spans of answers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.passage_windows import SPECIAL_TOKENS_AROUND, Passage, PassageWindow, PassageWindows
from heedful.errors import DataError
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TEXT = "The Café  Zoë opened in 1990 (in Köln). “Great,” said the owner, who loves \U0001f642 and 愛."
KINDS = ("byte_bpe", "unigram", "wordpiece", "words", "characters")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train([TEXT, "the owner opened a café"] * 4, TokenizerConfig(kind=request.param, vocabulary=300))


def test_token_span_maps_back_to_the_same_characters(tokenizer: Tokenizer) -> None:
    passage = Passage.encode(TEXT, tokenizer)
    for answer in ("Café  Zoë", "1990", "Köln", "Great", "the owner", "\U0001f642", "愛", TEXT):
        start = TEXT.index(answer)
        span = passage.character_span(*passage.token_span(start, start + len(answer)))
        cut = TEXT[slice(*span)]
        assert answer in cut
        assert len(cut) <= len(answer) + 2, f"{cut!r}: a token may be longer than the answer, by punctuation"


def test_normalizing_tokenizer_keeps_the_original_characters() -> None:
    lower = Tokenizer.train(["zoë café opened"] * 3, TokenizerConfig(kind="words", vocabulary=40, lowercase=True))
    passage = Passage.encode("ZOË Café OPENED", lower)
    assert passage.text[slice(*passage.character_span(0, 1))] == "ZOË Café"


@given(
    question=st.integers(0, 20),
    passage=st.integers(1, 400),
    longest=st.integers(8, 64),
    stride=st.integers(1, 64),
)
def test_windows_cover_the_passage_and_overlap_by_half(question: int, passage: int, longest: int, stride: int) -> None:
    windows, room = PassageWindows(max_tokens=longest, stride=stride), longest - question - SPECIAL_TOKENS_AROUND
    if room < 1:
        with pytest.raises(DataError, match="leaves no room"):
            windows.split(question, passage)
        return
    cut = windows.split(question, passage)
    assert cut[0].start == 0
    assert cut[-1].end == passage
    assert all(0 < window.end - window.start <= room for window in cut)
    for one, other in pairwise(cut):
        assert one.start < other.start
        assert one.end - other.start >= room // 2, "an answer of half a window is complete in one of them"


def test_stride_0_raises_for_a_longer_passage() -> None:
    windows = PassageWindows(max_tokens=32, stride=0)
    assert windows.split(5, 24) == [PassageWindow(0, 24)]
    with pytest.raises(DataError, match="33 tokens, but the limit is 32"):
        windows.split(5, 25)


def test_incomplete_answer_is_labeled_as_absent() -> None:
    window = PassageWindow(10, 20)
    assert window.answer_positions((10, 19), passage_start=7) == (7, 16)
    assert window.answer_positions((9, 12), passage_start=7) == (0, 0)
    assert window.answer_positions((18, 20), passage_start=7) == (0, 0)
    assert window.answer_positions(None, passage_start=7) == (0, 0)
