"""Prepared datasets: the same text gives the same token ids, whatever its line ends and size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heedful.data.corpus_files import CorpusFiles, is_held_out, sample_by_hash
from heedful.data.dataset import PreparedData
from heedful.data.pair_dataset import prepare_pairs
from heedful.data.text_dataset import prepare_text
from heedful.errors import DataError
from heedful.text.special_tokens import END
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

LINES = [f"the {number} cats sat on mat {number * 7 % 13}" for number in range(300)]
BYTES = Tokenizer.train(LINES, TokenizerConfig(kind="byte_bpe", vocabulary=300))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))


def pair_files(folder: Path, *, end: str = "\n", mark: str = "") -> list[Path]:
    folder.mkdir(exist_ok=True)
    files = [folder / "a.en", folder / "a.de"]
    files[0].write_bytes((mark + end.join(LINES) + end).encode())
    files[1].write_bytes((mark + end.join(line.upper() for line in LINES) + end).encode())
    return files


def pairs(files: list[Path], held_out: float = 0.1, max_length: int = 100) -> PreparedData:
    return prepare_pairs(CorpusFiles(files, held_out=held_out), (BYTES,), max_length=max_length)


def ids(prepared: PreparedData) -> list[list[int]]:
    return [[*side.ids.tolist(), *side.starts.tolist()] for side in (*prepared.train.sides, *prepared.valid.sides)]


def test_line_ends_and_byte_order_marks_do_not_change_token_ids(tmp_path: Path) -> None:
    plain = pairs(pair_files(tmp_path / "lf"))
    assert ids(pairs(pair_files(tmp_path / "crlf", end="\r\n"))) == ids(plain)
    assert ids(pairs(pair_files(tmp_path / "bom", mark="\ufeff"))) == ids(plain)


def test_stored_token_ids_decode_to_the_text(tmp_path: Path) -> None:
    prepared = pairs(pair_files(tmp_path / "x"))
    source, target = prepared.train.sides
    texts = BYTES.decode([source[i].tolist() for i in range(len(source))])
    assert texts == [line for line in LINES if not is_held_out(line, 0.1)]
    assert BYTES.decode([target[0].tolist()])[0] == texts[0].upper()
    assert prepared.valid.texts[0][0] in LINES


def test_no_source_is_in_both_splits(tmp_path: Path) -> None:
    files = pair_files(tmp_path / "x")
    for file in files:
        file.write_bytes(file.read_bytes() * 3)
    prepared = pairs(files, held_out=0.3)
    sides = [
        set(BYTES.decode([split.sides[0][i].tolist() for i in range(len(split.sides[0]))]))
        for split in (prepared.train, prepared.valid)
    ]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]


def test_stored_dataset_is_reused(tmp_path: Path) -> None:
    files = pair_files(tmp_path / "x")
    first = pairs(files)
    stores = list((tmp_path / "cache" / "stores").iterdir())
    again = pairs(files)
    assert ids(first) == ids(again)
    assert list((tmp_path / "cache" / "stores").iterdir()) == stores
    assert len(stores) == 1
    pairs(files, max_length=99)
    assert len(list((tmp_path / "cache" / "stores").iterdir())) == 2, "other limits, other store"


def test_pairs_that_are_too_long_are_dropped_and_counted(tmp_path: Path) -> None:
    files = pair_files(tmp_path / "x")
    for file in files:
        file.write_text(file.read_text() + "x " * 500 + "\n")
    prepared = pairs(files)
    assert prepared.dropped == {"pairs longer than 100 tokens": 1}
    assert prepared.train.examples + prepared.valid.examples == 300


def test_empty_split_raises_with_its_reason_and_leaves_no_store(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="300 pairs longer than 2 tokens"):
        pairs(pair_files(tmp_path / "x"), max_length=2)
    assert not list((tmp_path / "cache" / "stores").iterdir())


def test_last_part_of_running_text_is_held_out(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("\n".join(LINES) + "\n")
    prepared = prepare_text(CorpusFiles([book], held_out=0.25), BYTES, characters=sum(map(len, LINES)) + len(LINES))
    train, valid = (BYTES.decode([split.sides[0].ids.tolist()])[0] for split in (prepared.train, prepared.valid))
    assert train + valid == book.read_text()
    assert len(valid) / len(train + valid) == pytest.approx(0.25, abs=0.01)
    assert prepared.valid.size.bytes == len(valid.encode())
    assert prepared.valid.sides[0].ids[-1] == END


def test_each_file_is_a_document(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"{name} cat\n" * 5)
    files = CorpusFiles([tmp_path / "a.txt", tmp_path / "b.txt"], [tmp_path / "c.txt"])
    prepared = prepare_text(files, BYTES, characters=60)
    assert len(prepared.train.sides[0]) == prepared.train.examples == 2
    assert prepared.train.sides[0][0][-1] == END


def test_sample_by_hash_covers_a_sorted_file() -> None:
    texts = [f"line {number:05d}" for number in range(10_000)]
    chosen = [int(text.split()[1]) for text in sample_by_hash(texts, 0.1)]
    assert 900 < len(chosen) < 1100
    assert np.histogram(chosen, bins=10, range=(0, 10_000))[0].min() > 60


MEASURE = """
import resource, sys
from pathlib import Path
from heedful.data.corpus_files import CorpusFiles
from heedful.data.text_dataset import prepare_text
from heedful.text.tokenizer import Tokenizer
tokenizer = Tokenizer.load(sys.argv[2])
file = Path(sys.argv[1])
prepared = prepare_text(CorpusFiles([file], held_out=0.02), tokenizer, characters=file.stat().st_size)
print(len(prepared.train.sides[0].ids), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_corpus(fork_server: Any, tmp_path: Path) -> None:
    BYTES.save(tmp_path / "tokenizer.json")
    peaks, tokens = [], []
    for size in (1, 12):
        file = tmp_path / f"{size}.txt"
        with file.open("w") as lines:
            for _ in range(size):
                lines.write("".join(f"{line}, and then some more of it to fill the line\n" for line in LINES) * 45)
        output = fork_server.run_script(MEASURE, file, tmp_path / "tokenizer.json", folder=tmp_path).output.split()
        tokens.append(int(output[0]))
        peaks.append(int(output[1]) / 1024)
    assert tokens[1] > 11 * tokens[0]
    assert peaks[1] - peaks[0] < 40, f"12 times the text took {peaks[1] - peaks[0]:.0f} MiB more"
