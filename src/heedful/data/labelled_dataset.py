"""Labelled texts for classification: tokenizer, dataset and batches (T5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import BucketedBatches, Indices
from heedful.data.collate import pad_sequences
from heedful.data.corpus_readers import is_held_out
from heedful.data.dataset import (
    DatasetWriter,
    PreparedData,
    Split,
    SplitWriter,
    dataset_folder,
    encoding_blocks,
    new_dataset,
    open_dataset,
    train_tokenizer,
)
from heedful.data.labelled_reader import LabelledText, find_all_columns, read_labelled
from heedful.data.line_reader import OnBadLine
from heedful.data.progress import ProgressCallback, StartProgress, no_progress
from heedful.data.table_reader import LIST_SEPARATOR
from heedful.data.token_store import Sequences, is_intact
from heedful.errors import DataError
from heedful.shapes import Float, Int
from heedful.text.special_token_template import SpecialTokenTemplate, max_text_tokens, truncated_lengths
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

MAX_CLASSES = 10_000
"""A column with more different labels is taken for something else."""


@dataclass(frozen=True)
class EncodedBatch:
    """Texts with special tokens, padded at the end."""

    tokens: Int[Tensor, "batch tokens"]
    lengths: Int[Tensor, " batch"]
    segments: Int[Tensor, "batch tokens"]
    """Which of two texts a token belongs to."""


@dataclass(frozen=True)
class ClassBatch(EncodedBatch):
    """Texts and their labels."""

    ignore_index: ClassVar[int] = -1

    labels: Tensor
    """The class of each text; with several labels per text, 0 or 1 for each class."""
    weights: Float[Tensor, "batch ..."]
    """The weight of each text in the loss; with several labels per text, of each class."""


EncodedText = tuple[list[int], list[int]]
"""Token ids with special tokens, and segment ids."""


def encode_example(template: SpecialTokenTemplate, texts: Sequence[Any]) -> EncodedText:
    """Add special tokens and segment ids to the token ids of one text, or two."""
    return template.wrap(*texts), template.segment_ids(*texts)


def collate_texts(rows: Sequence[EncodedText]) -> EncodedBatch:
    """Pad encoded texts to tensors."""
    tokens, lengths = pad_sequences([ids for ids, _ in rows])
    return EncodedBatch(tokens, lengths, pad_sequences([segments for _, segments in rows])[0])


class ClassBatches(BucketedBatches):
    """Labelled texts of similar length in batches of at most `max_tokens`; `weights` are those of the classes."""

    unit = "examples"

    def __init__(
        self,
        split: Split,
        template: SpecialTokenTemplate,
        classes: int,
        *,
        multi_label: bool,
        max_tokens: int,
        seed: int,
        shuffle: bool = True,
        weights: Sequence[float] | None = None,
    ) -> None:
        assert split.labels is not None, "labelled texts have labels"
        self.texts, self.label_ids, self.template = split.sides, split.labels, template
        self.classes, self.multi_label = classes, multi_label
        self.weights = np.ones(classes) if weights is None else np.asarray(weights)
        lengths = np.sum([side.lengths for side in self.texts], axis=0) + len(template.wrap(*([],) * len(self.texts)))
        super().__init__(lengths[None], max_tokens=max_tokens, seed=seed, shuffle=shuffle)

    @property
    def labels_per_epoch(self) -> int:
        """Examples in an epoch."""
        return len(self.label_ids)

    def batch(self, epoch: int, indices: Indices) -> ClassBatch:
        chosen = indices.tolist()
        texts = collate_texts(
            [encode_example(self.template, [side[i].tolist() for side in self.texts]) for i in chosen]
        )
        label_ids = [self.label_ids[i].astype(np.int64) for i in chosen]
        if self.multi_label:
            labels = np.zeros((len(chosen), self.classes), np.int64)
            for row, ids in zip(labels, label_ids, strict=True):
                row[ids] = 1
            weights = np.where(labels == 1, self.weights, 1.0)
        else:
            labels = np.concatenate(label_ids)
            weights = self.weights[labels]
        labels_and_weights = torch.from_numpy(labels), torch.from_numpy(weights).float()
        return ClassBatch(texts.tokens, texts.lengths, texts.segments, *labels_and_weights)


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
    """Train one tokenizer for all texts, without the held-out ones."""

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
    """Encode texts and their labels, or open them if they are stored. Longer texts are truncated to `max_length`.

    Without validation files, texts are held out by hash.
    """
    files = [*train, *valid]
    table = find_all_columns(train, columns)[0]
    sides = tuple(f"text{number}" for number, _ in enumerate(table.texts, 1))
    settings = {"split": [len(train), held_out], "max_length": max_length, "columns": list(columns)}
    folder = dataset_folder(files, (tokenizer,), kind="labelled", **settings)
    if not is_intact(folder):
        reading: dict[str, Any] = {"columns": columns, "on_bad_line": on_bad_line}
        names = list(label_counts(read_labelled(train, **reading)))
        vocabularies = {**dict.fromkeys(sides, len(tokenizer)), "labels": len(names)}
        with new_dataset(folder, vocabularies, files, start_progress) as (writer, progress):

            def split_of(row: LabelledText) -> SplitWriter:
                is_valid = not valid and is_held_out("\t".join(row.texts), held_out)
                return writer.splits["valid" if is_valid else "train"]

            encoder = _LabelledEncoder(writer, tokenizer, names, max_length)
            encoder.write(read_labelled(train, dropped=writer.dropped, progress=progress, **reading), split_of)
            if valid:
                encoder.write(read_labelled(valid, progress=progress, **reading), lambda _: writer.splits["valid"])
            writer.metadata = {
                "names": names,
                "counts": [encoder.train_counts[name] for name in names],
                "multi_label": table.multi_label,
                "columns": str(table),
                "max_length": max_length,
            }
    return open_dataset(folder, (tokenizer,), sides, labels="labels")


def label_counts(rows: Iterator[LabelledText]) -> dict[str, int]:
    """Count each label, in sorted order, numbers by value; raise DataError if there are fewer than two."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.labels)
        if len(counts) > MAX_CLASSES:
            raise DataError(
                f"{row.path}:{row.line}: more than {MAX_CLASSES:,} different labels; is this the right column?"
            )
    if len(counts) < 2:
        raise DataError(f"only one class, {next(iter(counts), '')!r}: a classifier needs texts of at least two classes")
    return {name: counts[name] for name in sorted(counts, key=_sort_key)}


def _sort_key(name: str) -> tuple[int, float, str]:
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


class _LabelledEncoder:
    """Encodes rows into splits, and counts the truncated ones."""

    def __init__(self, writer: DatasetWriter, tokenizer: Tokenizer, names: Sequence[str], max_length: int) -> None:
        self.writer, self.tokenizer, self.max_length = writer, tokenizer, max_length
        self.indices = {name: index for index, name in enumerate(names)}
        self.train_counts: Counter[str] = Counter()

    def write(self, rows: Iterator[LabelledText], split_of: Callable[[LabelledText], SplitWriter]) -> None:
        for block in encoding_blocks(rows, lambda row: sum(map(len, row.texts))):
            for row, texts, was_truncated in _encode_texts(block, self.tokenizer, self.max_length):
                split = split_of(row)
                if was_truncated:
                    reason = f"texts longer than {self.max_length} tokens"
                    self.writer.truncated[reason] += 1
                    self.writer.first_lines.setdefault(reason, row.line)
                if split is self.writer.splits["train"]:
                    self.train_counts.update(row.labels)
                split.count(" ".join(row.texts), "\t".join(row.texts), LIST_SEPARATOR.join(row.labels))
                split.write(*texts, [label_index(self.indices, name, row) for name in row.labels])


def _encode_texts(
    rows: Sequence[LabelledText], tokenizer: Tokenizer, max_length: int
) -> Iterator[tuple[LabelledText, list[list[int]], bool]]:
    """Yield each row with the token ids of its texts and whether they were truncated."""
    columns = [tokenizer.encode(list(texts)) for texts in zip(*(row.texts for row in rows), strict=True)]
    limit = max_text_tokens(max_length, len(columns))
    for row, *texts in zip(rows, *columns, strict=True):
        lengths = [len(ids) for ids in texts]
        kept = truncated_lengths(lengths, limit)
        yield row, [ids[:length] for ids, length in zip(texts, kept, strict=True)], kept != lengths


def label_index(indices: dict[str, int], name: str, row: LabelledText) -> int:
    """The index of a label; raise DataError if the model does not know it."""
    if name not in indices:
        known = ", ".join(list(indices)[:10]) + (" …" if len(indices) > 10 else "")
        raise DataError(f"{row.path}:{row.line}: unknown label {name!r}; the classes trained on are {known}")
    return indices[name]


def encode_labelled(
    rows: Sequence[LabelledText], tokenizer: Tokenizer, names: Sequence[str], max_length: int
) -> tuple[Split, int]:
    """Encode labelled texts in memory, for evaluation; also return how many were truncated."""
    indices = {name: index for index, name in enumerate(names)}
    encoded = list(_encode_texts(rows, tokenizer, max_length))
    sides = tuple(
        Sequences.from_lists(list(column)) for column in zip(*(texts for _, texts, _ in encoded), strict=True)
    )
    texts = tuple(("\t".join(row.texts), LIST_SEPARATOR.join(row.labels)) for row in rows)
    words, size = sum(len(text.split()) for text, _ in texts), sum(len(text.encode()) for text, _ in texts)
    labels = Sequences.from_lists([[label_index(indices, name, row) for name in row.labels] for row in rows])
    truncated = sum(was_truncated for _, _, was_truncated in encoded)
    return Split(sides, len(rows), words, size, texts, labels), truncated
