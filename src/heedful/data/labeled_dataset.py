"""Labeled texts for classification: tokenizer, dataset and batches (T5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import BucketedBatches, Indices
from heedful.data.collate import pad_sequences
from heedful.data.corpus_files import CorpusFiles
from heedful.data.dataset import LABELS, DatasetWriter, PreparedData, Split, prepare_dataset, train_tokenizer
from heedful.data.labeled_reader import LabeledColumns, LabeledText, find_all_columns, read_labeled
from heedful.data.table_reader import LIST_SEPARATOR
from heedful.data.text_size import TextSize
from heedful.data.token_store import Sequences
from heedful.errors import DataError
from heedful.quantities import count
from heedful.shapes import Float, Int
from heedful.syntax import argument
from heedful.text.special_token_template import SpecialTokenTemplate, max_text_tokens, truncated_lengths
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

MAX_CLASSES = 10_000
"""A column with more distinct labels is not accepted as labels."""
MANY_LABELS = 50
"""More distinct labels than this must have two texts each, on average, to be accepted as labels."""


@dataclass(frozen=True)
class EncodedBatch:
    """Texts with special tokens, padded at the end."""

    tokens: Int[Tensor, "batch tokens"]
    lengths: Int[Tensor, " batch"]
    segments: Int[Tensor, "batch tokens"]
    """Index (0 or 1) of the text that each token belongs to."""


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
    """Labeled texts of similar length in batches of at most `max_tokens`; `weights` are those of the classes."""

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
        assert split.labels is not None, "labeled texts have labels"
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


def train_labeled_tokenizer(files: CorpusFiles, config: TokenizerConfig, sample_share: float) -> Tokenizer:
    """Train one tokenizer for all texts, without the held-out ones."""

    def texts(rows: Iterator[LabeledText]) -> Iterator[str]:
        for row in rows:
            if not files.holds_out("\t".join(row.texts)):
                yield from row.texts

    return train_tokenizer(files, config, sample_share, partial(read_labeled, columns=files.columns), texts)


def prepare_labeled(files: CorpusFiles, tokenizer: Tokenizer, *, max_length: int) -> PreparedData:
    """Encode texts and their labels, or open them if they are stored. Longer texts are truncated to `max_length`.

    Without validation files, texts are held out by hash.
    """
    table = find_all_columns(files.train, files.columns)[0]
    read = partial(read_labeled, columns=files.columns)
    too_long = f"texts longer than {max_length} tokens"

    def write(writer: DatasetWriter) -> None:
        names = list(label_counts(read(files.train, on_bad_line=files.on_bad_line), table))
        indices, train_counts = {name: index for index, name in enumerate(names)}, Counter[str]()
        blocks = writer.blocks(
            read, lambda row: files.holds_out("\t".join(row.texts)), lambda row: sum(map(len, row.texts))
        )
        for block in blocks:
            encoded = _encode_texts([row for row, _ in block], tokenizer, max_length)
            for (row, split), (texts, was_truncated) in zip(block, encoded, strict=True):
                if was_truncated:
                    writer.count_issue(writer.truncated, too_long, row.line)
                if split is writer.splits["train"]:
                    train_counts.update(row.labels)
                split.count(" ".join(row.texts), *_sample(row))
                split.write(*texts, encode_labels(indices, row))
        writer.metadata = {
            "names": names,
            "counts": [train_counts[name] for name in names],
            "multi_label": table.multi_label,
            "columns": str(table),
            "max_length": max_length,
        }

    sides = {f"text{number}": len(tokenizer) for number, _ in enumerate(table.texts, 1)} | {LABELS: MAX_CLASSES}
    settings = {"kind": "labeled", "max_length": max_length, "columns": list(files.columns)}
    return prepare_dataset(files, (tokenizer,), sides, write, **settings)


def label_counts(rows: Iterator[LabeledText], table: LabeledColumns) -> dict[str, int]:
    """Count each label, in sorted order, numbers by value; raise DataError unless they can be the classes of texts."""
    counts, examples = Counter[str](), 0
    texts: set[tuple[str, ...]] = set()  # different ones, of which few are kept
    for row in rows:
        counts.update(row.labels)
        examples += 1
        if len(texts) < MAX_CLASSES:
            texts.add(row.texts)
        if len(counts) > MAX_CLASSES:
            _refuse_swapped(table, len(texts), len(counts))
            raise DataError(
                f"{row.path}:{row.line}: more than {MAX_CLASSES:,} different labels; is this the right column?"
            )
    if len(counts) < 2:
        raise DataError(f"only one class, {next(iter(counts), '')!r}: a classifier needs texts of at least two classes")
    _refuse_swapped(table, len(texts), len(counts))
    if not table.multi_label and len(counts) > max(MANY_LABELS, examples / 2):
        raise DataError(
            f"{len(counts):,} different labels for {count(examples, 'text')}: is {table.label!r} the column of labels?"
        )
    return {name: counts[name] for name in sorted(counts, key=_sort_key)}


def _refuse_swapped(table: LabeledColumns, texts: int, labels: int) -> None:
    """Raise DataError if there are two different labels or more for each different text: the columns are swapped."""
    if table.multi_label or labels < 2 * texts:
        return
    names, are = " and ".join(map(repr, table.texts)), "has" if len(table.texts) == 1 else "have"
    swapped = f": {argument('columns', f'{table.label},{table.texts[0]}')}" if len(table.texts) == 1 else ""
    raise DataError(
        f"{names}, read as texts, {are} only {count(texts, 'different text')} for {labels:,} different labels; "
        f"columns of texts come first{swapped}"
    )


def _sort_key(name: str) -> tuple[int, float, str]:
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


def _sample(row: LabeledText) -> tuple[str, str]:
    return "\t".join(row.texts), LIST_SEPARATOR.join(row.labels)


def _encode_texts(
    rows: Sequence[LabeledText], tokenizer: Tokenizer, max_length: int
) -> Iterator[tuple[list[list[int]], bool]]:
    """Yield the token ids of each row's texts, and whether they were truncated."""
    columns = [tokenizer.encode(list(texts)) for texts in zip(*(row.texts for row in rows), strict=True)]
    limit = max_text_tokens(max_length, len(columns))
    for texts in zip(*columns, strict=True):
        lengths = [len(ids) for ids in texts]
        kept = truncated_lengths(lengths, limit)
        yield [ids[:length] for ids, length in zip(texts, kept, strict=True)], kept != lengths


def encode_labels(indices: Mapping[str, int], row: LabeledText) -> list[int]:
    """The indices of a row's labels; raise DataError if the model does not know one."""
    for name in row.labels:
        if name not in indices:
            known = ", ".join(list(indices)[:10]) + (" …" if len(indices) > 10 else "")
            raise DataError(f"{row.path}:{row.line}: unknown label {name!r}; the classes trained on are {known}")
    return [indices[name] for name in row.labels]


def encode_labeled(
    rows: Sequence[LabeledText], tokenizer: Tokenizer, names: Sequence[str], max_length: int
) -> tuple[Split, int]:
    """Encode labeled texts in memory, for evaluation; also return how many were truncated."""
    indices = {name: index for index, name in enumerate(names)}
    encoded, truncated = zip(*_encode_texts(rows, tokenizer, max_length), strict=True)
    sides = tuple(Sequences.from_lists(list(column)) for column in zip(*encoded, strict=True))
    texts = tuple(map(_sample, rows))
    size = TextSize.measure(text for text, _ in texts)
    labels = Sequences.from_lists([encode_labels(indices, row) for row in rows])
    return Split(sides, len(rows), size, texts, labels), sum(truncated)
