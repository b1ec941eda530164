"""A trained model against held-out files: every score with what it takes to compare it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from heedful.data.batches import PairBatches, TextBatches
from heedful.data.lines import OnBadLine
from heedful.data.prepare import Split
from heedful.data.sources import read_documents, read_pairs
from heedful.data.stages import Stages, unseen
from heedful.data.store import Sequences
from heedful.evaluation.calibration import draw_reliability, judged_words, reliability, token_reliability
from heedful.evaluation.predict import predict
from heedful.evaluation.scores import text_scores
from heedful.inspection.confidence import Confidence
from heedful.objectives.language import Language
from heedful.objectives.translation import Translation
from heedful.text.special import END
from heedful.trained import Trained

BATCH_TOKENS = 4096


def evaluate(
    trained: Trained,
    files: Sequence[str | Path],
    *,
    beam: int = 4,
    length_penalty: float = 1.0,
    on_bad_line: OnBadLine = "fail",
    stages: Stages = unseen,
    picture: Path | None = None,
) -> dict[str, Any]:
    """BLEU, chrF, exact match, perplexity and calibration of a translator; perplexity and bits per byte of a language
    model. A `picture` is of the calibration."""
    paths = [Path(file) for file in files]
    if trained.task == "translate":
        pairs = [(pair.source, pair.target) for pair in read_pairs(paths, on_bad_line=on_bad_line)]
        return judge_pairs(trained, pairs, beam=beam, length_penalty=length_penalty, stages=stages, picture=picture)
    trained.check("generate")
    return surprise_of_text(trained, read_documents(paths, on_bad_line=on_bad_line))


def judge_pairs(
    trained: Trained,
    pairs: Sequence[tuple[str, str]],
    *,
    beam: int = 4,
    length_penalty: float = 1.0,
    stages: Stages = unseen,
    fitted: int = 0,
    picture: Path | None = None,
) -> dict[str, Any]:
    """What the model writes, whether it knows when it is right, and how well it predicts the references.

    The first pairs, if the model's confidence was `fitted` on them, have no say in how well it fits.
    """
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    confidence = trained.confidence or Confidence()
    plain = Trained(
        trained.model,
        trained.tokenizers,
        trained.folder,
        confidence=Confidence(unit=confidence.unit),
        reading=trained.reading,
    )
    how: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty, "engine": "torch"}
    with stages("translating", len(sources)) as watch:
        found = list(plain.translations(sources, progress=watch, **how))
    scores = text_scores([answer.text for answer in found], targets).to_json()
    words = [[(word.text, word.probability) for word in answer.words] for answer in found[fitted:]]
    said, right = judged_words(words, targets[fitted:], confidence.unit)
    curves = {"raw": reliability(said, right)}
    calibration = {"word_calibration_error": curves["raw"].error}
    if trained.confidence is not None:
        curves["corrected"] = reliability([confidence(probability) for probability in said], right)
        calibration = {
            "word_calibration_error": curves["corrected"].error,
            "word_calibration_error_raw": curves["raw"].error,
        }
    if picture is not None:
        draw_reliability(curves, picture)
    decoding = {"beam": beam, "length_penalty": length_penalty}
    return {**scores, **decoding, **calibration, **surprise_of_pairs(trained, pairs)}


def judge_split(
    trained: Trained, split: Split, *, stages: Stages = unseen, picture: Path | None = None
) -> dict[str, Any]:
    """The same for text already prepared: validation, where there is no test."""
    if trained.task == "translate":
        fitted = trained.confidence.texts if trained.confidence else 0
        return judge_pairs(trained, split.texts, stages=stages, fitted=fitted, picture=picture)
    return _surprise(trained, split)


def surprise_of_pairs(trained: Trained, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """How well the targets are predicted when they are given (teacher forcing)."""
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    sides = tuple(
        Sequences.of(tokenizer.encode(texts))
        for tokenizer, texts in ((trained.tokenizers[0], sources), (trained.tokenizers[-1], targets))
    )
    split = Split(sides, len(pairs), *_size(targets))
    batches = PairBatches(*sides, tokens=BATCH_TOKENS, seed=0, shuffle=False)
    calibration = {"token_calibration_error": token_reliability(trained.model, batches).error}
    return {**predict(trained.model, Translation(), batches, split, trained.device).to_json(), **calibration}


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
    return _surprise(trained, Split(sides, len(documents), *_size([text for text, _ in read])))


def _surprise(trained: Trained, split: Split) -> dict[str, Any]:
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
