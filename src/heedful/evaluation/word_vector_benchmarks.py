"""Word vector benchmarks: analogies and human similarity judgments (E2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.data.line_reader import OnBadLine, read_lines
from heedful.errors import DataError
from heedful.vectors.nearest_neighbors import WordTable, analogy_vectors

MAX_CANDIDATES = 300_000
"""Answers are searched among this many most frequent words (the first of a table), as is usual."""
BLOCK = 512
Numbers = npt.NDArray[np.float64]


@dataclass
class WordBenchmark:
    """A file of analogies (athens greece baghdad iraq) or similarity pairs (tiger cat 7.35)."""

    name: str
    analogies: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    """Analogies by section of the file."""
    pairs: list[tuple[str, str, float]] = field(default_factory=list)


def evaluate_word_vectors(words: WordTable, files: Sequence[Path], on_bad_line: OnBadLine = "fail") -> dict[str, Any]:
    """Evaluate each benchmark file, and report how much of it the vocabulary covers."""
    scores: dict[str, Any] = {}
    for file in files:
        benchmark = read_benchmark(file, on_bad_line)
        name = file.name.partition(".")[0].replace("-", "_")
        evaluate = evaluate_analogies if benchmark.analogies else evaluate_similarity
        scores |= evaluate(words, benchmark, name)
    return scores


def read_benchmark(file: Path, on_bad_line: OnBadLine = "fail") -> WordBenchmark:
    """Read a benchmark file, whose kind is detected from its lines."""
    benchmark, section = WordBenchmark(file.name), "all"
    for number, line in read_lines(file, on_bad_line=on_bad_line):
        text = line.strip()
        if text.startswith(":"):
            section = text[1:].strip()
        elif text and not text.startswith("#"):
            _add_line(benchmark, section, text, f"{file}:{number}")
    if bool(benchmark.analogies) == bool(benchmark.pairs):
        content = "both analogies and pairs" if benchmark.pairs else "neither analogies nor pairs of words"
        raise DataError(f"{file} holds {content}: lines must be four words, or two words and a number")
    return benchmark


def _add_line(benchmark: WordBenchmark, section: str, text: str, location: str) -> None:
    fields = text.split("\t") if "\t" in text else text.split("," if "," in text else None)
    fields = [part.strip() for part in fields]
    if len(fields) == 4 and not _is_number(fields[2]):
        benchmark.analogies.setdefault(section, []).append(tuple(fields))
    elif len(fields) >= 3 and _is_number(fields[2]):
        benchmark.pairs.append((fields[0], fields[1], float(fields[2])))
    elif benchmark.analogies or benchmark.pairs:  # the first line may be a header
        raise DataError(f"{location}: neither four words nor two words and a number: '{text[:60]}'")


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def evaluate_analogies(words: WordTable, benchmark: WordBenchmark, name: str) -> dict[str, Any]:
    """Compute analogy accuracy by section and overall; the words of a question are excluded as answers.

    Questions with an unknown word are skipped; the coverage is the share of questions evaluated.
    """
    sections: dict[str, Any] = {}
    correct = evaluated = total = 0
    for section, questions in benchmark.analogies.items():
        rows = ([words.find_index(word) for word in question] for question in questions)
        indices = np.array([row for row in rows if None not in row], np.int64).reshape(-1, 4)
        hits, count = int(analogies_correct(words, indices).sum()), len(indices)
        sections[section] = {"accuracy": hits / count if count else None, "questions": count}
        correct, evaluated, total = correct + hits, evaluated + count, total + len(questions)
    if not evaluated:
        raise DataError(f"{benchmark.name}: none of its {total:,} questions has all its words in {words.name}")
    return {
        f"{name}_accuracy": correct / evaluated,
        f"{name}_questions": evaluated,
        f"{name}_coverage": evaluated / total,
        f"{name}_sections": sections,
    }


def analogies_correct(words: WordTable, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return for each question (a b c d: b − a + c ≈ d) whether d is the nearest word."""
    candidates = words.unit_vectors[:MAX_CANDIDATES]
    correct = np.zeros(len(indices), bool)
    for start in range(0, len(indices), BLOCK):
        block = indices[start : start + BLOCK]
        cosines = analogy_vectors(words.unit_vectors, block[:, [1, 0, 2]]) @ candidates.T
        rows = np.arange(len(block))
        for column in block[:, :3].T:
            is_candidate = column < len(candidates)
            cosines[rows[is_candidate], column[is_candidate]] = -np.inf
        correct[start : start + BLOCK] = cosines.argmax(axis=1) == block[:, 3]
    return correct


def evaluate_similarity(words: WordTable, benchmark: WordBenchmark, name: str) -> dict[str, Any]:
    """Compute Spearman's ρ between cosines and human judgments."""
    known = [(words.cosine(a, b), rating) for a, b, rating in benchmark.pairs if a in words and b in words]
    if len(known) < 2:
        raise DataError(
            f"{benchmark.name}: {len(known)} of its {len(benchmark.pairs):,} pairs are in {words.name}: too few"
        )
    cosines, ratings = (np.array(column) for column in zip(*known, strict=True))
    return {
        f"{name}_spearman": spearman(cosines, ratings),
        f"{name}_pairs": len(known),
        f"{name}_coverage": len(known) / len(benchmark.pairs),
    }


def spearman(first: Numbers, second: Numbers) -> float:
    """Return the rank correlation; 0 if one side is constant."""
    a, b = _ranks(first), _ranks(second)
    if not a.std() or not b.std():
        return 0.0
    return float(((a - a.mean()) * (b - b.mean())).mean() / (a.std() * b.std()))


def _ranks(values: Numbers) -> Numbers:
    """Rank from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Numbers = (last - (counts - 1) / 2)[inverse]
    return shared
