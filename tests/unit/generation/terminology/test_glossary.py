"""Glossaries: terms are matched as whole words, and malformed files are refused with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.errors import DataError
from heedful.generation.terminology.glossary import Glossary

GLOSSARY = Glossary({"dog": "Köter", "hot dog": "Wurst", "北京": "Peking", "C++": "Zeh", "Bank": "Ufer"})


def matches(text: str) -> list[tuple[str, str]]:
    return [(text[start:end], term) for start, end, term in GLOSSARY.find(text)]


def test_terms_match_whole_words_and_the_longest_wins() -> None:
    assert matches("a dog, dogs, a hot dog, hotdog") == [("dog", "Köter"), ("hot dog", "Wurst")]
    assert matches("C++ or C++11, my dog.") == [("C++", "Zeh"), ("C++", "Zeh"), ("dog", "Köter")]


def test_scripts_without_spaces_match_inside_running_text() -> None:
    assert matches("我在北京大学") == [("北京", "Peking")]


def test_matching_is_case_sensitive_except_at_sentence_starts() -> None:
    assert matches("Dog! “Dog” or Dog. Dog? bank Bank") == [
        ("Dog", "Köter"),
        ("Dog", "Köter"),
        ("Dog", "Köter"),
        ("Bank", "Ufer"),
    ]


def test_tags_before_a_sentence_are_skipped() -> None:
    assert matches("<b>Dog</b> <i>(Dog)</i>. <p>Dog") == [("Dog", "Köter"), ("Dog", "Köter")]


def test_comments_blank_lines_and_repeated_terms_are_allowed(tmp_path: Path) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text("\ufeff# animals\n\ndog\tHund\r\ncat \t Katze\ndog\tHund\n", encoding="utf-8")
    assert Glossary.read(file).terms == {"dog": "Hund", "cat": "Katze"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog Hund\n", ":1: expected a source term, a tab and the target term it requires, got 'dog Hund'"),
        ("a\tb\ndog\t\n", ":2: expected"),
        ("a\tb\n\tHund\n", ":2: expected"),
        ("dog\tHund\tnoun\n", ":1: expected"),
        ("dog\tHund\n# x\ndog\tKöter\n", ":3: 'dog' must become 'Köter', but line 1 says 'Hund'; keep one of them"),
        ("# nothing\n", "has no terms"),
        ("", "is empty"),
    ],
)
def test_malformed_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as error:
        Glossary.read(file)
    assert message in str(error.value)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_undecodable_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_bytes(b"dog\tH\xfcnd\n")
    for name in ("bad.tsv", "none.tsv"):
        with pytest.raises(DataError, match=name):
            Glossary.read(tmp_path / name)
