"""Evaluate translators and language models on held-out text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict
from typing import Any

from heedful.data.dataset import Split
from heedful.data.pair_dataset import PairBatches
from heedful.data.progress import StartProgress, no_progress
from heedful.data.text_dataset import TextBatches
from heedful.data.token_store import Sequences
from heedful.evaluation.calibration import reliability_curve, token_reliability, word_correctness
from heedful.evaluation.perplexity import evaluate_perplexity
from heedful.evaluation.text_metrics import text_scores
from heedful.inference.trained_model import TrainedModel
from heedful.inference.translator import Translator
from heedful.inspection.confidence import Confidence
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.text.special_tokens import END

BATCH_TOKENS = 4096


def evaluate_translation(
    trained: Translator,
    pairs: Sequence[tuple[str, ...]],
    *,
    beam: int = 4,
    length_penalty: float = 1.0,
    start_progress: StartProgress = no_progress,
    calibration_size: int = 0,
) -> dict[str, Any]:
    """Score translations (BLEU, chrF), the calibration of word probabilities, and the perplexity of the references.

    Word confidence was fitted on the first `calibration_size` pairs, so they are left out of the calibration error.
    """
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    confidence = trained.confidence or Confidence()
    uncalibrated = copy(trained)
    uncalibrated.confidence = Confidence(unit=confidence.unit)
    decoding: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty}
    with start_progress("translating", len(sources)) as watch:
        translations = list(uncalibrated.iter_translate(sources, progress=watch, engine="torch", **decoding))
    scores = text_scores([translation.text for translation in translations], targets)
    words = [[(word.text, word.probability) for word in text.words] for text in translations[calibration_size:]]
    probabilities, correct = word_correctness(words, targets[calibration_size:], confidence.unit)
    raw = reliability_curve(probabilities, correct)
    curves, errors = {"raw": raw}, {"word_calibration_error": raw.error}
    if trained.confidence is not None:
        curves["corrected"] = reliability_curve([confidence(probability) for probability in probabilities], correct)
        errors = {"word_calibration_error": curves["corrected"].error, "word_calibration_error_raw": raw.error}
    reliability = {name: asdict(curve) for name, curve in curves.items()}
    forced = teacher_forced_scores(trained, sources, targets)
    return {**scores, **decoding, **errors, "reliability": reliability, **forced}


def teacher_forced_scores(trained: TrainedModel, sources: list[str], targets: list[str]) -> dict[str, Any]:
    """Compute perplexity and token calibration of the targets under teacher forcing."""
    texts = (trained.tokenizers[0], sources), (trained.tokenizers[-1], targets)
    sides = tuple(Sequences.from_lists(tokenizer.encode(side)) for tokenizer, side in texts)
    split = Split(sides, len(targets), *_count_words_and_bytes(targets))
    batches = PairBatches(*sides, max_tokens=BATCH_TOKENS, seed=0, shuffle=False)
    scores = evaluate_perplexity(trained.model, Seq2SeqLoss(), batches, split, trained.device)
    return {**scores, "token_calibration_error": token_reliability(trained.model, batches).error}


def evaluate_text(trained: TrainedModel, pieces: Iterable[tuple[str, bool]]) -> dict[str, Any]:
    """Compute the perplexity of running text in windows of the model's context length."""
    chunks = list(pieces)
    encoded = trained.tokenizers[0].encode([text for text, _ in chunks])
    documents: list[list[int]] = [[]]
    for (_, last), ids in zip(chunks, encoded, strict=True):
        documents[-1] += [*ids, END] if last else ids
        if last:
            documents.append([])
    sides = (Sequences.from_lists([ids for ids in documents if ids]),)
    return evaluate_split(trained, Split(sides, len(documents), *_count_words_and_bytes([text for text, _ in chunks])))


def evaluate_split(trained: TrainedModel, split: Split) -> dict[str, Any]:
    """Compute the perplexity of prepared token ids."""
    context = trained.model.config.max_length if hasattr(trained.model.config, "max_length") else 256
    rows = max(1, BATCH_TOKENS // context)
    batches = TextBatches(split.sides[0], context=context, rows=rows, seed=0, shuffle=False)
    return evaluate_perplexity(trained.model, CausalLMLoss(), batches, split, trained.device)


def _count_words_and_bytes(texts: Sequence[str]) -> tuple[int, int]:
    return sum(len(text.split()) for text in texts), sum(len(text.encode()) for text in texts)
