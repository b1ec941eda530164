"""Real sentence pairs as a task of the lab: the built-in dates, and Multi30k and Tatoeba if available."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from heedful.data.dates_corpus import dates_corpus
from heedful.lab.toy_tasks import GeneratedBatches, Generator, PairTask, pair_batch
from heedful.objectives.objective import to_device
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

CorpusName = Literal["dates", "multi30k", "tatoeba"]
TITLES: dict[CorpusName, str] = {
    "dates": "the built-in dates in 17 languages",
    "multi30k": "Multi30k, English to German",
    "tatoeba": "Tatoeba, English to German",
}
PAIRS = 8000
Pair = tuple[list[int], list[int]]


def corpus_folder(name: str) -> Path:
    """The path of a corpus: a folder in HEEDFUL_DATA."""
    return Path(os.environ.get("HEEDFUL_DATA") or "/nonexistent") / name


def present_corpora() -> list[CorpusName]:
    """The available corpora; the dates are built in."""
    multi30k = [corpus_folder("multi30k") / f"train.{language}" for language in ("en", "de")]
    present: dict[CorpusName, bool] = {
        "dates": True,
        "multi30k": all(side.is_file() for side in multi30k),
        "tatoeba": (corpus_folder("tatoeba") / "eng-deu.tsv.gz").is_file(),
    }
    return [name for name, is_present in present.items() if is_present]


@cache
def corpus_pairs(name: CorpusName) -> list[tuple[str, str]]:
    """At most 8,000 pairs of a corpus."""
    if name == "multi30k":
        sides = [corpus_folder(name) / f"train.{language}" for language in ("en", "de")]
        english, german = (side.read_text(encoding="utf-8").splitlines() for side in sides)
        return list(zip(english, german, strict=True))[:PAIRS]
    if name == "tatoeba":
        with gzip.open(corpus_folder(name) / "eng-deu.tsv.gz", "rt", encoding="utf-8") as lines:
            rows = [line.rstrip("\n").split("\t")[:2] for line in lines]
        return [(row[0], row[1]) for row in rows[:: max(1, len(rows) // PAIRS)]]
    return [(pair.source, pair.target) for pair in dates_corpus(train=PAIRS // 2, valid=1, test=1).train]


@cache
def encoded_pairs(name: CorpusName) -> tuple[int, list[Pair]]:
    """The vocabulary's size, and all pairs as token ids: characters of dates, subwords of sentences."""
    pairs = corpus_pairs(name)
    kind: Literal["byte_bpe", "characters"] = "characters" if name == "dates" else "byte_bpe"
    texts = [text for pair in pairs[:2000] for text in pair]
    tokenizer = Tokenizer.train(texts, TokenizerConfig(kind=kind, vocabulary=2000))
    sides = (tokenizer.encode([pair[side] for pair in pairs]) for side in (0, 1))
    return len(tokenizer), list(zip(*sides, strict=True))


@dataclass(frozen=True)
class CorpusTask(PairTask):
    """Translate the pairs of a corpus; every twentieth is held out."""

    corpus: CorpusName = "dates"
    rows: int = 24

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        return encoded_pairs(self.corpus)[0]

    def batches(self, seed: int) -> GeneratedBatches:
        pairs = [pair for number, pair in enumerate(encoded_pairs(self.corpus)[1]) if number % 20]

        def draw(generator: Generator) -> Any:
            return pair_batch(*zip(*(pairs[i] for i in generator.integers(len(pairs), size=self.rows)), strict=True))

        return GeneratedBatches(draw, seed)

    @torch.inference_mode()
    def loss_by_length(self, model: Any, texts: int = 400, parts: int = 4) -> list[float]:
        """Nats per target token of held-out pairs, in parts of equal size from the shortest sources to the longest."""
        held_out = sorted(encoded_pairs(self.corpus)[1][::20][:texts], key=lambda pair: len(pair[0]))
        losses = []
        for part in range(parts):
            pairs = held_out[part * len(held_out) // parts : (part + 1) * len(held_out) // parts]
            batch = to_device(pair_batch(*zip(*pairs, strict=True)), model.device)
            losses.append(float(self.objective.loss(model, batch)) / self.objective.token_count(batch))
        return losses
