"""Translation memories: languages, inline codes, and files that attack the parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.corpus_doctor import examine
from heedful.data.corpus_readers import read_pairs
from heedful.data.tmx_reader import MAX_TOKEN
from heedful.errors import DataError


def memory(folder: Path, units: str, *, head: str = "", encoding: str = "utf-8", source: str = "en") -> Path:
    file = folder / "a.tmx"
    xml = f'<?xml version="1.0"?>{head}<tmx version="1.4"><header srclang="{source}"/><body>{units}</body></tmx>'
    file.write_bytes(xml.encode(encoding))
    return file


def unit(**segments: str) -> str:
    return "<tu>" + "".join(f'<tuv xml:lang="{k}"><seg>{v}</seg></tuv>' for k, v in segments.items()) + "</tu>\n"


def pairs(file: Path, *columns: str) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs([file], columns=columns)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_source_language_of_the_header_comes_first(encoding: str, tmp_path: Path) -> None:
    file = memory(tmp_path, unit(de="Hä &amp; so", en="Well\n  so") + unit(en="two", de="zwei"), encoding=encoding)
    assert pairs(file) == [("Well so", "Hä & so"), ("two", "zwei")]
    assert pairs(file, "de", "en") == [("Hä & so", "Well so"), ("zwei", "two")]


def test_inline_codes_are_left_out_and_marked_text_stays(tmp_path: Path) -> None:
    segment = 'Press <bpt i="1">&lt;b&gt;</bpt><hi>OK</hi><ept i="1">&lt;/b&gt;</ept> now<ph>{0}</ph>.'
    assert pairs(memory(tmp_path, unit(en=segment, de="Jetzt."))) == [("Press OK now.", "Jetzt.")]


def test_more_than_two_languages_have_to_be_named(tmp_path: Path) -> None:
    units = '<tu><tuv xml:lang="en-US"><seg>a</seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv></tu>' + unit(
        fr="c", de="d"
    )
    file = memory(tmp_path, units)
    with pytest.raises(DataError, match=r"3 languages \(en-us, de, fr\): name source and target"):
        pairs(file)
    assert pairs(file, "en", "de") == [("a", "b")]  # the other unit has no English: blank
    with pytest.raises(DataError, match="has no language 'it'; languages found: en-us, de, fr"):
        pairs(file, "it", "de")


def test_variants_of_one_language_are_that_language(tmp_path: Path) -> None:
    variant = '<tu><tuv xml:lang="en-US"><seg>color</seg></tuv><tuv xml:lang="de"><seg>Farbe</seg></tuv></tu>'
    file = memory(tmp_path, unit(en="colour", de="Farbe") + variant, source="*all*")
    assert pairs(file) == [("colour", "Farbe"), ("color", "Farbe")]


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ('<!DOCTYPE t [<!ENTITY a "b">]><tmx/>', "defines an entity"),
        ('<!DOCTYPE t [<!ENTITY a SYSTEM "/etc/passwd">]><tmx>&a;</tmx>', "defines an entity"),
        ("<tmx><tu></tmx>", "not well-formed XML: mismatched tag"),
        ("<a>" * 200, "nested too deeply"),
        ("<!-- " + "x" * (MAX_TOKEN + 200_000), "a tag or comment is longer than"),
        ("", "is empty"),
        ("just text", "not well-formed XML"),
    ],
)
def test_hostile_and_damaged_files_are_refused_in_one_line(xml: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.tmx"
    file.write_text(xml)
    with pytest.raises(DataError, match=message) as caught:
        pairs(file)
    assert "\n" not in str(caught.value)


def test_document_type_without_entities_is_read(tmp_path: Path) -> None:
    head = '<!DOCTYPE tmx SYSTEM "tmx14.dtd">'
    assert pairs(memory(tmp_path, unit(en="a", de="b"), head=head)) == [("a", "b")]


def test_clean_copy_is_a_table_of_the_same_pairs(tmp_path: Path) -> None:
    file = memory(tmp_path, unit(en="one house", de="ein Haus") * 2 + unit(en="two", de="zwei"))
    report = examine([file], clean_copy=tmp_path / "out")
    assert report.kind == "pairs"
    assert report.lines("duplicate") == (2,)
    assert pairs(tmp_path / "out" / "a.tsv") == [("one house", "ein Haus"), ("two", "zwei")]


def test_prefix_of_a_namespace_changes_nothing_and_other_xml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.tmx"
    segments = '<x:tuv xml:lang="en"><x:seg>a</x:seg></x:tuv><x:tuv xml:lang="de"><x:seg>b</x:seg></x:tuv>'
    file.write_text(f'<x:tmx xmlns:x="urn:x"><x:body><x:tu>{segments}</x:tu></x:body></x:tmx>')
    assert pairs(file) == [("a", "b")]
    file.write_text("<xliff><source>a</source></xliff>")
    with pytest.raises(DataError, match="has no units with a language"):
        pairs(file)
