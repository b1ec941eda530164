"""A prepared dataset: a training and a validation split of encoded examples on disk, with their sizes.

It is written once per tokenizer and files, in blocks, so that memory is bounded however long the text is.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from heedful.data.corpus_files import CorpusFiles, content_hash, sample_by_hash, size_on_disk
from heedful.data.corpus_readers import ReadOptions, in_blocks
from heedful.data.even_sample import EvenSample
from heedful.data.progress import ProgressCallback
from heedful.data.quick_check import DataIssue
from heedful.data.text_size import TextCounter, TextSize
from heedful.data.token_store import Sequences, SequencesWriter, create_store, is_intact, store_path
from heedful.data.training_text import TrainingText
from heedful.errors import DataError
from heedful.syntax import argument, settings_argument
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

METADATA = "dataset.json"
LABELS = "labels"
"""The side that holds label indices."""
MAX_SAMPLE_TEXTS = 2000
PIECE_TOKENS = 256
BLOCK, BLOCK_CHARACTERS = 8192, 1 << 20
"""Texts encoded at a time: enough to keep every core of the tokenizer busy, and never a gigabyte of long lines."""

Example = TypeVar("Example", bound=tuple[Any, ...])
Read = Callable[..., Iterator[Example]]
"""Yields the usable examples of files, as `read_pairs` does; takes `ReadOptions`."""


@dataclass(frozen=True)
class Split:
    """The training or validation split: token ids, and the size of their text."""

    sides: tuple[Sequences, ...]
    """Source and target, or running text."""
    examples: int
    size: TextSize
    """Size of the predicted text: the target, or the running text."""
    texts: tuple[tuple[str, ...], ...] = ()
    """Examples from all over the split as text, for evaluation: source and target; text and labels; or question,
    passage and answers."""
    labels: Sequences | None = None
    """Label indices of each text, if it has labels."""

    @property
    def scored_texts(self) -> int:
        """Number of texts that scores are computed on; running text counts in pieces of `PIECE_TOKENS`."""
        if self.labels is not None:
            return len(self.labels)
        return len(self.texts) or -(-len(self.sides[0].ids) // PIECE_TOKENS)


@dataclass(frozen=True)
class PreparedData:
    """The encoded splits, tokenizers and counts that training reads."""

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
    """Number of training examples truncated, by description."""
    text: TrainingText = field(default_factory=TrainingText)
    """The record of the training text that is stored with the model."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further metadata of the task, such as the names of the labels."""


class SplitWriter:
    """Writes one split, example by example."""

    def __init__(self, folder: Path, name: str, sides: Mapping[str, int]) -> None:
        self.sides = [SequencesWriter(folder, f"{name}.{side}", vocabulary) for side, vocabulary in sides.items()]
        self.examples, self.counter = 0, TextCounter()
        self.texts = EvenSample[tuple[str, ...]](MAX_SAMPLE_TEXTS)

    def write(self, *sequences: list[int]) -> None:
        """Append one sequence to each side."""
        for side, ids in zip(self.sides, sequences, strict=True):
            side.write(ids)
            side.end()

    def count(self, text: str, *sample: str, examples: int = 1) -> None:
        """Add a text to the split's size, and `sample` to the stream that the split's texts are drawn from."""
        self.counter.add(text)
        self.examples += examples
        if sample:
            self.texts.add(sample)

    def to_json(self) -> dict[str, Any]:
        return {"examples": self.examples, "size": self.counter.size, "texts": self.texts.items}


class DatasetWriter:
    """Writes both splits, and counts the training examples that were dropped or truncated."""

    def __init__(self, folder: Path, sides: Mapping[str, int], files: CorpusFiles, progress: ProgressCallback) -> None:
        self.folder, self.files, self.progress = folder, files, progress
        self.splits = {name: SplitWriter(folder, name, sides) for name in ("train", "valid")}
        self.dropped, self.truncated = Counter[str](), Counter[str]()
        self.first_lines: dict[str, int] = {}
        self.metadata: dict[str, Any] = {}
        self._reads_training_files = True

    def blocks(
        self,
        read: Read[Example],
        is_held_out: Callable[[Example], bool],
        characters: Callable[[Example], int] = lambda example: len(example[0]),
    ) -> Iterator[list[tuple[Example, SplitWriter]]]:
        """Yield the examples of all files, each with its split, in blocks to encode; validation files come last."""
        files, train, valid = self.files, self.splits["train"], self.splits["valid"]
        options = ReadOptions(on_bad_line=files.on_bad_line, progress=self.progress)
        for block in in_blocks(read(files.train, dropped=self.dropped, **options), characters, BLOCK, BLOCK_CHARACTERS):
            yield [(example, valid if is_held_out(example) else train) for example in block]
        self._reads_training_files = False
        if files.valid:
            for block in in_blocks(read(files.valid, **options), characters, BLOCK, BLOCK_CHARACTERS):
                yield [(example, valid) for example in block]

    def count_issue(self, issues: Counter[str], description: str, line: int) -> None:
        """Count an example as dropped or truncated, if it is of a training file."""
        if self._reads_training_files:
            issues[description] += 1
            self.first_lines.setdefault(description, line)

    def write_metadata(self) -> None:
        """Write sizes, counts and metadata; raise DataError if a split is empty."""
        for name, split in self.splits.items():
            if not split.counter.size.bytes:
                reasons = ", ".join(f"{count} {reason}" for reason, count in (+self.dropped).items())
                if name == "train":
                    raise DataError(f"nothing is left to train on: {reasons or 'the files are too small'}")
                hint = (
                    f"name a file ({argument('valid')}) or hold out more ({settings_argument({'data.held_out': 0.2})})"
                )
                raise DataError(f"nothing is left to validate with: {reasons or 'the files are too small'}; {hint}")
        sizes = {name: split.to_json() for name, split in self.splits.items()}
        counts = {"dropped": +self.dropped, "first_lines": self.first_lines, "truncated": self.truncated}
        described = json.dumps({**sizes, **counts, "metadata": self.metadata})
        (self.folder / METADATA).write_text(described, encoding="utf-8")

    def close(self) -> None:
        for split in self.splits.values():
            for side in split.sides:
                side.close()


def prepare_dataset(
    files: CorpusFiles,
    tokenizers: tuple[Tokenizer, ...],
    sides: Mapping[str, int],
    write: Callable[[DatasetWriter], None],
    **settings: Any,
) -> PreparedData:
    """Open the dataset of these files; `write` encodes them first, unless that was done before.

    `sides` names each side with the size of its vocabulary. The dataset is stored under the hash of everything it
    depends on: files, tokenizers and `settings`.
    """
    hashes = [hashlib.sha256(tokenizer.to_json().encode()).hexdigest() for tokenizer in tokenizers]
    key = {"files": content_hash(files.all), "split": [len(files.train), files.held_out], "tokenizers": hashes}
    folder = store_path({**key, **settings})
    if not is_intact(folder):
        with create_store(folder) as temporary, files.start_progress("encoding", size_on_disk(files.all)) as progress:
            writer = DatasetWriter(temporary, sides, files, progress)
            try:
                write(writer)
                writer.write_metadata()
            finally:
                writer.close()
    described = json.loads((folder / METADATA).read_text(encoding="utf-8"))

    def split(name: str) -> Split:
        content = described.pop(name)
        opened = {side: Sequences.open(folder, f"{name}.{side}") for side in sides}
        labels, texts = opened.pop(LABELS, None), tuple(tuple(example) for example in content["texts"])
        size = TextSize(*content["size"])
        return Split(tuple(opened.values()), max(1, content["examples"]), size, texts, labels)

    return PreparedData(tokenizers, split("train"), split("valid"), **described)


def train_tokenizer(
    files: CorpusFiles,
    config: TokenizerConfig,
    sample_share: float,
    read: Read[Example],
    texts: Callable[[Iterator[Example]], Iterator[str]],
) -> Tokenizer:
    """Train a tokenizer on a share of the `texts` of the training files' examples."""
    with files.start_progress("learning a vocabulary", size_on_disk(files.train)) as progress:
        examples = read(files.train, on_bad_line=files.on_bad_line, progress=progress)
        return Tokenizer.train(sample_by_hash(texts(examples), sample_share), config)
