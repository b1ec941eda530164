"""Protected spans, tag structure and word boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.text.markup_tags import tag_structure
from heedful.text.protected_spans import PATTERN, find_protected_spans
from heedful.text.word_boundaries import find_words, inside_word


@pytest.mark.parametrize(
    "text",
    [
        "{name}", "{0}", "{}", "{0:.2f}", "{user.name}", "{{mustache}}", "{{ user.name }}", "{{{raw}}}",
        "${VAR}", "$VAR", "#{ruby}", "%{ruby}", "%s", "%d", "%(name)s", "%1$s", "%-5.2f", "%@", "%%", "%PATH%",
        "{n, plural, one {# item} other {# items of {x}}}",
        "<b>", "</b>", "<br/>", "<br />", '<a href="http://x.y/?a=1&amp;b=2" target=_blank>', "<img alt='1 > 0'>",
        "<my-tag x:y>", "<!-- note -->", "&amp;", "&#169;", "&#xA9;",
        "https://example.org/a_(b)?c=d#e", "http://x.org/{id}/y", "www.example.com", "ftp://a.b/c", "mailto:a@b.org",
        "first.last+tag@mail.example.org",
    ],
)  # fmt: skip
def test_protected_span_is_found_in_any_context(text: str) -> None:
    for before, after in (("", ""), ("Say ", " now."), ("(", ")."), ("好", "。"), ("«", "», or")):
        spans = find_protected_spans(before + text + after)
        assert [(span.text, span.start) for span in spans] == [(text, len(before))]


@pytest.mark.parametrize(
    "text",
    ["50% off", "100%increase", "$5 or 5 $", "a < b > c", "R&D; {see below}", "3:45 e.g. a@b", "C# and F#", "1 % 2"],
)
def test_plain_language_is_not_protected(text: str) -> None:
    assert find_protected_spans(text) == []


def test_url_ends_before_punctuation() -> None:
    text = "See https://a.org/b, (http://c.org/d). Or e@f.org!"
    assert [span.text for span in find_protected_spans(text)] == ["https://a.org/b", "http://c.org/d", "e@f.org"]


def test_hostile_lines_are_matched_in_linear_time() -> None:
    for pattern in ("{a,", "<a ", "<a x", "http://(", "<!--", '<a x="', "a@", "{", "%", "a.", "&a", "{{a"):
        find_protected_spans(pattern * (50_000 // len(pattern)))


def test_tag_structure_ignores_sibling_order_but_not_nesting() -> None:
    same = [["<b>", "</b>", "<i>", "<br>", "</i>"], ["<i>", "<br>", "</i>", "<b>", "</b>"]]
    assert tag_structure(same[0]) == tag_structure(same[1])
    assert tag_structure(["<b>", "<i>", "</i>", "</b>"]) != tag_structure(["<i>", "<b>", "</b>", "</i>"])
    assert tag_structure(["<i>", "<br>", "</i>"]) != tag_structure(["<i>", "</i>", "<br>"])
    assert tag_structure(["</b>", "<b>"]) != tag_structure(["<b>", "</b>"])


def test_words_in_many_scripts() -> None:
    def words(text: str) -> list[str]:
        return [text[start:end] for start, end in find_words(text)]

    assert words("L'homme dit: 3.14!") == ["L", "'", "homme", "dit", ":", "3", ".", "14", "!"]
    assert words("मैं हिन्दी") == ["मैं", "हिन्दी"]
    assert words("北京は「東」") == ["北", "京", "は", "「", "東", "」"]
    assert words("cafe\u0301") == ["cafe\u0301"]
    assert find_words("a {x y} b", [(2, 7)]) == [(0, 1), (2, 7), (8, 9)]
    assert [inside_word("a bc 北京", position) for position in range(8)] == [False] * 3 + [True] + [False] * 4


@given(st.text(alphabet="ab1<>{}%$&@:;/.wWs#()\"' \n", max_size=40))
def test_pre_check_misses_no_protected_span(text: str) -> None:
    assert [span.text for span in find_protected_spans(text)] == [match.group() for match in PATTERN.finditer(text)]
