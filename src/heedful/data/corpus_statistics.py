"""Statistics of a corpus, computed in one streaming pass: lengths, scripts and hashes; the text is not kept.

A row is a pair (two columns) or a line or record of running text (one column). Rows are measured in chunks and kept as
numbers, some 25 bytes for a pair and 13 for a line, so that what depends on the whole corpus (is this length ratio
unusual? is this a duplicate?) is a comparison of arrays at the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.length_alignment import SMOOTHING, LengthAlignment
from heedful.data.table_reader import Cells
from heedful.data.text_forms import MIN_TOKENIZED, escaped_rows, tokenized_rows
from heedful.data.unicode_scripts import SCRIPTS, scripts_of

CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 1 << 18
"""Rows are measured in chunks; one ends at whichever comes first."""

MAX_LENGTH = 1 << 16
"""Longer rows are counted together in the last bin of the histogram."""

BIN_WIDTH, BINS = 0.02, 801
"""Bins of the log ratio of the smoothed lengths."""

MIN_OUTLIER, MAX_NORMAL = np.log(2.5), np.log(5.0)
"""A pair is an outlier beyond six deviations from the median ratio: never within 2.5-fold, always beyond 5-fold."""

MAX_VOCABULARY = 100_000
"""Maximum distinct words kept to compare languages; once it is reached, no more are added."""
PUNCTUATION = ".,;:!?\"'()[]«»„“”‘’…-"

Mask = NDArray[np.bool_]


@dataclass
class ColumnStatistics:
    """Lengths and scripts of one column."""

    lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(MAX_LENGTH + 1, np.int64))
    """Number of rows of each length in characters."""
    scripts: array[int] = field(default_factory=lambda: array("B"))
    """Script of each row, as an index into SCRIPTS."""
    characters: int = 0
    words: int = 0
    longest: int = 0
    vocabulary: set[str] = field(default_factory=set)
    """Different words in lower case, and characters of scripts without spaces; the first of them."""

    def add(self, texts: list[str], lengths: NDArray[np.int64]) -> None:
        self.lengths += np.bincount(lengths.clip(max=MAX_LENGTH), minlength=MAX_LENGTH + 1)
        self.scripts.frombytes(scripts_of(texts, lengths).tobytes())
        self.characters += int(lengths.sum())
        words = " ".join(texts).split()
        self.words += len(words)
        if len(self.vocabulary) < MAX_VOCABULARY:
            self.vocabulary.update(word.strip(PUNCTUATION).lower() for word in words)
            self.vocabulary.update(character for character in set("".join(texts)) if character >= "\u2e80")
        self.longest = max(self.longest, int(lengths.max()))

    def quantile(self, share: float) -> int:
        """The length that this share of the rows does not exceed."""
        return _quantile(self.lengths, share)

    @property
    def script(self) -> str:
        """The script of at least 80% of the rows with letters, else "mixed"."""
        counts = np.bincount(_view(self.scripts, np.uint8), minlength=len(SCRIPTS))[1:]
        if not counts.any():
            return SCRIPTS[0]
        return SCRIPTS[int(counts.argmax()) + 1] if counts.max() >= 0.8 * counts.sum() else "mixed"

    def other_script(self) -> Mask:
        """Rows in another script than the rest of the column."""
        scripts, majority = _view(self.scripts, np.uint8), self.script
        if majority not in SCRIPTS:
            return np.zeros(len(scripts), np.bool_)
        return np.asarray((scripts != SCRIPTS.index(majority)) & (scripts != 0))


class CorpusStatistics:
    """Statistics of all rows. Rows shorter than `shortest` are never duplicates."""

    def __init__(self, columns: int, *, shortest: int = 1) -> None:
        self.columns = [ColumnStatistics() for _ in range(columns)]
        self._shortest = shortest
        self.alignment = LengthAlignment()
        self._lines, self._ratios, self._copies = array("I"), array("H"), array("B")
        self._sources, self._pairs = array("q"), array("q")
        self._escaped, self._tokenized = array("B"), array("B")

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, rows: Sequence[Cells]) -> None:
        """Measure a chunk of rows. Python's own string hash suffices within one run: 64 bits, and fast."""
        lines, cells = zip(*rows, strict=True)
        texts = [list(column) for column in zip(*cells, strict=True)]
        count = len(lines)
        lengths = [np.fromiter(map(len, column), np.int64, count) for column in texts]
        for column, text, length in zip(self.columns, texts, lengths, strict=True):
            column.add(text, length)
        sources = np.fromiter(map(hash, texts[0]), np.int64, count)
        sources[lengths[0] < self._shortest] = 0
        self._lines.extend(lines)
        self._sources.frombytes(sources.tobytes())
        self._escaped.frombytes(_any_column(escaped_rows, texts).tobytes())
        self._tokenized.frombytes(_any_column(tokenized_rows, texts).tobytes())
        if len(texts) == 2:
            self._add_pairs(texts[0], texts[1], lengths)

    def _add_pairs(self, sources: list[str], targets: list[str], lengths: list[NDArray[np.int64]]) -> None:
        self.alignment.add(lengths[0], lengths[1])
        pairs = np.fromiter(map(hash, zip(sources, targets, strict=True)), np.int64, len(sources))
        ratio = np.rint(np.log((lengths[0] + SMOOTHING) / (lengths[1] + SMOOTHING)) / BIN_WIDTH) + BINS // 2
        copied = lengths[0] == lengths[1]
        for row in np.flatnonzero(copied):
            copied[row] = _is_copy(sources[row], targets[row])
        self._pairs.frombytes(pairs.tobytes())
        self._ratios.frombytes(ratio.clip(0, BINS - 1).astype(np.uint16).tobytes())
        self._copies.frombytes(copied.tobytes())

    def line(self, row: int) -> int:
        """Line number of a row in its file, from 1."""
        return self._lines[row]

    @property
    def keys(self) -> NDArray[np.int64]:
        """Hashes of the first column; 0 for a short row, which equals no other."""
        return _view(self._sources, np.int64)

    def duplicates(self) -> Mask:
        """Rows equal to an earlier one in all columns."""
        return _repeated(_view(self._pairs, np.int64) if len(self.columns) == 2 else self.keys)

    def duplicate_sources(self) -> Mask:
        """Rows whose first column equals that of an earlier row."""
        return _repeated(self.keys)

    def copies(self) -> Mask:
        """Pairs whose target is a copy of the source."""
        return _view(self._copies, np.bool_)

    def escaped(self) -> Mask:
        """Rows with character references."""
        return _view(self._escaped, np.bool_)

    def tokenized(self) -> Mask:
        """Rows of tokenized text, if it is not just a few."""
        mask: Mask = _view(self._tokenized, np.bool_)
        return mask if mask.sum() >= max(2, MIN_TOKENIZED * len(mask)) else np.zeros_like(mask)

    def length_ratio_outliers(self) -> Mask:
        """Pairs whose ratio of lengths is far from the median ratio."""
        ratios = _view(self._ratios, np.uint16)
        middle = _quantile(np.bincount(ratios, minlength=BINS), 0.5)
        distance = np.abs(ratios.astype(np.int32) - middle)
        deviation = 1.4826 * BIN_WIDTH * _quantile(np.bincount(distance, minlength=BINS), 0.5)
        return np.asarray(distance * BIN_WIDTH > np.clip(6 * deviation, MIN_OUTLIER, MAX_NORMAL))


def _any_column(test: Callable[[list[str]], list[bool]], texts: list[list[str]]) -> Mask:
    return np.asarray(np.logical_or.reduce([test(column) for column in texts]))


def _is_copy(source: str, target: str) -> bool:
    """Whether both are the same text, and more than a name or a number, which may stay as they are."""
    is_text = (" " in source or len(source) > 12) and any(map(str.isalpha, source))
    return is_text and source.casefold() == target.casefold()


def _repeated(hashes: NDArray[np.int64]) -> Mask:
    """Where a hash occurred earlier."""
    order = np.argsort(hashes, kind="stable")
    repeated = np.zeros(len(hashes), np.bool_)
    repeated[order[1:]] = hashes[order[1:]] == hashes[order[:-1]]
    repeated[hashes == 0] = False
    return repeated


def _quantile(counts: NDArray[np.int64], share: float) -> int:
    return int(np.searchsorted(np.cumsum(counts), share * int(counts.sum())))


def _view(values: array[int], dtype: Any) -> NDArray[Any]:
    return np.frombuffer(values, dtype) if values else np.zeros(0, dtype)
