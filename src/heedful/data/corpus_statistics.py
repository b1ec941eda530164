"""What the doctor writes down while text streams past: lengths, scripts and hashes, never the text itself.

A row is a pair (two columns) or a line or record of running text (one column). Rows are measured a chunk at
a time and kept as numbers, some 25 bytes for a pair and 13 for a line, so that what can only be judged at
the end (is this length ratio unusual? has this been there before?) is then a comparison of arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.data.unicode_scripts import SCRIPTS, scripts_of

ROWS, CHARACTERS = 1024, 1 << 18
"""A chunk ends at whichever comes first."""

LONGEST = 1 << 16
"""Lengths are counted one by one up to here, and together beyond."""

STEP, SMOOTH, BINS = 0.02, 10, 801
"""Bins of the log ratio of the lengths; ten characters more on both sides let short sentences vary."""

SUSPECT, CERTAIN = np.log(2.5), np.log(5.0)
"""A pair is an outlier beyond six deviations from the median ratio: never within 2.5-fold, always beyond 5-fold."""

Texts = Sequence[list[str]]
Mask = NDArray[np.bool_]


def chunks(rows: Iterable[tuple[int, tuple[str, ...]]]) -> Iterator[tuple[list[int], Texts]]:
    """Rows gathered into lines and columns, a bounded number of rows and characters at a time."""
    held: list[tuple[int, tuple[str, ...]]] = []
    size = 0
    for row in rows:
        held.append(row)
        cells = row[1]
        size += len(cells[0]) + len(cells[-1])
        if len(held) == ROWS or size > CHARACTERS:
            yield _columns(held)
            held, size = [], 0
    if held:
        yield _columns(held)


def _columns(rows: list[tuple[int, tuple[str, ...]]]) -> tuple[list[int], Texts]:
    lines, cells = zip(*rows, strict=True)
    return list(lines), [list(column) for column in zip(*cells, strict=True)]


@dataclass
class ColumnStatistics:
    """One column: how long its rows are, what they are written in."""

    lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(LONGEST + 1, np.int64))
    """Rows of each length in characters."""
    scripts: array[int] = field(default_factory=lambda: array("B"))
    """Row by row, as places in SCRIPTS."""
    characters: int = 0
    words: int = 0
    longest: int = 0

    def add(self, texts: list[str], lengths: NDArray[np.int64]) -> None:
        self.lengths += np.bincount(lengths.clip(max=LONGEST), minlength=LONGEST + 1)
        self.scripts.frombytes(scripts_of(texts, lengths).tobytes())
        self.characters += int(lengths.sum())
        self.words += len(" ".join(texts).split())
        self.longest = max(self.longest, int(lengths.max()))

    def quantile(self, share: float) -> int:
        """The length that this share of the rows does not pass."""
        return _quantile(self.lengths, share)

    @property
    def script(self) -> str:
        """The script of at least four rows in five, as far as they have letters."""
        counts = np.bincount(_view(self.scripts, np.uint8), minlength=len(SCRIPTS))[1:]
        if not counts.any():
            return SCRIPTS[0]
        return SCRIPTS[int(counts.argmax()) + 1] if counts.max() >= 0.8 * counts.sum() else "mixed"

    def other_script(self) -> Mask:
        """Rows in another script than the rest of their column."""
        scripts, own = _view(self.scripts, np.uint8), self.script
        if own not in SCRIPTS:
            return np.zeros(len(scripts), np.bool_)
        return np.asarray((scripts != SCRIPTS.index(own)) & (scripts != 0))


class CorpusStatistics:
    """All that is remembered of the rows. Those shorter than `shortest` are never called repeated."""

    def __init__(self, columns: int, *, shortest: int = 1) -> None:
        self.columns = [ColumnStatistics() for _ in range(columns)]
        self._shortest = shortest
        self._lines, self._ratios, self._copies = array("I"), array("H"), array("B")
        self._first, self._whole = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, lines: list[int], texts: Texts) -> None:
        """Measure a chunk. Python's own string hash does for one run: 64 bits, and quick."""
        count = len(lines)
        lengths = [np.fromiter(map(len, column), np.int64, count) for column in texts]
        for column, text, length in zip(self.columns, texts, lengths, strict=True):
            column.add(text, length)
        first = np.fromiter(map(hash, texts[0]), np.int64, count)
        first[lengths[0] < self._shortest] = 0
        self._lines.extend(lines)
        self._first.frombytes(first.tobytes())
        if len(texts) == 2:
            self._add_pairs(texts[0], texts[1], lengths)

    def _add_pairs(self, sources: list[str], targets: list[str], lengths: list[NDArray[np.int64]]) -> None:
        whole = np.fromiter(map(hash, zip(sources, targets, strict=True)), np.int64, len(sources))
        ratio = np.rint(np.log((lengths[0] + SMOOTH) / (lengths[1] + SMOOTH)) / STEP) + BINS // 2
        copied = lengths[0] == lengths[1]
        for row in np.flatnonzero(copied):
            copied[row] = _is_copy(sources[row], targets[row])
        self._whole.frombytes(whole.tobytes())
        self._ratios.frombytes(ratio.clip(0, BINS - 1).astype(np.uint16).tobytes())
        self._copies.frombytes(copied.tobytes())

    def line(self, row: int) -> int:
        """Where a row stands in its file, from 1."""
        return self._lines[row]

    @property
    def keys(self) -> NDArray[np.int64]:
        """Hashes of the first column, one a row; 0 for a short row, which is compared with none."""
        return _view(self._first, np.int64)

    def repeated(self) -> Mask:
        """Rows that were there before, whole."""
        return _later(_view(self._whole, np.int64) if len(self.columns) == 2 else self.keys)

    def repeated_first(self) -> Mask:
        """Rows whose first column was there before."""
        return _later(self.keys)

    def copies(self) -> Mask:
        """Pairs left untranslated."""
        return _view(self._copies, np.bool_)

    def outliers(self) -> Mask:
        """Pairs of which one side is far longer, set against the other, than it is in most pairs."""
        ratios = _view(self._ratios, np.uint16)
        middle = _quantile(np.bincount(ratios, minlength=BINS), 0.5)
        distance = np.abs(ratios.astype(np.int32) - middle)
        deviation = 1.4826 * STEP * _quantile(np.bincount(distance, minlength=BINS), 0.5)
        return np.asarray(distance * STEP > np.clip(6 * deviation, SUSPECT, CERTAIN))


def _is_copy(source: str, target: str) -> bool:
    """The same text, and more of it than a name or a number, which may well stay as they are."""
    is_text = (" " in source or len(source) > 12) and any(map(str.isalpha, source))
    return is_text and source.casefold() == target.casefold()


def _later(hashes: NDArray[np.int64]) -> Mask:
    order = np.argsort(hashes, kind="stable")
    later = np.zeros(len(hashes), np.bool_)
    later[order[1:]] = hashes[order[1:]] == hashes[order[:-1]]
    later[hashes == 0] = False
    return later


def _quantile(counts: NDArray[np.int64], share: float) -> int:
    return int(np.searchsorted(np.cumsum(counts), share * int(counts.sum())))


def _view(values: array[int], kind: Any) -> NDArray[Any]:
    return np.frombuffer(values, kind) if values else np.zeros(0, kind)
