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

from heedful.data.batching import Bucketed, Indices
from heedful.data.collate import pad_sequences
from heedful.data.corpus_readers import is_held_out, size_on_disk
from heedful.data.dataset_preparation import learn_tokenizer
from heedful.data.dataset_writer import (
    KEPT_TEXTS,
    Part,
    Prepared,
    Split,
    blocks,
    finish,
    named_store,
    new_parts,
    opened,
)
from heedful.data.labelled_reader import Labelled, columns_of, read_labelled
from heedful.data.line_reader import OnBadLine, Watch
from heedful.data.stage_progress import Stages, unseen
from heedful.data.table_reader import LIST
from heedful.data.token_store import Sequences, is_whole, new_store
from heedful.errors import DataError
from heedful.shapes import Float, Int
from heedful.text.special_token_template import Frame, room, shortened
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

MOST_CLASSES = 10_000
"""More different labels than this, and the column is something else."""


@dataclass(frozen=True)
class Rows:
    """Texts framed for a model, padded at the end."""

    tokens: Int[Tensor, "batch tokens"]
    lengths: Int[Tensor, " batch"]
    segments: Int[Tensor, "batch tokens"]
    """Which of two texts a token belongs to."""


@dataclass(frozen=True)
class ClassBatch(Rows):
    """Texts and what they are called."""

    nothing: ClassVar[int] = -1

    labels: Tensor
    """The number of the class; or, where a text may have several labels, 1 for each it has and 0 for the others."""
    weights: Float[Tensor, "batch ..."]
    """How much each text counts; or, where a text may have several labels, how much each label or its absence does."""

    @property
    def padding(self) -> tuple[int, int]:
        """(padding, all) tokens."""
        return self.tokens.numel() - int(self.lengths.sum()), self.tokens.numel()


Row = tuple[list[int], list[int]]
"""Ids, and which of two texts each belongs to."""


def framed(frame: Frame, texts: Sequence[Any]) -> Row:
    """A text, or two, as a model reads them."""
    return frame.around(*texts), frame.segments(*texts)


def padded(rows: Sequence[Row]) -> Rows:
    """Framed rows as tensors."""
    tokens, lengths = pad_sequences([ids for ids, _ in rows])
    return Rows(tokens, lengths, pad_sequences([segments for _, segments in rows])[0])


class ClassBatches(Bucketed):
    """Labelled texts of like length together."""

    unit = "examples"

    def __init__(
        self,
        split: Split,
        frame: Frame,
        classes: int,
        *,
        several: bool,
        tokens: int,
        seed: int,
        shuffle: bool = True,
        weights: Sequence[float] | None = None,
    ) -> None:
        assert split.labels is not None, "labelled texts have labels"
        self.texts, self.called, self.frame = split.sides, split.labels, frame
        self.classes, self.several = classes, several
        self.weights = np.ones(classes) if weights is None else np.asarray(weights)
        whole = np.sum([side.lengths for side in self.texts], axis=0) + len(frame.around(*([],) * len(self.texts)))
        super().__init__(whole[None], tokens=tokens, seed=seed, shuffle=shuffle)

    @property
    def labels(self) -> int:
        """Examples in an epoch."""
        return len(self.called)

    def batch(self, epoch: int, indices: Indices) -> ClassBatch:
        numbers = indices.tolist()
        rows = padded([framed(self.frame, [side[number].tolist() for side in self.texts]) for number in numbers])
        called = [self.called[number].astype(np.int64) for number in numbers]
        if self.several:
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


def learn_from_labelled(
    files: Sequence[Path],
    config: TokenizerConfig,
    *,
    share: float,
    held_out: float,
    columns: Sequence[str] = (),
    on_bad_line: OnBadLine = "fail",
    stages: Stages = unseen,
) -> Tokenizer:
    """One tokenizer for all texts. What is held out is not read: a vocabulary must not know it."""

    def texts(watch: Watch) -> Iterator[str]:
        for row in read_labelled(files, columns=columns, on_bad_line=on_bad_line, watch=watch):
            if not is_held_out("\t".join(row.texts), held_out):
                yield from row.texts

    return learn_tokenizer(texts, files, config, share, stages)


def prepare_labelled(
    train: Sequence[Path],
    valid: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    held_out: float,
    max_length: int,
    columns: Sequence[str] = (),
    on_bad_line: OnBadLine = "fail",
    stages: Stages = unseen,
) -> Prepared:
    """Stores of encoded texts and their labels. Without validation files, a share of the texts is held out by hash.

    A text that has no room within `max_length` tokens is cut off, and counted.
    """
    found = columns_of(train, columns)[0]
    sides = tuple(f"text{number}" for number, _ in enumerate(found.texts, 1))
    cuts = {"split": [len(train), held_out], "max_length": max_length, "columns": list(columns)}
    folder = named_store([*train, *valid], (tokenizer,), kind="labelled", **cuts)

    def part(row: Labelled) -> str:
        return "valid" if not valid and is_held_out("\t".join(row.texts), held_out) else "train"

    if not is_whole(folder):
        dropped: Counter[str] = Counter()
        reading: dict[str, Any] = {"columns": columns, "on_bad_line": on_bad_line}
        names = count_labels(read_labelled(train, **reading))
        with (
            new_store(folder) as aside,
            new_parts(aside, {**dict.fromkeys(sides, len(tokenizer)), "labels": len(names)}) as parts,
            stages("encoding", size_on_disk([*train, *valid])) as watch,
        ):
            writer = _Writer(tokenizer, {name: place for place, name in enumerate(names)}, room(max_length, len(sides)))
            writer.write(read_labelled(train, dropped=dropped, watch=watch, **reading), lambda row: parts[part(row)])
            if valid:
                writer.write(read_labelled(valid, watch=watch, **reading), lambda _: parts["valid"])
            why = f"longer than {max_length} tokens"
            cut = {why: writer.cut} if writer.cut else {}
            facts = {
                "names": list(names),
                "counts": [writer.given[id(parts["train"])][name] for name in names],
                "several": found.several,
                "columns": str(found),
                "max_length": max_length,
            }
            finish(aside, parts, +dropped, {why: writer.first_cut}, cut=cut, facts=facts)
    return opened(folder, (tokenizer,), sides, labels="labels")


def count_labels(rows: Iterator[Labelled]) -> dict[str, int]:
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

    def write(self, rows: Iterator[Labelled], part_of: Any) -> None:
        for block in blocks(rows, lambda row: sum(map(len, row.texts))):
            columns = [self.tokenizer.encode(list(texts)) for texts in zip(*(row.texts for row in block), strict=True)]
            for row, *texts in zip(block, *columns, strict=True):
                self._write(row, texts, part_of(row))

    def _write(self, row: Labelled, texts: list[list[int]], part: Part) -> None:
        kept = shortened([len(ids) for ids in texts], self.room)
        if kept != [len(ids) for ids in texts]:
            self.cut += 1
            self.first_cut = self.first_cut or row.line
        part.measure(" ".join(row.texts))
        part.size["examples"] += 1
        if len(part.texts) < KEPT_TEXTS:
            part.texts.append(("\t".join(row.texts), LIST.join(row.labels)))
        self.given.setdefault(id(part), Counter()).update(row.labels)
        *sides, labels = part.sides
        for side, ids, length in zip(sides, texts, kept, strict=True):
            side.write(ids[:length])
            side.end()
        labels.write([numbered(self.numbers, name, row) for name in row.labels])
        labels.end()


def numbered(numbers: dict[str, int], name: str, row: Labelled) -> int:
    """The number of a label, which a model must know."""
    if name not in numbers:
        known = ", ".join(list(numbers)[:10]) + (" …" if len(numbers) > 10 else "")
        raise DataError(f"{row.path}:{row.line}: unknown label {name!r}; the classes trained on are {known}")
    return numbers[name]


def encode_labelled(
    rows: Sequence[Labelled], tokenizer: Tokenizer, names: Sequence[str], max_length: int
) -> tuple[Split, int]:
    """Labelled texts in memory, for scoring; and how many of them were cut off."""
    numbers = {name: place for place, name in enumerate(names)}
    columns = [tokenizer.encode(list(texts)) for texts in zip(*(row.texts for row in rows), strict=True)]
    cut = 0
    for place in range(len(rows)):
        kept = shortened([len(column[place]) for column in columns], room(max_length, len(columns)))
        cut += any(length < len(column[place]) for column, length in zip(columns, kept, strict=True))
        for column, length in zip(columns, kept, strict=True):
            column[place] = column[place][:length]
    called = Sequences.of([[numbered(numbers, name, row) for name in row.labels] for row in rows])
    texts = tuple(("\t".join(row.texts), LIST.join(row.labels)) for row in rows)
    words = sum(len(text.split()) for text, _ in texts)
    split = Split(tuple(map(Sequences.of, columns)), len(rows), words, sum(len(t.encode()) for t, _ in texts), texts)
    return replace(split, labels=called), cut
