"""A trained model against held-out text: every score with what it takes to compare it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from heedful.data.batches import PairBatches, TextBatches
from heedful.data.prepare import Split
from heedful.data.stages import Stages, unseen
from heedful.data.store import Sequences
from heedful.evaluation.predict import predict
from heedful.evaluation.scores import text_scores
from heedful.objectives.language import Language
from heedful.objectives.translation import Translation
from heedful.text.special import END
from heedful.trained import Trained

BATCH_TOKENS = 4096


def judge_pairs(
    trained: Trained,
    pairs: Sequence[tuple[str, str]],
    *,
    beam: int = 4,
    length_penalty: float = 1.0,
    stages: Stages = unseen,
) -> dict[str, Any]:
    """What the model writes, and how well it predicts the references."""
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    with stages("translating", len(sources)) as watch:
        outputs = trained.translate(sources, beam=beam, length_penalty=length_penalty, progress=watch)
    scores = text_scores(outputs, targets).to_json()
    return {**scores, "beam": beam, "length_penalty": length_penalty, **surprise_of_pairs(trained, pairs)}


def surprise_of_pairs(trained: Trained, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """How well the targets are predicted when they are given (teacher forcing)."""
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    sides = tuple(
        Sequences.of(tokenizer.encode(texts))
        for tokenizer, texts in ((trained.tokenizers[0], sources), (trained.tokenizers[-1], targets))
    )
    split = Split(sides, len(pairs), *_size(targets))
    batches = PairBatches(*sides, tokens=BATCH_TOKENS, seed=0, shuffle=False)
    return predict(trained.model, Translation(), batches, split, trained.device).to_json()


def surprise_of_text(trained: Trained, pieces: Iterable[tuple[str, bool]]) -> dict[str, Any]:
    """Running text in windows of the model's length, each judged on its own."""
    read = list(pieces)
    encoded = trained.tokenizers[0].encode([text for text, _ in read])
    documents: list[list[int]] = [[]]
    for (_, last), ids in zip(read, encoded, strict=True):
        documents[-1] += [*ids, END] if last else ids
        if last:
            documents.append([])
    sides = (Sequences.of([ids for ids in documents if ids]),)
    return judge_text(trained, Split(sides, len(documents), *_size([text for text, _ in read])))


def judge_text(trained: Trained, split: Split) -> dict[str, Any]:
    """The same for text already prepared."""
    context = trained.model.config.max_length if hasattr(trained.model.config, "max_length") else 256
    rows = max(1, BATCH_TOKENS // context)
    batches = TextBatches(split.sides[0], context=context, rows=rows, seed=0, shuffle=False)
    return predict(trained.model, Language(), batches, split, trained.device).to_json()


def _size(texts: Iterable[str]) -> tuple[int, int]:
    words = size = 0
    for text in texts:
        words += len(text.split())
        size += len(text.encode())
    return words, size
