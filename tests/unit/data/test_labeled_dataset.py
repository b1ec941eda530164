"""Labeled datasets and their batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.data.corpus_files import CorpusFiles
from heedful.data.dataset import PreparedData
from heedful.data.labeled_dataset import ClassBatches, prepare_labeled, train_labeled_tokenizer
from heedful.errors import DataError
from heedful.text.special_token_template import DecoderTemplate, SpecialTokenTemplate, truncated_lengths
from heedful.text.special_tokens import END, SEPARATOR, START
from heedful.text.tokenizer import TokenizerConfig

ROWS = [(f"{'very ' * (n % 17)}{'good' if n % 3 else 'bad'} film {n}", n % 3) for n in range(300)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEEDFUL_CACHE", str(tmp_path / "cache"))


def written(folder: Path, rows: list[tuple[str, int]] = ROWS, name: str = "a.tsv") -> Path:
    file = folder / name
    file.write_text("text\tlabel\n" + "".join(f"{text}\tclass {label}\n" for text, label in rows))
    return file


def prepared(file: Path, max_length: int = 64) -> PreparedData:
    config = TokenizerConfig(kind="byte_bpe", vocabulary=400)
    files = CorpusFiles([file], held_out=0.1)
    return prepare_labeled(files, train_labeled_tokenizer(files, config, 1.0), max_length=max_length)


def batches(data: PreparedData, **changes: object) -> ClassBatches:
    settings = {"multi_label": False, "max_tokens": 512, "seed": 1} | changes
    return ClassBatches(data.train, SpecialTokenTemplate(), 3, **settings)  # type: ignore[arg-type]


def test_stored_examples_are_texts_with_their_labels(tmp_path: Path) -> None:
    data = prepared(written(tmp_path))
    assert data.metadata["names"] == ["class 0", "class 1", "class 2"]
    assert sum(data.metadata["counts"]) == data.train.examples == 300 - data.valid.examples
    assert data.valid.labels is not None
    for index, (text, label) in enumerate(data.valid.texts):
        assert data.tokenizers[0].decode([data.valid.sides[0][index].tolist()]) == [text]
        assert data.metadata["names"][int(data.valid.labels[index][0])] == label
        assert (text, int(label[-1])) in ROWS


def test_an_epoch_has_every_text_once_and_little_padding(tmp_path: Path) -> None:
    data = prepared(written(tmp_path))
    train = batches(data)
    plan = train.plan(3)
    assert sorted(np.concatenate(plan).tolist()) == list(range(data.train.examples))
    made = [train.batch(3, indices) for indices in plan]
    assert sum(int(batch.lengths.sum()) for batch in made) > 0.9 * sum(batch.tokens.numel() for batch in made)
    again = batches(data).plan(3)
    assert all(np.array_equal(first, second) for first, second in zip(plan, again, strict=True))
    assert not all(np.array_equal(first, second) for first, second in zip(plan, train.plan(4), strict=False))


def test_special_tokens_and_segment_ids() -> None:
    assert SpecialTokenTemplate().wrap([7, 8], [9]) == [START, 7, 8, SEPARATOR, 9, SEPARATOR]
    assert SpecialTokenTemplate().segment_ids([7, 8], [9]) == [0, 0, 0, 0, 1, 1]
    assert DecoderTemplate().wrap([7, 8], [9]) == [7, 8, SEPARATOR, 9, END]
    assert DecoderTemplate().segment_ids([7, 8], [9]) == [0, 0, 0, 1, 1]


def test_longer_text_is_truncated_first() -> None:
    assert truncated_lengths([5, 3], 9) == [5, 3]
    assert truncated_lengths([9, 3], 8) == [5, 3]
    assert truncated_lengths([9, 7], 8) == [4, 4]
    assert truncated_lengths([50], 8) == [8]


def test_long_texts_are_truncated_and_counted(tmp_path: Path) -> None:
    data = prepared(written(tmp_path), max_length=16)
    assert max(int(side.lengths.max()) for side in data.train.sides) == 14
    (why,) = data.truncated
    assert why == "texts longer than 16 tokens"
    untruncated = prepared(written(tmp_path), max_length=64)
    too_long = sum(int((split.sides[0].lengths > 14).sum()) for split in (untruncated.train, untruncated.valid))
    assert data.truncated[why] == too_long > 0
    assert untruncated.truncated == {}


def test_only_training_texts_are_counted_as_truncated(tmp_path: Path) -> None:
    file, valid = written(tmp_path, [(text, label) for text, label in ROWS if "very" not in text]), tmp_path / "v.tsv"
    valid.write_text("text\tlabel\n" + f"{'very ' * 40}good film\tclass 1\n")
    tokenizer = prepared(file).tokenizers[0]
    data = prepare_labeled(CorpusFiles([file], [valid]), tokenizer, max_length=32)
    assert int(data.valid.sides[0].lengths[0]) == 30
    assert data.truncated == data.first_lines == {}


def test_single_class_and_unknown_labels_raise_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only one class, 'class 1'"):
        prepared(written(tmp_path, [(text, 1) for text, _ in ROWS]))
    file, other = written(tmp_path), written(tmp_path, [("odd", 9)], name="dev.tsv")
    tokenizer = prepared(file).tokenizers[0]
    with pytest.raises(DataError, match=r"dev\.tsv:2: unknown label 'class 9'; the classes trained on are class 0"):
        prepare_labeled(CorpusFiles([file], [other]), tokenizer, max_length=64)


def test_a_column_of_labels_that_are_all_different_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="300 different labels for 300 texts: is 'label' the column of labels"):
        prepared(written(tmp_path, [(text, n) for n, (text, _) in enumerate(ROWS)]))
    assert (
        len(prepared(written(tmp_path, [(text, n // 2) for n, (text, _) in enumerate(ROWS)])).metadata["names"]) == 150
    )


@pytest.mark.parametrize("texts", [40, 300])
def test_swapped_columns_are_refused(tmp_path: Path, texts: int) -> None:
    file = tmp_path / "a.csv"
    file.write_text("opinion,review\n" + "".join(f"{('bad', 'good')[n % 2]},film {n}\n" for n in range(texts)))
    files = CorpusFiles([file], held_out=0.1, columns=("opinion", "review"))
    tokenizer = train_labeled_tokenizer(files, TokenizerConfig(kind="byte_bpe", vocabulary=400), 1.0)
    with pytest.raises(DataError, match=f"'opinion', read as texts, has only 2 different texts for {texts}") as error:
        prepare_labeled(files, tokenizer, max_length=64)
    assert str(error.value).endswith('columns of texts come first: columns="review,opinion"')


def test_numeric_labels_are_sorted_by_value(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("text\tlabel\n" + "".join(f"text {n}\t{n % 12}\n" for n in range(300)))
    assert prepared(file).metadata["names"] == [str(number) for number in range(12)]


def test_multiple_labels_are_multi_hot(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    rows = [f"text {n}\t{'red|' * (n % 2)}{'blue' * (n % 3 == 0)}\n" for n in range(60)]
    file.write_text("text\tlabels\n" + "".join(rows))
    data = prepared(file)
    assert data.metadata["names"] == ["blue", "red"]
    settings = {"multi_label": True, "max_tokens": 4096, "seed": 1, "shuffle": False}
    train = ClassBatches(data.train, SpecialTokenTemplate(), 2, weights=[3.0, 5.0], **settings)  # type: ignore[arg-type]
    batch = train.batch(0, np.arange(train.labels_per_epoch))
    for row, (text, _) in zip(batch.labels, data.train.texts, strict=True):
        number = int(text.split()[1])
        assert row.tolist() == [int(number % 3 == 0), number % 2]
    assert torch.equal(batch.weights, torch.where(batch.labels == 1, torch.tensor([3.0, 5.0]), 1.0))
