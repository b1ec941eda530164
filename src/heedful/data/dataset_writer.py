"""What training reads, on its way to the disk and back: a training and a validation part, each of several stores."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from heedful.data.corpus_readers import content_hash
from heedful.data.quick_check import DataIssue
from heedful.data.token_store import Sequences, SequencesWriter, store_path
from heedful.errors import DataError
from heedful.text.tokenizer import Tokenizer

MAX_SAMPLE_TEXTS = 2000
BLOCK, BLOCK_CHARACTERS = 8192, 1 << 20
"""Texts encoded at a time: enough to keep every core of the tokenizer busy, and never a gigabyte of long lines."""

Example = TypeVar("Example", bound=tuple[Any, ...])


@dataclass(frozen=True)
class Split:
    """One part of the data: its ids, and what they measure in text."""

    sides: tuple[Sequences, ...]
    """Source and target, or running text."""
    examples: int
    words: int
    bytes: int
    """Words and UTF-8 bytes of what is predicted: the target, or the running text."""
    texts: tuple[tuple[str, ...], ...] = ()
    """The first pairs as text, for scoring what a model writes; or the first texts with their labels; or the first
    questions, each with its passage and its answers."""
    labels: Sequences | None = None
    """What the texts are called, by number; where they have labels."""


@dataclass(frozen=True)
class PreparedData:
    """All that training reads."""

    tokenizers: tuple[Tokenizer, ...]
    """One, or source and target."""
    train: Split
    valid: Split
    dropped: dict[str, int]
    """Examples left out, by kind of fault or in words."""
    first_dropped_lines: dict[str, int]
    """For those told in words, the line of the first."""
    issues: tuple[DataIssue, ...] = ()
    truncated: dict[str, int] = field(default_factory=dict)
    """Examples of which only a part is read, by why; the line of the first of them is in `first_dropped`."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What else a task found out about its data: the names of labels, say."""


@contextmanager
def split_writers(folder: Path, sides: Mapping[str, int]) -> Iterator[dict[str, SplitWriter]]:
    """Both parts, to be written; each side is named with the number of different ids it may hold."""
    parts = {name: SplitWriter(folder, name, sides) for name in ("train", "valid")}
    try:
        yield parts
    finally:
        for part in parts.values():
            for side in part.sides:
                side.close()


class SplitWriter:
    """A part being written."""

    def __init__(self, folder: Path, name: str, sides: Mapping[str, int]) -> None:
        self.sides = [SequencesWriter(folder, f"{name}.{side}", most) for side, most in sides.items()]
        self.size = Counter[str]()
        self.texts: list[tuple[str, ...]] = []

    def measure(self, text: str) -> None:
        self.size["words"] += len(text.split())
        self.size["bytes"] += len(text.encode())


def encoding_blocks(
    examples: Iterator[Example], characters: Callable[[Example], int] = lambda example: len(example[0])
) -> Iterator[list[Example]]:
    """Examples by the thousand, or by the megabyte where they are long."""
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


def write_metadata(
    folder: Path,
    parts: dict[str, SplitWriter],
    dropped: Mapping[str, int],
    first: Mapping[str, int],
    *,
    cut: Mapping[str, int] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write down what the parts measure, and what a task found out; an empty part is an error that says why."""
    for name, part in parts.items():
        if not part.size["bytes"]:
            why = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "the files are too small"
            raise DataError(f"nothing is left to {'train on' if name == 'train' else 'validate with'}: {why}")
    sizes = {name: {**part.size, "texts": part.texts} for name, part in parts.items()}
    described = {**sizes, "dropped": dict(dropped), "first_dropped": first, "cut": cut or {}, "facts": facts or {}}
    (folder / "sizes.json").write_text(json.dumps(described), encoding="utf-8")


def open_dataset(
    folder: Path, tokenizers: tuple[Tokenizer, ...], sides: tuple[str, ...], *, labels: str | None = None
) -> PreparedData:
    """All that was written there; `labels` is the side that holds them."""
    sizes = json.loads((folder / "sizes.json").read_text(encoding="utf-8"))

    def split(name: str) -> Split:
        size = sizes[name]
        stored = tuple(Sequences.open(folder, f"{name}.{side}") for side in sides)
        called = None if labels is None else Sequences.open(folder, f"{name}.{labels}")
        texts = tuple(tuple(example) for example in size["texts"])
        return Split(stored, size.get("examples", 1), size["words"], size["bytes"], texts, called)

    told = {name: sizes[name] for name in ("dropped", "first_dropped", "cut", "facts")}
    return PreparedData(tokenizers, split("train"), split("valid"), **told)


def dataset_folder(files: list[Path], tokenizers: tuple[Tokenizer, ...], **settings: Any) -> Path:
    """Where the store of these files lives: under the hash of all that it depends on."""
    learned = [hashlib.sha256(tokenizer.to_json().encode()).hexdigest() for tokenizer in tokenizers]
    return store_path({"files": content_hash(files), "tokenizers": learned, **settings})
