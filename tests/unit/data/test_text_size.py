"""Words, characters and bytes of texts, in scripts with and without spaces between words."""

from __future__ import annotations

import pytest

from heedful.data.text_size import TextSize


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["The cat sat.", "No one knows."], 6),
        (["저는 학생입니다", "고양이가 앉았다"], 4),
        (["I visited 北京 and 上海 last year."], 7),
        (["2024年1月5日", "私は学生です。"], None),
        (["我是学生。"], None),
        (["ฉันเป็นนักเรียน"], None),
        (["ខ្ញុំជាសិស្ស"], None),
    ],
)
def test_words_are_counted_where_spaces_separate_them(texts: list[str], words: int | None) -> None:
    assert TextSize.measure(texts) == (words, sum(map(len, texts)), sum(len(text.encode()) for text in texts))


def test_a_share_of_a_text_has_that_share_of_its_size() -> None:
    assert TextSize(10, 50, 60).scaled(0.5) == (5, 25, 30)
    assert TextSize(None, 50, 60).scaled(0.5) == (None, 25, 30)
