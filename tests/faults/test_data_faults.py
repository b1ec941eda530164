"""Bad data: each is one clear line with exit code 3, in bounded memory, or is skipped and counted."""

from __future__ import annotations

import gzip
import lzma
import os
import subprocess
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from heedful.data.corpus_doctor import examine
from heedful.data.corpus_files import content_hash
from heedful.data.corpus_readers import read_documents, read_pairs
from heedful.data.line_reader import MAX_LINE, read_lines
from heedful.errors import DataError


def refused(files: Sequence[Path], *, documents: bool = False) -> str:
    """The one line a reader stops with."""
    with pytest.raises(DataError) as caught:
        list(read_documents(files) if documents else read_pairs(files))
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    return str(caught.value)


def file(tmp_path: Path, name: str, data: bytes) -> Path:
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
@pytest.mark.parametrize(
    ("kind", "bad", "message"),
    [
        ("utf-8", b"caf\xe9 noir", "byte offset 9: 0xe9 is not UTF-8"),
        ("utf-8", b"caf\xc3", "byte offset 9: 0xc3 is not UTF-8"),
        ("utf-8", b"caf\xed\xa0\x80", "byte offset 9: 0xed is not UTF-8"),  # half a surrogate pair
        ("nul", b"caf\0e", "byte offset 9: a NUL byte"),
        ("overlong", b"x" * (MAX_LINE + 1), "byte offset 6: the line is longer than 1,000,000 bytes"),
    ],
)
def test_bad_line_raises_with_its_location_or_is_skipped_and_counted(
    kind: str, bad: bytes, message: str, packing: str, tmp_path: Path
) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[packing]
    source = file(tmp_path, "a.en" + packing, pack(b"\xc3\xa9\xc3\xa9\r\n" + bad + b"\nlast\n"))
    target = file(tmp_path, "a.de", b"one\ntwo\nthree\n")
    assert refused([source, target]).startswith(f"{source}:2: {message}")
    assert refused([source], documents=True).startswith(f"{source}:2: {message}")
    dropped: Counter[str] = Counter()
    pairs = list(read_pairs([source, target], on_bad_line="skip", dropped=dropped))
    assert [(pair.source, pair.target) for pair in pairs] == [("éé", "one"), ("last", "three")]  # still side by side
    assert dropped == {kind: 1}
    assert list(read_documents([source], on_bad_line="skip")) == [("éé\n", False), ("last\n", True)]
    assert list(read_lines(source, on_bad_line="skip")) == [(1, "éé\n"), (3, "last\n")]


def test_document_ending_in_a_bad_line_still_ends(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", b"good\n\xff\n")
    assert list(read_documents([path, path], on_bad_line="skip")) == [("good\n", True)] * 2


def test_line_of_exactly_the_limit_is_accepted(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", b"x" * MAX_LINE + b"\n" + b"y" * MAX_LINE)
    assert [len(text) for text, _ in read_documents([path])] == [MAX_LINE + 1, MAX_LINE]


@pytest.mark.parametrize(("source_lines", "target_lines"), [(3, 5), (5, 3), (1, 2)])
def test_misaligned_files_report_both_line_counts(source_lines: int, target_lines: int, tmp_path: Path) -> None:
    files = [file(tmp_path, "a.en", b"x\n" * source_lines), file(tmp_path, "a.de", b"y\n" * target_lines)]
    message = f"{files[0]} has {source_lines} lines but {files[1]} has {target_lines}: they must pair line by line"
    assert refused(files).startswith(message)
    with pytest.raises(DataError, match="must pair"):
        list(read_pairs(files, on_bad_line="skip"))


def test_bad_line_beyond_the_shorter_file_is_counted(tmp_path: Path) -> None:
    files = [file(tmp_path, "a.en", b"x\n\xff\n\xff\nx\n"), file(tmp_path, "a.de", b"y\n")]
    assert "has 4 lines but" in refused(files)


def test_files_without_usable_rows_raise(tmp_path: Path) -> None:
    empty, mark = file(tmp_path, "empty.txt", b""), file(tmp_path, "mark.txt", b"\xef\xbb\xbf")
    assert refused([empty, empty]) == f"{empty} is empty"
    assert refused([empty], documents=True) == f"{empty} is empty"
    assert refused([mark], documents=True) == f"{mark} is empty"
    packed = file(tmp_path, "a.gz", gzip.compress(b""))
    assert refused([packed], documents=True) == f"{packed} is empty"
    blank = file(tmp_path, "blank.tsv", b"a\t\n \tb\n")
    assert refused([blank]) == f"no usable pair in {blank} (left out: 2 blank)"
    header = file(tmp_path, "header.csv", b"source,target\n")
    assert refused([header]) == f"no usable pair in {header}"


def test_missing_files_and_folders_raise(tmp_path: Path) -> None:
    text, gone = file(tmp_path, "a.txt", b"a\n"), tmp_path / "gone.en"
    assert refused([gone, text]) == f"{gone}: no such file"
    assert refused([tmp_path, text]) == f"{tmp_path} is a folder: a file is needed here"
    (tmp_path / "none").mkdir()
    assert refused([tmp_path / "none"], documents=True).startswith(
        f"{tmp_path / 'none'} is a folder without text files"
    )
    with pytest.raises(DataError, match="cannot be read"):
        content_hash([gone])
    table, records = file(tmp_path, "b.tsv", b"a\tb\n"), file(tmp_path, "b.json", b"[]")
    for files in ([], [text], [text] * 3, [text, table], [records]):
        assert refused(files).startswith("pairs come as two line-aligned text files, or with both sides in one .tsv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_raises(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", b"a\n")
    path.chmod(0)
    assert refused([path], documents=True) == f"{path} cannot be read: Permission denied"


def test_binary_files_are_named_by_format(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.docx", "w") as archive:
        archive.writestr("word.xml", "text" * 100)
    cases = {
        "a.docx": (None, "a zip archive or office document"),
        "a.txt": (gzip.compress(b"text\n"), "gzip data: name it .gz"),
        "b.txt": ("text\n".encode("utf-16"), "UTF-16"),
        "c.txt": (b"%PDF-1.4\n\x01\x02", "a PDF"),
        "d.txt": (bytes(range(256)) * 40, "looks like a binary file"),
        "e.txt": (("no mark\n" * 9).encode("utf-16-le"), "perhaps UTF-16"),
        "f.gz": (gzip.compress(bytes(10_000)), "looks like a binary file"),
    }
    for name, (data, message) in cases.items():
        path = tmp_path / name if data is None else file(tmp_path, name, data)
        assert message in refused([path], documents=True)
        with pytest.raises(DataError, match="text"):
            list(read_documents([path], on_bad_line="skip"))


def test_damaged_archives_raise(tmp_path: Path) -> None:
    for suffix, packed in ((".gz", gzip.compress(b"text\n" * 9999)), (".xz", lzma.compress(b"text\n" * 9999))):
        for name, data in {
            "cut": packed[:-12],
            "plain": b"just text\n",
            "flipped": packed[:-9] + b"\xff" + packed[-8:],
        }.items():
            path = file(tmp_path, name + suffix, data)
            assert refused([path], documents=True).startswith(f"{path} is not a valid {suffix} file")


def test_missing_columns_list_those_found(tmp_path: Path) -> None:
    cases = {
        "a.tsv": (b"label\tcontent\textra\n0\ta\tb\n", "columns found: 'label', 'content', 'extra'"),
        "b.csv": (b"id,source,remarks\n1,a,b\n", "columns found: 'id', 'source', 'remarks'"),
        "c.jsonl": (b'{"en": "a", "remarks": "b", "id": "c"}\n', "columns found: 'en', 'remarks', 'id'"),
        "d.jsonl": (b'{"translation": {"en": "a", "de": "b", "fr": "c"}}\n', "'translation.en', 'translation.de'"),
    }
    for name, (data, message) in cases.items():
        assert message in refused([file(tmp_path, name, data)])
    texts = file(tmp_path, "e.csv", b"id,prose\n1,x\n2,y\n")
    assert refused([texts], documents=True).startswith(f"{texts} has no column 'text'; columns found: 'id', 'prose'")


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("a.tsv", b"three\tcolumns\there", "3 columns instead of 2"),
        ("a.tsv", b"one", "1 column instead of 2"),
        ("a.csv", b'"closed"badly,x', "not valid CSV"),
        ("a.csv", b"a,b,c", "3 columns instead of 2"),
        ("a.jsonl", b"{broken", "not JSON"),
        ("a.jsonl", b"[" * 100_000, "not JSON"),
        ("a.jsonl", b'["list"]', "not a JSON object"),
        ("a.jsonl", b'{"source": "only"}', "'target' is missing"),
        ("a.jsonl", b'{"source": "a", "target": 7}', "'target' is not a string"),
        ("a.jsonl", b'{"source": "a\\u0000", "target": "b"}', "'source' contains a NUL"),
        ("a.jsonl", b'{"source": "\\ud800", "target": "b"}', "'source' contains half a surrogate pair"),
    ],
)
def test_malformed_row_raises_with_its_line_or_is_skipped(name: str, row: bytes, message: str, tmp_path: Path) -> None:
    good = b'{"source": "a", "target": "b"}' if "json" in name else b"a,b" if "csv" in name else b"a\tb"
    path = file(tmp_path, name, b"\n".join([good, row, good, b""]))
    assert refused([path]).startswith(f"{path}:2: {message}")
    dropped: Counter[str] = Counter()
    assert [pair.line for pair in read_pairs([path], on_bad_line="skip", dropped=dropped)] == [1, 3]
    assert dropped == {"malformed": 1}


def test_unclosed_quote_raises(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", b'a,b\n"open,b\n' + b"c,d\n" * 10)
    assert refused([path]) == f"{path}:2: a quote is never closed"
    assert [pair.line for pair in read_pairs([path], on_bad_line="skip")] == [1]
    path = file(tmp_path, "b.csv", b'a,b\n"open,b\n' + b"c,d\n" * (MAX_LINE // 4 + 5))
    kept = [pair.line for pair in read_pairs([path], on_bad_line="skip")]
    assert kept[0] == 1
    assert len(kept) in range(2, 12)  # it stops looking for the end of the row after as much text as a line may hold


READ = """
import resource, sys
from collections import Counter
from heedful.data.corpus_readers import DataError, read_documents
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
dropped = Counter()
try:
    characters = sum(len(text) for text, _ in read_documents(sys.argv[2:], on_bad_line=sys.argv[1], dropped=dropped))
    print(characters, dict(dropped))
except DataError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def read_in_process(path: Path, on_bad_line: str) -> tuple[str, int]:
    """The output of reading in a separate process, and the increase of its peak memory in MiB."""
    command = [sys.executable, "-c", READ, on_bad_line, str(path)]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    output, megabytes = process.stdout.splitlines()
    return output, int(megabytes)


@pytest.mark.parametrize("kind", ["100 MB line", "gz bomb", "xz bomb"])
def test_memory_is_bounded_for_hostile_files(kind: str, tmp_path: Path) -> None:
    """One line of 100 MB; one of 1 GiB packed into 1 MB, refused at once; one of 128 MiB, skipped to its end."""
    good, packing = b"good\n", {"gz bomb": gzip.compress, "xz bomb": lzma.compress}
    if pack := packing.get(kind):
        some = pack(b"x" * 2**26)
        short, path = (
            file(tmp_path, f"{times}.{kind[:2]}", pack(good) + some * times + pack(b"\n" + good)) for times in (2, 16)
        )
    else:
        short = path = file(tmp_path, "a.txt", good + b"x" * 100_000_000 + b"\n" + good)
    output, megabytes = read_in_process(path, "fail")
    assert output.startswith(f"{path}:2: byte offset 5: the line is longer than 1,000,000 bytes")
    assert megabytes < 24
    output, megabytes = read_in_process(short, "skip")
    assert output == "10 {'overlong': 1}"
    assert megabytes < 24


def test_xz_memory_limit(tmp_path: Path) -> None:
    data = bytearray(lzma.compress(b"text\n"))
    header = slice(12, 12 + 4 * (data[12] + 1) - 4)
    assert data[14] == 0x21  # the LZMA2 filter, whose one property is the size of the dictionary
    data[16] = 40
    data[header.stop : header.stop + 4] = zlib.crc32(data[header]).to_bytes(4, "little")
    path = file(tmp_path, "a.xz", bytes(data))
    assert "is not a valid .xz file: Memory usage limit exceeded" in refused([path], documents=True)


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.csv", "a.jsonl", "a.tmx", "a.json"])
def test_pipes_are_refused_at_once_because_text_is_read_more_than_once(name: str, tmp_path: Path) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    for read in (
        lambda: refused([pipe, pipe] if name == "a.txt" else [pipe]),
        lambda: refused([pipe], documents=True),
    ):
        assert "is a pipe or a device" in read() or name == "a.json"
    with pytest.raises(DataError):
        examine([pipe])
