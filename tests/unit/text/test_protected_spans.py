"""What is kept: found for what it is, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.text.markup_tags import tag_structure
from heedful.text.protected_spans import PATTERN, find_protected_spans
from heedful.text.word_boundaries import inside_word, find_words


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
def test_each_is_found_whole_wherever_it_stands(text: str) -> None:
    for before, after in (("", ""), ("Say ", " now."), ("(", ")."), ("好", "。"), ("«", "», or")):
        found = find_protected_spans(before + text + after)
        assert [(kept.text, kept.start) for kept in found] == [(text, len(before))]


@pytest.mark.parametrize(
    "text",
    ["50% off", "100%increase", "$5 or 5 $", "a < b > c", "R&D; {see below}", "3:45 e.g. a@b", "C# and F#", "1 % 2"],
)
def test_language_is_not_kept(text: str) -> None:
    assert find_protected_spans(text) == []


def test_an_address_ends_before_the_stop_after_it() -> None:
    text = "See https://a.org/b, (http://c.org/d). Or e@f.org!"
    assert [kept.text for kept in find_protected_spans(text)] == ["https://a.org/b", "http://c.org/d", "e@f.org"]


def test_a_hostile_line_is_read_in_time() -> None:
    for pattern in ("{a,", "<a ", "<a x", "http://(", "<!--", '<a x="', "a@", "{", "%", "a.", "&a", "{{a"):
        find_protected_spans(pattern * (50_000 // len(pattern)))


def test_the_shape_of_tags_is_what_lies_inside_what() -> None:
    same = [["<b>", "</b>", "<i>", "<br>", "</i>"], ["<i>", "<br>", "</i>", "<b>", "</b>"]]
    assert tag_structure(same[0]) == tag_structure(same[1])
    assert tag_structure(["<b>", "<i>", "</i>", "</b>"]) != tag_structure(["<i>", "<b>", "</b>", "</i>"])
    assert tag_structure(["<i>", "<br>", "</i>"]) != tag_structure(["<i>", "</i>", "<br>"])
    assert tag_structure(["</b>", "<b>"]) != tag_structure(["<b>", "</b>"])


def test_words_of_many_scripts() -> None:
    def of(text: str) -> list[str]:
        return [text[start:end] for start, end in find_words(text)]

    assert of("L'homme dit: 3.14!") == ["L", "'", "homme", "dit", ":", "3", ".", "14", "!"]
    assert of("मैं हिन्दी") == ["मैं", "हिन्दी"]
    assert of("北京は「東」") == ["北", "京", "は", "「", "東", "」"]
    assert of("cafe\u0301") == ["cafe\u0301"]
    assert find_words("a {x y} b", [(2, 7)]) == [(0, 1), (2, 7), (8, 9)]
    assert [inside_word("a bc 北京", place) for place in range(8)] == [False] * 3 + [True] + [False] * 4


@given(st.text(alphabet="ab1<>{}%$&@:;/.wWs#()\"' \n", max_size=40))
def test_what_is_kept_never_hides_from_the_quick_look(text: str) -> None:
    assert [found.text for found in find_protected_spans(text)] == [found.group() for found in PATTERN.finditer(text)]
