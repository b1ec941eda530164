"""From files to stores: sample, learn a tokenizer, encode once. Memory stays flat however long the text is."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from heedful.data.corpus_readers import Pair, is_held_out, read_documents, read_pairs, size_on_disk
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
from heedful.data.line_reader import OnBadLine
from heedful.data.sentence_documents import encode_sentences, read_sentences
from heedful.data.progress import ProgressCallback, StartProgress, no_progress
from heedful.data.token_store import is_intact, create_store
from heedful.text.special_tokens import END
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

__all__ = [
    "PreparedData",
    "Split",
    "train_pair_tokenizers",
    "train_text_tokenizer",
    "prepare_pairs",
    "prepare_text",
    "sample_by_hash",
]


def train_pair_tokenizers(
    files: Sequence[Path],
    config: TokenizerConfig,
    *,
    joint: bool,
    sample_share: float,
    held_out: float,
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> tuple[Tokenizer, ...]:
    """One tokenizer for both sides, or one for each. What is held out is not read: a vocabulary must not know it."""

    def texts(sides: slice, progress: ProgressCallback) -> Iterator[str]:
        for pair in read_pairs(files, on_bad_line=on_bad_line, progress=progress):
            if not is_held_out(pair.source, held_out):
                yield from (pair.source, pair.target)[sides]

    wanted = [slice(0, 2)] if joint else [slice(0, 1), slice(1, 2)]
    return tuple(train_tokenizer(partial(texts, sides), files, config, sample_share, start_progress) for sides in wanted)


def train_text_tokenizer(
    files: Sequence[Path],
    config: TokenizerConfig,
    *,
    sample_share: float,
    characters: float,
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> Tokenizer:
    """A tokenizer for running text, from its first so many characters: those not held out."""

    def texts(progress: ProgressCallback) -> Iterator[str]:
        left = characters
        for text, _ in read_documents(files, on_bad_line=on_bad_line, progress=progress):
            if left <= 0:
                return
            left -= len(text)
            yield text

    return train_tokenizer(texts, files, config, sample_share, start_progress)


def train_tokenizer(
    texts: Callable[[ProgressCallback], Iterator[str]],
    files: Sequence[Path],
    config: TokenizerConfig,
    share: float,
    start_progress: StartProgress,
) -> Tokenizer:
    with start_progress("learning a vocabulary", size_on_disk(files)) as progress:
        return Tokenizer.train(sample_by_hash(texts(progress), share), config)


def sample_by_hash(texts: Iterable[str], share: float) -> Iterator[str]:
    """A share of the texts, chosen by their content: however a file is sorted, every part of it is heard."""
    if share >= 1:
        yield from texts
        return
    limit = int(share * 2**64)
    for text in texts:
        if int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") < limit:
            yield text


def prepare_pairs(
    train: Sequence[Path],
    valid: Sequence[Path],
    tokenizers: tuple[Tokenizer, ...],
    *,
    held_out: float,
    max_length: int,
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> PreparedData:
    """Stores of encoded pairs. Without validation files, a share of the sources is held out by hash."""
    folder = dataset_folder(
        [*train, *valid], tokenizers, kind="pairs", split=[len(train), held_out], max_length=max_length
    )

    def part(pair: Pair) -> str:
        return "valid" if not valid and is_held_out(pair.source, held_out) else "train"

    if not is_intact(folder):
        with (
            create_store(folder) as aside,
            split_writers(aside, {"source": len(tokenizers[0]), "target": len(tokenizers[-1])}) as parts,
            start_progress("encoding", size_on_disk([*train, *valid])) as progress,
        ):
            dropped: Counter[str] = Counter()
            read = read_pairs(train, on_bad_line=on_bad_line, dropped=dropped, progress=progress)
            too_long = _encode_pairs(read, lambda pair: parts[part(pair)], tokenizers, max_length)
            if valid:
                apart = read_pairs(valid, on_bad_line=on_bad_line, progress=progress)
                _encode_pairs(apart, lambda _: parts["valid"], tokenizers, max_length)
            reason = f"longer than {max_length} tokens"
            dropped[reason] += too_long.count
            write_metadata(aside, parts, +dropped, {reason: too_long.first})
    return open_dataset(folder, tokenizers, ("source", "target"))


def prepare_text(
    train: Sequence[Path],
    valid: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    held_out: float,
    characters: int,
    sentences: bool = False,
    end: int = END,
    on_bad_line: OnBadLine = "fail",
    start_progress: StartProgress = no_progress,
) -> PreparedData:
    """Stores of running text, `end` after each document. Without validation files, the last part is held out.

    `characters` is the length of the training text. Sequences are documents; or `sentences`, and documents then end at
    blank lines.

    The *last* part, not lines drawn at random: a line's neighbours would give it away.
    """
    kind: dict[str, Any] = {"kind": "sentences" if sentences else "text"} | ({} if end == END else {"end": end})
    folder = dataset_folder([*train, *valid], (tokenizer,), **kind, split=[len(train), held_out])
    read_all = read_sentences if sentences else read_documents

    def encode(pieces: Iterator[tuple[str, bool]], part_at: Callable[[int], SplitWriter]) -> None:
        _encode_text(pieces, part_at, tokenizer, end, apart=sentences)

    if not is_intact(folder):
        with (
            create_store(folder) as aside,
            split_writers(aside, {"text": len(tokenizer)}) as parts,
            start_progress("encoding", size_on_disk([*train, *valid])) as progress,
        ):
            dropped: Counter[str] = Counter()
            kept = float("inf") if valid else characters * (1 - held_out)
            read = read_all(train, on_bad_line=on_bad_line, dropped=dropped, progress=progress)
            encode(read, lambda seen: parts["train" if seen < kept else "valid"])
            if valid:
                encode(read_all(valid, on_bad_line=on_bad_line, progress=progress), lambda _: parts["valid"])
            write_metadata(aside, parts, dropped, {})
    return open_dataset(folder, (tokenizer,), ("text",))


@dataclass
class _TooLong:
    """Pairs with more tokens than are allowed, and the line of the first."""

    count: int = 0
    first: int = 0


def _encode_pairs(
    pairs: Iterator[Pair],
    part_of: Callable[[Pair], SplitWriter],
    tokenizers: tuple[Tokenizer, ...],
    max_length: int,
) -> _TooLong:
    too_long = _TooLong()
    for block in encoding_blocks(pairs):
        sources = tokenizers[0].encode([pair.source for pair in block])
        targets = tokenizers[-1].encode([pair.target for pair in block])
        for pair, source, target in zip(block, sources, targets, strict=True):
            if max(len(source), len(target)) >= max_length:  # END needs a place too
                too_long.first = too_long.first or pair.line
                too_long.count += 1
                continue
            part = part_of(pair)
            part.measure(pair.target)
            part.size["examples"] += 1
            if len(part.texts) < MAX_SAMPLE_TEXTS:
                part.texts.append((pair.source, pair.target))
            for side, ids in zip(part.sides, (source, target), strict=True):
                side.write(ids)
                side.end()
    return too_long


def _encode_text(
    pieces: Iterator[tuple[str, bool]],
    part_at: Callable[[int], SplitWriter],
    tokenizer: Tokenizer,
    end: int,
    *,
    apart: bool,
) -> None:
    """Pieces of documents one after another; or `apart`, each a sequence of its own."""
    seen = 0
    for block in encoding_blocks(pieces):
        texts = [text for text, _ in block]
        encoded = encode_sentences(texts, tokenizer) if apart else tokenizer.encode(texts)
        for (text, last), ids in zip(block, encoded, strict=True):
            part = part_at(seen)
            seen += len(text)
            part.measure(text)
            part.sides[0].write([*ids, end] if last else ids)
            if last or apart:
                part.sides[0].end()
                part.size["examples"] += 1
