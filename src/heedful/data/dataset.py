"""A prepared dataset: a training and a validation split of encoded examples on disk, with their sizes.

It is written once per tokenizer and files, in blocks, so that memory is bounded however long the text is.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from heedful.data.corpus_readers import content_hash, size_on_disk
from heedful.data.progress import ProgressCallback, StartProgress
from heedful.data.quick_check import DataIssue
from heedful.data.token_store import Sequences, SequencesWriter, create_store, store_path
from heedful.errors import DataError
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

METADATA = "dataset.json"
MAX_SAMPLE_TEXTS = 2000
BLOCK, BLOCK_CHARACTERS = 8192, 1 << 20
"""Texts encoded at a time: enough to keep every core of the tokenizer busy, and never a gigabyte of long lines."""

Example = TypeVar("Example", bound=tuple[Any, ...])


@dataclass(frozen=True)
class Split:
    """The training or validation split: token ids, and the size of their text."""

    sides: tuple[Sequences, ...]
    """Source and target, or running text."""
    examples: int
    words: int
    bytes: int
    """Words and UTF-8 bytes of what is predicted: the target, or the running text."""
    texts: tuple[tuple[str, ...], ...] = ()
    """The first examples as text, for evaluation: source and target; text and labels; or question, passage and
    answers."""
    labels: Sequences | None = None
    """Label indices of each text, if it has labels."""


@dataclass(frozen=True)
class PreparedData:
    """Everything training reads."""

    tokenizers: tuple[Tokenizer, ...]
    """One, or source and target."""
    train: Split
    valid: Split
    dropped: dict[str, int]
    """Number of training examples dropped, by kind of bad line or description."""
    first_lines: dict[str, int]
    """The first line of each description in `dropped` and `truncated`."""
    issues: tuple[DataIssue, ...] = ()
    truncated: dict[str, int] = field(default_factory=dict)
    """Number of examples truncated, by description."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What else a task keeps about its data, such as the names of the labels."""


class SplitWriter:
    """Writes one split, example by example."""

    def __init__(self, folder: Path, name: str, sides: Mapping[str, int]) -> None:
        self.sides = [SequencesWriter(folder, f"{name}.{side}", vocabulary) for side, vocabulary in sides.items()]
        self.size = Counter[str]()
        self.texts: list[tuple[str, ...]] = []

    def write(self, *sequences: list[int]) -> None:
        """Append one sequence to each side."""
        for side, ids in zip(self.sides, sequences, strict=True):
            side.write(ids)
            side.end()

    def count(self, text: str, *sample: str, examples: int = 1) -> None:
        """Add a text's words and bytes to the split's size; keep `sample` if it is among the first examples."""
        self.size["words"] += len(text.split())
        self.size["bytes"] += len(text.encode())
        self.size["examples"] += examples
        if sample and len(self.texts) < MAX_SAMPLE_TEXTS:
            self.texts.append(sample)


class DatasetWriter:
    """Writes both splits and the counts of examples that were dropped or truncated."""

    def __init__(self, folder: Path, sides: Mapping[str, int]) -> None:
        self.folder = folder
        self.splits = {name: SplitWriter(folder, name, sides) for name in ("train", "valid")}
        self.dropped, self.truncated = Counter[str](), Counter[str]()
        self.first_lines: dict[str, int] = {}
        self.metadata: dict[str, Any] = {}

    def write_metadata(self) -> None:
        """Write sizes, counts and metadata; raise DataError if a split is empty."""
        for name, split in self.splits.items():
            if not split.size["bytes"]:
                reasons = ", ".join(f"{count} {reason}" for reason, count in (+self.dropped).items())
                purpose = "train on" if name == "train" else "validate with"
                raise DataError(f"nothing is left to {purpose}: {reasons or 'the files are too small'}")
        sizes = {name: {**split.size, "texts": split.texts} for name, split in self.splits.items()}
        counts = {"dropped": +self.dropped, "first_lines": self.first_lines, "truncated": self.truncated}
        described = json.dumps({**sizes, **counts, "metadata": self.metadata})
        (self.folder / METADATA).write_text(described, encoding="utf-8")


@contextmanager
def new_dataset(
    folder: Path, sides: Mapping[str, int], files: Sequence[Path], start_progress: StartProgress
) -> Iterator[tuple[DatasetWriter, ProgressCallback]]:
    """Open a dataset for writing; `sides` names each side with the size of its vocabulary."""
    with create_store(folder) as temporary, start_progress("encoding", size_on_disk(files)) as progress:
        writer = DatasetWriter(temporary, sides)
        try:
            yield writer, progress
            writer.write_metadata()
        finally:
            for split in writer.splits.values():
                for side in split.sides:
                    side.close()


def open_dataset(
    folder: Path, tokenizers: tuple[Tokenizer, ...], sides: tuple[str, ...], *, labels: str | None = None
) -> PreparedData:
    """Open a dataset written by `new_dataset`; `labels` names the side that holds label indices."""
    described = json.loads((folder / METADATA).read_text(encoding="utf-8"))

    def split(name: str) -> Split:
        size = described.pop(name)
        sequences = tuple(Sequences.open(folder, f"{name}.{side}") for side in sides)
        label_ids = None if labels is None else Sequences.open(folder, f"{name}.{labels}")
        texts = tuple(tuple(example) for example in size["texts"])
        return Split(sequences, max(1, size["examples"]), size["words"], size["bytes"], texts, label_ids)

    return PreparedData(tokenizers, split("train"), split("valid"), **described)


def dataset_folder(files: list[Path], tokenizers: tuple[Tokenizer, ...], **settings: Any) -> Path:
    """Where the dataset of these files is stored: under the hash of everything it depends on."""
    hashes = [hashlib.sha256(tokenizer.to_json().encode()).hexdigest() for tokenizer in tokenizers]
    return store_path({"files": content_hash(files), "tokenizers": hashes, **settings})


def encoding_blocks(
    examples: Iterator[Example], characters: Callable[[Example], int] = lambda example: len(example[0])
) -> Iterator[list[Example]]:
    """Group examples into blocks to encode, of bounded number and length."""
    block: list[Example] = []
    size = 0
    for example in examples:
        block.append(example)
        size += characters(example)
        if len(block) == BLOCK or size >= BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def train_tokenizer(
    texts: Callable[[ProgressCallback], Iterator[str]],
    files: Sequence[Path],
    config: TokenizerConfig,
    sample_share: float,
    start_progress: StartProgress,
) -> Tokenizer:
    """Train a tokenizer on a share of the texts."""
    with start_progress("learning a vocabulary", size_on_disk(files)) as progress:
        return Tokenizer.train(sample_by_hash(texts(progress), sample_share), config)


def sample_by_hash(texts: Iterable[str], share: float) -> Iterator[str]:
    """Yield a share of the texts, chosen by their hash, so that a sorted file is sampled evenly."""
    if share >= 1:
        yield from texts
        return
    limit = int(share * 2**64)
    for text in texts:
        if int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") < limit:
            yield text
