"""Readers yield the same text from every file format."""

from __future__ import annotations

import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.data.corpus_files import content_hash, is_held_out
from heedful.data.corpus_readers import read_documents, read_pairs
from heedful.data.line_reader import read_lines, scan_lines
from heedful.errors import DataError

PAIRS = [("A dog.", "Ein Hund."), ("Two, cats", 'Zwei "Katzen"'), ("naïve ☃", "日本語"), ("end", "Ende")]
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text to a file, compressed by its suffix."""

    def put(name: str, text: str) -> Path:
        path, data = tmp_path / name, text.encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(data))
        return path

    return put


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


FORMATS = {
    "p.tsv": "".join(f"{a}\t{b}\n" for a, b in PAIRS),
    "named.tsv": "id\tTarget\tSource\n" + "".join(f"7\t{b}\t{a}\n" for a, b in PAIRS),
    "p.csv": "".join(f"{quoted(a)},{quoted(b)}\n" for a, b in PAIRS),
    "named.csv": "source,note,target\n" + "".join(f"{quoted(a)},,{quoted(b)}\n" for a, b in PAIRS),
    "p.jsonl": "".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in PAIRS),
    "nested.jsonl": "".join(
        json.dumps({"translation": {"en": a, "de": b} if n % 2 == 0 else {"de": b, "en": a}}, ensure_ascii=False) + "\n"
        for n, (a, b) in enumerate(PAIRS)
    ),
}


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_and_compression_gives_the_same_pairs(name: str, packing: str, write: Write) -> None:
    pairs = list(read_pairs([write(name + packing, FORMATS[name])]))
    assert [(pair.source, pair.target) for pair in pairs] == PAIRS
    header = name.startswith("named")
    assert [pair.line for pair in pairs] == [1 + header, 2 + header, 3 + header, 4 + header]


def test_line_files_are_aligned_and_stripped(write: Write) -> None:
    files = [write("t.en", "one\n  two \nthree"), write("t.de.gz", "eins\n\tzwei\u00a0\ndrei\n")]
    rows = [("one", "eins", files[0], 1), ("two", "zwei", files[0], 2), ("three", "drei", files[0], 3)]
    assert list(read_pairs(files)) == rows


def test_pair_with_a_blank_side_is_dropped_and_counted(write: Write) -> None:
    dropped: Counter[str] = Counter()
    files = [write("t.en", "one\n\nthree\nfour\n"), write("t.de", "eins\nzwei\n \t\nvier\n")]
    assert [pair.line for pair in read_pairs(files, dropped=dropped)] == [1, 4]
    assert dropped == {"blank": 2}


def test_csv_follows_rfc_4180(write: Write) -> None:
    path = write(
        "p.csv", 'source,target\n"one\ntwo, ""three""",eins\nplain,"a,b"\n""""\n'.replace('""""\n', '"""",x\n')
    )
    assert list(read_pairs([path])) == [
        ('one\ntwo, "three"', "eins", path, 2),
        ("plain", "a,b", path, 4),
        ('"', "x", path, 5),
    ]


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff"), max_size=12)


@given(rows=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=12), last=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_crlf_and_byte_order_mark_are_removed(rows: list[tuple[str, str]], last: bool, tmp_path: Path) -> None:
    read = []
    for bom, end in (("", "\n"), ("\ufeff", "\r\n")):
        files = [tmp_path / "a.en", tmp_path / "a.de"]
        for side, file in enumerate(files):
            text = end.join(row[side] for row in rows) + (end if last else "x")
            file.write_bytes((bom + text).encode())
        dropped: Counter[str] = Counter()
        pairs = _or_error(lambda files=files, dropped=dropped: list(read_pairs(files, dropped=dropped)))
        read.append((pairs, dropped, list(read_documents(files[:1]))))
    assert read[0] == read[1]


def _or_error(call: Callable[[], object]) -> object:
    try:
        return call()
    except DataError:
        return "error"


@given(lines=st.lists(TEXT, min_size=1, max_size=30), limit=st.integers(12 * 4, 80))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_do_not_depend_on_the_block_size(lines: list[str], limit: int, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    assert list(scan_lines(path, limit=limit)) == [line + "\n" for line in lines] == list(scan_lines(path))


def test_only_newlines_end_lines(write: Write) -> None:
    text = "a\u2028b\x0bc\x85d\re\n"
    assert list(read_lines(write("a.txt", text + text))) == [(1, text), (2, text)]


def test_documents_keep_every_character_and_end_with_the_file(write: Write) -> None:
    one, two = write("b.txt", " Indented\n\n  text\t\nno newline"), write("a.txt", "second\n")
    assert list(read_documents([one, two])) == [
        (" Indented\n", False), ("\n", False), ("  text\t\n", False), ("no newline", True), ("second\n", True)
    ]  # fmt: skip


def test_records_are_documents(write: Write) -> None:
    jsonl = write("a.jsonl", '{"text": "one\\r\\nline"}\n{"text": " "}\n{"id": 3, "text": "two"}\n')
    csv = write("a.csv", 'id,text\n1,"three\n3"\n')
    dropped: Counter[str] = Counter()
    lines = list(read_documents([jsonl, csv], dropped=dropped))
    assert lines == [("one\nline", True), ("two", True), ("three\n3", True)]
    assert dropped == {"blank": 1}


def test_folder_expands_to_its_text_files_in_order(write: Write) -> None:
    folder = write("c/b.txt.gz", "second\n").parent
    write("c/a.txt", "first\n")
    write("c/sub/d.jsonl", '{"text": "fourth"}\n')
    write("c/c.xz", "third\n")
    write("c/empty.txt", "")
    write("c/picture.png", "no text")
    write("c/.hidden/x.txt", "no text")
    assert [text.strip() for text, _ in read_documents([folder])] == ["first", "second", "third", "fourth"]


def test_concatenated_gzip_and_xz_streams_are_read(tmp_path: Path) -> None:
    for name, pack in (("a.gz", gzip.compress), ("a.xz", lzma.compress)):
        path = tmp_path / name
        path.write_bytes(pack(b"one\ntw") + pack(b"o\n"))
        assert list(read_documents([path])) == [("one\n", False), ("two\n", True)]


def test_held_out_depends_on_the_sentence_alone() -> None:
    sentences = [f"sentence number {number}" for number in range(10_000)]
    out = [sentence for sentence in sentences if is_held_out(sentence, 0.05)]
    assert 0.045 < len(out) / len(sentences) < 0.055
    assert set(out) <= {sentence for sentence in sentences if is_held_out(sentence, 0.1)}
    assert out[:3] == ["sentence number 6", "sentence number 23", "sentence number 39"]  # for ever
    assert not any(is_held_out(sentence, 0.0) for sentence in sentences[:100])


def test_content_hash_depends_on_content_and_order_not_path(write: Write) -> None:
    one, same, other = write("x/1.txt", "a\n"), write("y/2.txt", "a\n"), write("x/3.txt", "b\n")
    assert content_hash([one]) == content_hash([same]) != content_hash([other])
    assert content_hash([one, other]) != content_hash([other, one])
    assert content_hash([one, other]) != content_hash([write("x/4.txt", "a\nb\n")])
    assert content_hash([one]) != content_hash([write("x/1.tsv", "a\n")])
    assert content_hash([one.parent]) == content_hash([one, other, one.parent / "4.txt"])


def test_multi30k_reads_as_29_000_pairs(corpora: Path) -> None:
    pairs = list(read_pairs([corpora / "multi30k/train.en", corpora / "multi30k/train.de"]))
    assert len(pairs) == 29_000
    assert pairs[0].source == "Two young, White males are outside near many bushes."
    assert pairs[-1].line == 29_000


def test_tatoeba_reads_as_pairs(corpora: Path) -> None:
    dropped: Counter[str] = Counter()
    pairs = list(islice(read_pairs([corpora / "tatoeba/eng-deu.tsv.gz"], dropped=dropped), 20_000))
    assert pairs[0][:2] == ("Hi.", "Hallo!")
    assert pairs[-1].line == 20_000
    assert not dropped


def test_shakespeare_round_trips_byte_for_byte(corpora: Path) -> None:
    path = corpora / "tinyshakespeare/input.txt"
    assert "".join(text for text, _ in read_documents([path])).encode() == path.read_bytes()


@pytest.mark.parametrize(
    ("name", "start", "hint"),
    [
        ("a.txt", '{"en": "a", "de": "b"}', "begins like JSON: name it .jsonl"),
        ("a.xml", '<?xml version="1.0"?><tmx version="1.4">', "a translation memory: name it .tmx"),
        ("a.txt", "one; eins", "commas, semicolons or bars separate them, name the file .csv"),
    ],
)
def test_a_single_file_that_is_not_a_table_is_refused_with_a_hint(
    name: str, start: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(start + "\n")
    with pytest.raises(DataError, match=hint):
        next(read_pairs([tmp_path / name]))


def test_ndjson_is_jsonl(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text('{"en": "a", "de": "b"}\n')
    assert [(pair.source, pair.target) for pair in read_pairs([tmp_path / "a.ndjson"])] == [("a", "b")]
