"""Texts with labels, from files to stores to batches: what a classifier learns from (T5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import BucketedBatches, Indices
from heedful.data.collate import pad_sequences
from heedful.data.corpus_readers import is_held_out, size_on_disk
from heedful.data.dataset_preparation import train_tokenizer
from heedful.data.dataset_writer import (
    MAX_SAMPLE_TEXTS,
    SplitWriter,
    PreparedData,
    Split,
    encoding_blocks,
    write_metadata,
    dataset_folder,
    split_writers,
    open_dataset,
)
from heedful.data.labelled_reader import LabelledText, find_all_columns, read_labelled
from heedful.data.line_reader import OnBadLine
from heedful.data.progress import ProgressCallback, StartProgress, no_progress
from heedful.data.table_reader import LIST_SEPARATOR
from heedful.data.token_store import Sequences, is_intact, create_store
from heedful.errors import DataError
from heedful.shapes import Float, Int
from heedful.text.special_token_template import SpecialTokenTemplate, max_text_tokens, truncated_lengths
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

MOST_CLASSES = 10_000
"""More different labels than this, and the column is something else."""


@dataclass(frozen=True)
class EncodedBatch:
    """Texts framed for a model, padded at the end."""

    tokens: Int[Tensor, "batch tokens"]
    lengths: Int[Tensor, " batch"]
    segments: Int[Tensor, "batch tokens"]
    """Which of two texts a token belongs to."""


@dataclass(frozen=True)
class ClassBatch(EncodedBatch):
    """Texts and what they are called."""

    ignore_index: ClassVar[int] = -1

    labels: Tensor
    """The number of the class; or, where a text may have several labels, 1 for each it has and 0 for the others."""
    weights: Float[Tensor, "batch ..."]
    """How much each text counts; or, where a text may have several labels, how much each label or its absence does."""

    @property
    def padding(self) -> tuple[int, int]:
        """(padding, all) tokens."""
        return self.tokens.numel() - int(self.lengths.sum()), self.tokens.numel()


EncodedText = tuple[list[int], list[int]]
"""Ids, and which of two texts each belongs to."""


def encode_example(frame: SpecialTokenTemplate, texts: Sequence[Any]) -> EncodedText:
    """A text, or two, as a model reads them."""
    return frame.wrap(*texts), frame.segment_ids(*texts)


def collate_texts(rows: Sequence[EncodedText]) -> EncodedBatch:
    """Framed rows as tensors."""
    tokens, lengths = pad_sequences([ids for ids, _ in rows])
    return EncodedBatch(tokens, lengths, pad_sequences([segments for _, segments in rows])[0])


class ClassBatches(BucketedBatches):
    """Labelled texts of like length together."""

    unit = "examples"

    def __init__(
        self,
        split: Split,
        frame: SpecialTokenTemplate,
        classes: int,
        *,
        multi_label: bool,
        max_tokens: int,
        seed: int,
        shuffle: bool = True,
        weights: Sequence[float] | None = None,
    ) -> None:
        assert split.labels is not None, "labelled texts have labels"
        self.texts, self.label_ids, self.frame = split.sides, split.labels, frame
        self.classes, self.multi_label = classes, multi_label
        self.weights = np.ones(classes) if weights is None else np.asarray(weights)
        whole = np.sum([side.lengths for side in self.texts], axis=0) + len(frame.wrap(*([],) * len(self.texts)))
        super().__init__(whole[None], max_tokens=max_tokens, seed=seed, shuffle=shuffle)

    @property
    def labels_per_epoch(self) -> int:
        """Examples in an epoch."""
        return len(self.label_ids)

    def batch(self, epoch: int, indices: Indices) -> ClassBatch:
        numbers = indices.tolist()
        rows = collate_texts([encode_example(self.frame, [side[number].tolist() for side in self.texts]) for number in numbers])
        called = [self.label_ids[number].astype(np.int64) for number in numbers]
        if self.multi_label:
            labels = np.zeros((len(called), self.classes), np.int64)
            for row, names in zip(labels, called, strict=True):
                row[names] = 1
            weights = np.where(labels == 1, self.weights, 1.0)
        else:
            labels = np.concatenate(called)
            weights = self.weights[labels]
        return ClassBatch(
            rows.tokens, rows.lengths, rows.segments, torch.from_numpy(labels), torch.from_numpy(weights).float()
        )


def train_labelled_tokenizer(
    files: Sequence[Path],
    config: TokenizerConfig,
    *,
    sample_share: float,
    held_out: float,
    columns: Sequence[str] = (),
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> Tokenizer:
    """One tokenizer for all texts. What is held out is not read: a vocabulary must not know it."""

    def texts(progress: ProgressCallback) -> Iterator[str]:
        for row in read_labelled(files, columns=columns, on_bad_line=on_bad_line, progress=progress):
            if not is_held_out("\t".join(row.texts), held_out):
                yield from row.texts

    return train_tokenizer(texts, files, config, sample_share, start_progress)


def prepare_labelled(
    train: Sequence[Path],
    valid: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    held_out: float,
    max_length: int,
    columns: Sequence[str] = (),
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> PreparedData:
    """Stores of encoded texts and their labels. Without validation files, a share of the texts is held out by hash.

    A text that has no room within `max_length` tokens is cut off, and counted.
    """
    found = find_all_columns(train, columns)[0]
    sides = tuple(f"text{number}" for number, _ in enumerate(found.texts, 1))
    cuts = {"split": [len(train), held_out], "max_length": max_length, "columns": list(columns)}
    folder = dataset_folder([*train, *valid], (tokenizer,), kind="labelled", **cuts)

    def part(row: LabelledText) -> str:
        return "valid" if not valid and is_held_out("\t".join(row.texts), held_out) else "train"

    if not is_intact(folder):
        dropped: Counter[str] = Counter()
        reading: dict[str, Any] = {"columns": columns, "on_bad_line": on_bad_line}
        names = count_labels(read_labelled(train, **reading))
        with (
            create_store(folder) as aside,
            split_writers(aside, {**dict.fromkeys(sides, len(tokenizer)), "labels": len(names)}) as parts,
            start_progress("encoding", size_on_disk([*train, *valid])) as progress,
        ):
            writer = _Writer(tokenizer, {name: place for place, name in enumerate(names)}, max_text_tokens(max_length, len(sides)))
            writer.write(read_labelled(train, dropped=dropped, progress=progress, **reading), lambda row: parts[part(row)])
            if valid:
                writer.write(read_labelled(valid, progress=progress, **reading), lambda _: parts["valid"])
            why = f"longer than {max_length} tokens"
            cut = {why: writer.cut} if writer.cut else {}
            facts = {
                "names": list(names),
                "counts": [writer.given[id(parts["train"])][name] for name in names],
                "several": found.multi_label,
                "columns": str(found),
                "max_length": max_length,
            }
            write_metadata(aside, parts, +dropped, {why: writer.first_cut}, cut=cut, facts=facts)
    return open_dataset(folder, (tokenizer,), sides, labels="labels")


def count_labels(rows: Iterator[LabelledText]) -> dict[str, int]:
    """The labels in order, numbers as numbers, and how often each was given; one class alone is an error."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update(row.labels)
        if len(found) > MOST_CLASSES:
            raise DataError(
                f"{row.path}:{row.line}: more than {MOST_CLASSES:,} different labels; is this the right column?"
            )
    if len(found) < 2:
        only = next(iter(found), "")
        raise DataError(f"there is one class only, {only!r}: a classifier needs texts of at least two")
    return {name: found[name] for name in sorted(found, key=_order)}


def _order(name: str) -> tuple[int, float, str]:
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


class _Writer:
    """Encodes rows into parts, and keeps account of what was cut off."""

    def __init__(self, tokenizer: Tokenizer, numbers: dict[str, int], room: int) -> None:
        self.tokenizer, self.numbers, self.room = tokenizer, numbers, room
        self.cut = self.first_cut = 0
        self.given: dict[int, Counter[str]] = {}
        """How often each label was given, by part."""

    def write(self, rows: Iterator[LabelledText], part_of: Any) -> None:
        for block in encoding_blocks(rows, lambda row: sum(map(len, row.texts))):
            columns = [self.tokenizer.encode(list(texts)) for texts in zip(*(row.texts for row in block), strict=True)]
            for row, *texts in zip(block, *columns, strict=True):
                self._write(row, texts, part_of(row))

    def _write(self, row: LabelledText, texts: list[list[int]], part: SplitWriter) -> None:
        kept = truncated_lengths([len(ids) for ids in texts], self.room)
        if kept != [len(ids) for ids in texts]:
            self.cut += 1
            self.first_cut = self.first_cut or row.line
        part.measure(" ".join(row.texts))
        part.size["examples"] += 1
        if len(part.texts) < MAX_SAMPLE_TEXTS:
            part.texts.append(("\t".join(row.texts), LIST_SEPARATOR.join(row.labels)))
        self.given.setdefault(id(part), Counter()).update(row.labels)
        *sides, labels = part.sides
        for side, ids, length in zip(sides, texts, kept, strict=True):
            side.write(ids[:length])
            side.end()
        labels.write([label_index(self.numbers, name, row) for name in row.labels])
        labels.end()


def label_index(numbers: dict[str, int], name: str, row: LabelledText) -> int:
    """The number of a label, which a model must know."""
    if name not in numbers:
        known = ", ".join(list(numbers)[:10]) + (" …" if len(numbers) > 10 else "")
        raise DataError(f"{row.path}:{row.line}: unknown label {name!r}; the classes trained on are {known}")
    return numbers[name]


def encode_labelled(
    rows: Sequence[LabelledText], tokenizer: Tokenizer, names: Sequence[str], max_length: int
) -> tuple[Split, int]:
    """Labelled texts in memory, for scoring; and how many of them were cut off."""
    numbers = {name: place for place, name in enumerate(names)}
    columns = [tokenizer.encode(list(texts)) for texts in zip(*(row.texts for row in rows), strict=True)]
    cut = 0
    for place in range(len(rows)):
        kept = truncated_lengths([len(column[place]) for column in columns], max_text_tokens(max_length, len(columns)))
        cut += any(length < len(column[place]) for column, length in zip(columns, kept, strict=True))
        for column, length in zip(columns, kept, strict=True):
            column[place] = column[place][:length]
    called = Sequences.from_lists([[label_index(numbers, name, row) for name in row.labels] for row in rows])
    texts = tuple(("\t".join(row.texts), LIST_SEPARATOR.join(row.labels)) for row in rows)
    words = sum(len(text.split()) for text, _ in texts)
    split = Split(tuple(map(Sequences.from_lists, columns)), len(rows), words, sum(len(t.encode()) for t, _ in texts), texts)
    return replace(split, labels=called), cut
