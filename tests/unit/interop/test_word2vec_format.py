"""word2vec files round-trip; damaged ones are refused in one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from heedful.errors import CheckpointError
from heedful.interop.word2vec_format import read_word2vec, write_word2vec

WORDS = ["the", "king", "naïve", "new york"]
TABLE = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)

either = pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])


@pytest.fixture
def vectors_file(tmp_path: Path, binary: bool) -> Path:
    return write_word2vec(tmp_path / "vectors", WORDS, TABLE, binary=binary)


@either
def test_written_file_reads_back(vectors_file: Path, binary: bool) -> None:
    words, table = read_word2vec(vectors_file)
    assert words == ["the", "king", "naïve", "new_york"]
    np.testing.assert_allclose(table, TABLE, rtol=0 if binary else 1e-5)


@either
def test_gzipped_file_is_read_under_any_name(vectors_file: Path) -> None:
    packed = vectors_file.with_name("packed.bin")
    packed.write_bytes(gzip.compress(vectors_file.read_bytes()))
    np.testing.assert_array_equal(read_word2vec(packed)[1], read_word2vec(vectors_file)[1])


def test_binary_rows_without_line_breaks_are_read(tmp_path: Path) -> None:
    file = tmp_path / "google.bin"
    rows = b"".join(word.encode() + b" " + row.tobytes() for word, row in zip(("a", "b"), TABLE, strict=False))
    file.write_bytes(b"2 5\n" + rows)
    words, table = read_word2vec(file)
    assert words == ["a", "b"]
    np.testing.assert_array_equal(table, TABLE[:2])


@either
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_file_is_refused(vectors_file: Path, share: float) -> None:
    data = vectors_file.read_bytes()
    vectors_file.write_bytes(data[: int(share * len(data))])
    with pytest.raises(CheckpointError, match=r"is truncated: it claims 4 words|not a word and 5 numbers"):
        read_word2vec(vectors_file)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "neither a model folder nor a word2vec file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), "neither a model folder nor a word2vec file"),
        (b"hello world\nmore\n", "neither a model folder nor a word2vec file"),
        (b"0 5\n", "not a valid table"),
        (b"3 0\nx\n", "not a valid table"),
        (b"99999999999 300\nthe 1 2", "more than the limit"),
        (b"2 3\na 1 2 3\nb 1 two 3\n", ":3: not a word and 3 numbers"),
        (b"2 3\na 1 2 3\nb 1 2\n", ":3: not a word and 3 numbers"),
        (b"2 3\na 1 2 3\nb 1 nan 3\n", "the vector of 'b' contains a non-finite number"),
        (b"9 3\n" + bytes(9000), "no word ends within"),
        (b"1000000 1000\na 1 2 3\n", "is truncated"),
    ],
)
def test_invalid_word2vec_file_is_refused_in_one_line(tmp_path: Path, data: bytes, words: str) -> None:
    file = tmp_path / "bad"
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=words) as refused:
        read_word2vec(file)
    assert "\n" not in str(refused.value)


def test_damaged_gzip_and_missing_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.gz"
    file.write_bytes(gzip.compress(b"4 5\n" + b"a 1 2 3 4 5\n" * 4)[:-12])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_word2vec(file)
    with pytest.raises(CheckpointError, match="does not exist"):
        read_word2vec(tmp_path / "gone")
