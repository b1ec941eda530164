"""Sentence splitting: boundaries in many languages, and no character lost."""

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
        ("He left. She stayed! Why? No one knows…", 4),
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
def test_sentence_boundaries_in_many_languages(text: str, expected: int) -> None:
    assert len(split_sentences(text)) == expected


@examples
@given(text=st.one_of(st.text(), prose), limit=st.integers(1, 30), one_per_segment=st.booleans())
def test_segments_join_to_the_text(text: str, limit: int, one_per_segment: bool) -> None:
    for segments in (split_sentences(text), split_sentences(text, limit=limit, one_per_segment=one_per_segment)):
        assert "".join(segment.text + segment.whitespace for segment in segments) == text
        assert all(segment.text == segment.text.strip() and not segment.whitespace.strip() for segment in segments)


@examples
@given(text=st.one_of(st.text(), prose), limit=st.integers(1, 30), one_per_segment=st.booleans())
def test_no_segment_exceeds_the_limit(text: str, limit: int, one_per_segment: bool) -> None:
    assert all(
        len(segment.text) <= limit for segment in split_sentences(text, limit=limit, one_per_segment=one_per_segment)
    )


@examples
@given(text=prose, limit=st.integers(1, 10), data=st.data())
def test_protected_spans_are_never_split(text: str, limit: int, data: st.DataObject) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    protected = list(zip(edges[::2], edges[1::2], strict=False))
    segments = split_sentences(text, limit=limit, protected=protected)
    assert "".join(segment.text + segment.whitespace for segment in segments) == text
    starts = [sum(len(text) + len(whitespace) for text, whitespace in segments[:i]) for i in range(1, len(segments))]
    inside = [(a, b) for a, b in protected if text[a:b].strip() == text[a:b]]
    assert not [(start, a, b) for start in starts for a, b in inside if a < start < b]


def test_long_sentences_are_split_at_clauses_then_whitespace_then_anywhere() -> None:
    text = "When all was said, and that took long, they left without a word to anybody."
    assert [segment.text for segment in split_sentences(text, limit=50)] == [
        "When all was said, and that took long,",
        "they left without a word to anybody.",
    ]
    assert [segment.text for segment in split_sentences("one two three four", limit=10)] == ["one two", "three four"]
    assert [segment.text for segment in split_sentences("x" * 10, limit=5)] == ["xxxxx", "xxxxx"]


def test_sentences_share_a_segment_while_they_fit() -> None:
    text = "One two. Three four. Five six.\nSeven. Eight."
    assert split_sentences(text, limit=21, one_per_segment=False) == [
        TextSegment("One two. Three four.", " "),
        TextSegment("Five six.", "\n"),
        TextSegment("Seven. Eight.", ""),
    ]


def test_length_function_is_respected() -> None:
    segments = split_sentences("a b c d e f", limit=2, length=lambda text: len(text.split()))
    assert max(len(segment.text.split()) for segment in segments) <= 2


def test_joined_translations_follow_the_spacing_of_the_target_language() -> None:
    assert join_segments(split_sentences("你好。再见。"), ["Hello.", "Goodbye."]) == "Hello. Goodbye."
    assert join_segments(split_sentences("Hello. Goodbye."), ["你好。", "再见。"]) == "你好。再见。"
    assert join_segments(split_sentences("  One.\n\nTwo.  "), ["", "Eins.", "Zwei."]) == "  Eins.\n\nZwei.  "


def test_very_long_lines_are_split_in_linear_time() -> None:
    for text in ("a" * 100_000, "ab. " * 20_000, ", " * 20_000):
        assert all(len(segment.text) <= 500 for segment in split_sentences(text, limit=500, one_per_segment=False))
