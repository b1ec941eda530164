"""Word vectors against what people say: analogies, and how alike two words are (E2)."""

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

MOST_ANSWERS = 300_000
"""An answer is looked for among the first so many words of a table, as others do: they are the frequent ones."""
BLOCK = 512
Numbers = npt.NDArray[np.float64]


@dataclass
class WordBenchmark:
    """A file of questions: four words (athens greece baghdad iraq), or two and a number (tiger cat 7.35)."""

    name: str
    analogies: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    """By section."""
    pairs: list[tuple[str, str, float]] = field(default_factory=list)


def evaluate_word_vectors(words: WordTable, files: Sequence[Path], on_bad_line: OnBadLine = "fail") -> dict[str, Any]:
    """Every set in its own figures, and how much of it the vocabulary covers."""
    scores: dict[str, Any] = {}
    for file in files:
        asked = read_benchmark(file, on_bad_line)
        name = file.name.partition(".")[0].replace("-", "_")
        scores |= evaluate_analogies(words, asked, name) if asked.analogies else evaluate_similarity(words, asked, name)
    return scores


def read_benchmark(file: Path, on_bad_line: OnBadLine = "fail") -> WordBenchmark:
    """Which of the two it is, its lines say."""
    found, section = WordBenchmark(file.name), "all"
    for number, line in read_lines(file, on_bad_line=on_bad_line):
        text = line.strip()
        if text.startswith(":"):
            section = text[1:].strip()
        elif text and not text.startswith("#"):
            _take(found, section, text, f"{file}:{number}")
    if bool(found.analogies) == bool(found.pairs):
        what = "both analogies and pairs" if found.pairs else "neither analogies nor pairs of words"
        raise DataError(f"{file} holds {what}: lines must be four words, or two words and a number")
    return found


def _take(found: WordBenchmark, section: str, text: str, place: str) -> None:
    fields = text.split("\t") if "\t" in text else text.split("," if "," in text else None)
    fields = [part.strip() for part in fields]
    if len(fields) == 4 and not _is_number(fields[2]):
        found.analogies.setdefault(section, []).append(tuple(fields))
    elif len(fields) >= 3 and _is_number(fields[2]):
        found.pairs.append((fields[0], fields[1], float(fields[2])))
    elif found.analogies or found.pairs:  # the first line may be a heading
        raise DataError(f"{place}: neither four words nor two words and a number: '{text[:60]}'")


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def evaluate_analogies(words: WordTable, asked: WordBenchmark, name: str) -> dict[str, Any]:
    """The share of questions whose answer is the very word, by section and together; the questions' words are no
    answers. Questions with an unknown word are left out, and the coverage says how many."""
    sections: dict[str, Any] = {}
    right = known = total = 0
    for section, questions in asked.analogies.items():
        places = np.array(
            [row for question in questions if None not in (row := [words.find_index(word) for word in question])],
            np.int64,
        ).reshape(-1, 4)
        correct = int(analogies_correct(words, places).sum())
        sections[section] = {"accuracy": correct / len(places) if len(places) else None, "asked": len(places)}
        right, known, total = right + correct, known + len(places), total + len(questions)
    if not known:
        raise DataError(f"{asked.name}: none of its {total:,} questions has all its words in {words.name}")
    together = {f"{name}_accuracy": right / known, f"{name}_asked": known, f"{name}_coverage": known / total}
    return {**together, f"{name}_sections": sections}


def analogies_correct(words: WordTable, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which questions (a b c d: b − a + c ≈ d) the nearest word answers."""
    directions = words.unit_vectors[:MOST_ANSWERS]
    right = np.zeros(len(places), bool)
    for start in range(0, len(places), BLOCK):
        block = places[start : start + BLOCK]
        cosines = analogy_vectors(words.unit_vectors, block[:, [1, 0, 2]]) @ directions.T
        rows = np.arange(len(block))
        for given in block[:, :3].T:
            seen = given < len(directions)
            cosines[rows[seen], given[seen]] = -np.inf
        right[start : start + BLOCK] = cosines.argmax(axis=1) == block[:, 3]
    return right


def evaluate_similarity(words: WordTable, asked: WordBenchmark, name: str) -> dict[str, Any]:
    """Spearman's ρ between the cosines and what people say."""
    known = [(words.cosine(one, other), said) for one, other, said in asked.pairs if one in words and other in words]
    if len(known) < 2:
        raise DataError(f"{asked.name}: {len(known)} of its {len(asked.pairs):,} pairs are in {words.name}: too few")
    cosines, said = (np.array(column) for column in zip(*known, strict=True))
    return {
        f"{name}_spearman": spearman(cosines, said),
        f"{name}_asked": len(known),
        f"{name}_coverage": len(known) / len(asked.pairs),
    }


def spearman(one: Numbers, other: Numbers) -> float:
    """The correlation of ranks; 0 where one side is all alike."""
    ranks = [_ranks(one), _ranks(other)]
    spread = [float(rank.std()) for rank in ranks]
    if not all(spread):
        return 0.0
    return float(((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())).mean() / (spread[0] * spread[1]))


def _ranks(values: Numbers) -> Numbers:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Numbers = (last - (counts - 1) / 2)[which]
    return shared
