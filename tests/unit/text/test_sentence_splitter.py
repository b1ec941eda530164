"""Sentences: borders where a reader sees them, and never a character lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.text.sentence_splitter import TextSegment, join_segments, split_sentences

examples = settings(deadline=None, max_examples=100, derandomize=True)
prose = st.lists(
    st.one_of(
        st.sampled_from(
            ["Dr", ".", "!", "?", "…", " ", "  ", "\n", ",", ";", "。", "」", '"', ")", "1", "ab", "Der", "।"]
        ),
        st.text(max_size=3),
    ),
    max_size=40,
).map("".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He left. She stayed! Why? Nobody knows…", 4),
        ("Dr. Smith and Mr. Jones met J. R. R. Tolkien. They talked.", 2),
        ("It costs 3.14 euros, i.e. more than 2.50. Too much.", 2),
        ("Am 3. Mai kam er z. B. nach Berlin. Ludwig XIV. war König.", 2),
        ("Das war 1999. Danach ging er usw. und so fort.", 2),
        ('"Really?" she asked. "Yes." Then nothing.', 3),
        ("(He knew.) She did not.", 2),
        ("Wait... no. Wait... No.", 3),
        ("¿Dónde? ¡Aquí! Vale.", 3),
        ("See example.com or mail a.b@c.de today. Thanks.", 2),
        ("他在北京。她说：“好。”然后走了！真的吗？是的。", 4),
        ("「はい。」と言った。東京は首都です。", 2),
        ("मैं घर जा रहा हूँ। तुम कहाँ हो? ठीक है।", 3),
        ("كيف حالك؟ أنا بخير. شكرا لك", 3),
        ("Мама мыла раму. См. рис. 2. Все.", 2),
        ("Title\nFirst line\n\nNext paragraph. Its end.", 4),
    ],
)
def test_borders_are_where_a_reader_sees_them(text: str, expected: int) -> None:
    assert len(split_sentences(text)) == expected


@examples
@given(text=st.one_of(st.text(), prose), limit=st.integers(1, 30), singly=st.booleans())
def test_pieces_put_together_are_the_text(text: str, limit: int, singly: bool) -> None:
    for pieces in (split_sentences(text), split_sentences(text, limit=limit, one_per_segment=singly)):
        assert "".join(piece.text + piece.whitespace for piece in pieces) == text
        assert all(piece.text == piece.text.strip() and not piece.whitespace.strip() for piece in pieces)


@examples
@given(text=st.one_of(st.text(), prose), limit=st.integers(1, 30), singly=st.booleans())
def test_no_piece_is_longer_than_the_limit(text: str, limit: int, singly: bool) -> None:
    assert all(len(piece.text) <= limit for piece in split_sentences(text, limit=limit, one_per_segment=singly))


@examples
@given(text=prose, limit=st.integers(1, 10), data=st.data())
def test_what_is_whole_stays_whole(text: str, limit: int, data: st.DataObject) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    whole = list(zip(edges[::2], edges[1::2], strict=False))
    pieces = split_sentences(text, limit=limit, protected=whole)
    assert "".join(piece.text + piece.whitespace for piece in pieces) == text
    starts = [sum(len(text) + len(gap) for text, gap in pieces[:i]) for i in range(1, len(pieces))]
    inside = [(a, b) for a, b in whole if text[a:b].strip() == text[a:b]]
    assert not [(start, a, b) for start in starts for a, b in inside if a < start < b]


def test_long_sentences_are_cut_at_clauses_then_at_blanks_then_anywhere() -> None:
    text = "When all was said, and that took long, they left without a word to anybody."
    assert [piece.text for piece in split_sentences(text, limit=50)] == [
        "When all was said, and that took long,",
        "they left without a word to anybody.",
    ]
    assert [piece.text for piece in split_sentences("one two three four", limit=10)] == ["one two", "three four"]
    assert [piece.text for piece in split_sentences("x" * 10, limit=5)] == ["xxxxx", "xxxxx"]


def test_sentences_stay_together_as_long_as_they_fit() -> None:
    text = "One two. Three four. Five six.\nSeven. Eight."
    assert split_sentences(text, limit=21, one_per_segment=False) == [
        TextSegment("One two. Three four.", " "),
        TextSegment("Five six.", "\n"),
        TextSegment("Seven. Eight.", ""),
    ]


def test_length_is_what_the_caller_says_it_is() -> None:
    pieces = split_sentences("a b c d e f", limit=2, length=lambda text: len(text.split()))
    assert max(len(piece.text.split()) for piece in pieces) <= 2


def test_blanks_between_sentences_follow_the_language_written_in() -> None:
    assert join_segments(split_sentences("你好。再见。"), ["Hello.", "Goodbye."]) == "Hello. Goodbye."
    assert join_segments(split_sentences("Hello. Goodbye."), ["你好。", "再见。"]) == "你好。再见。"
    assert join_segments(split_sentences("  One.\n\nTwo.  "), ["", "Eins.", "Zwei."]) == "  Eins.\n\nZwei.  "


def test_a_very_long_line_is_split_in_time() -> None:
    for text in ("a" * 100_000, "ab. " * 20_000, ", " * 20_000):
        assert all(len(piece.text) <= 500 for piece in split_sentences(text, limit=500, one_per_segment=False))
