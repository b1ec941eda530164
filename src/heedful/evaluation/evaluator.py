"""Evaluate translators and language models on held-out text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict
from typing import Any

from heedful.data.batching import evenly_spaced
from heedful.data.dataset import Split
from heedful.data.pair_dataset import PairBatches
from heedful.data.progress import StartProgress, no_progress
from heedful.data.text_dataset import TextBatches
from heedful.data.text_size import TextSize
from heedful.data.token_store import Sequences
from heedful.errors import UsageError
from heedful.evaluation.bleu_tokenizer import BleuTokenizer, choose_bleu_tokenizer
from heedful.evaluation.calibration import reliability_curve, token_reliability, word_correctness
from heedful.evaluation.length_buckets import scores_by_length, text_lengths, translation_scores
from heedful.evaluation.perplexity import evaluate_perplexity
from heedful.evaluation.position_losses import losses_by_position
from heedful.evaluation.text_metrics import sample_scores, text_scores
from heedful.inference.trained_model import TrainedModel
from heedful.inference.translator import Translator
from heedful.inspection.alignment_head_selection import choose_unit
from heedful.inspection.confidence import Confidence
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.text.special_tokens import END

BATCH_TOKENS = 4096
SWAP_LEAST, SWAP_SAMPLE, SWAP_MARGIN = 20, 100, 1.1
"""Test for swapped files: minimum and maximum number of pairs, and the ratio of bits per byte above which they are."""


def evaluate_translation(
    trained: Translator,
    pairs: Sequence[tuple[str, ...]],
    *,
    beam: int = 4,
    length_penalty: float = 1.0,
    bleu_tokenizer: str = "auto",
    start_progress: StartProgress = no_progress,
    held_out: Sequence[int] | None = None,
    by_length: bool = False,
    by_position: bool = False,
) -> dict[str, Any]:
    """Score translations (BLEU, chrF), the calibration of word probabilities, and the perplexity of the references.

    The calibration error is that of the pairs `held_out` (indices; None: all), which confidence was not fitted on.
    `by_length` adds the scores of sources of similar length, `by_position` the loss of the references by position.
    """
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    trained_tokenizer = trained.training_text.bleu_tokenizer if trained.training_text else None
    tokenizer = choose_bleu_tokenizer(targets, bleu_tokenizer, trained_tokenizer)
    confidence = trained.confidence or Confidence(unit=choose_unit(targets))
    uncalibrated = copy(trained)
    uncalibrated.confidence = Confidence(unit=confidence.unit)
    decoding: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty}
    with start_progress("translating", len(sources)) as watch:
        translations = list(uncalibrated.iter_translate(sources, progress=watch, engine="torch", **decoding))
    outputs = [translation.text for translation in translations]
    scores = {**text_scores(outputs, targets, tokenizer), **copy_scores(outputs, sources, targets, tokenizer)}
    held_out = range(len(targets)) if held_out is None else held_out
    words = [[(word.text, word.probability) for word in translations[index].words] for index in held_out]
    probabilities, correct = word_correctness(words, [targets[index] for index in held_out], confidence.unit)
    raw = reliability_curve(probabilities, correct)
    error = f"{confidence.unit.removesuffix('s')}_calibration_error"
    curves, errors = {"raw": raw}, {error: raw.error}
    if not confidence.is_identity:
        curves["corrected"] = reliability_curve([confidence(probability) for probability in probabilities], correct)
        errors = {error: curves["corrected"].error, f"{error}_raw": raw.error}
    reliability = {name: asdict(curve) for name, curve in curves.items()}
    forced = teacher_forced_scores(trained, sources, targets, by_position=by_position)
    if by_length:
        forced["by_length"] = scores_by_length(*text_lengths(sources), translation_scores(outputs, targets, tokenizer))
    return {**scores, **decoding, **errors, "reliability": reliability, **forced}


def copy_scores(
    outputs: Sequence[str], sources: Sequence[str], references: Sequence[str], tokenizer: BleuTokenizer
) -> dict[str, Any]:
    """Compute scores that expose a model that only copies: BLEU and chrF of the sources themselves, the share
    of outputs that are copies of their source, and the number of different outputs and references."""
    copied = sample_scores(sources, references, tokenizer)
    copies = sum(
        output == source != target for output, source, target in zip(outputs, sources, references, strict=True)
    )
    return {
        "source_bleu": copied.bleu if copied.has_matches else 0.0,
        "source_chrf": copied.chrf,
        "copied_sources": copies / max(1, len(outputs)),
        "distinct_outputs": len(set(outputs)),
        "distinct_references": len(set(references)),
    }


def teacher_forced_scores(
    trained: TrainedModel, sources: list[str], targets: list[str], *, by_position: bool = False
) -> dict[str, Any]:
    """Compute perplexity and token calibration of the targets under teacher forcing."""
    texts = (trained.tokenizers[0], sources), (trained.tokenizers[-1], targets)
    sides = tuple(Sequences.from_lists(tokenizer.encode(side)) for tokenizer, side in texts)
    split = Split(sides, len(targets), TextSize.measure(targets))
    batches = PairBatches(*sides, max_tokens=BATCH_TOKENS, seed=0, shuffle=False)
    scores = evaluate_perplexity(trained.model, Seq2SeqLoss(), batches, split, trained.device)
    positions = {"by_position": losses_by_position(trained.model, batches, trained.device)} if by_position else {}
    return {**scores, "token_calibration_error": token_reliability(trained.model, batches).error, **positions}


def seem_swapped(trained: Translator, pairs: Sequence[tuple[str, ...]]) -> bool:
    """Whether the model predicts the sources from the targets much better than the targets from the sources.

    Uses a sample of pairs that fit the model in both directions, and whose sides are in the same script.
    """
    sample = [pairs[index] for index in evenly_spaced(len(pairs), SWAP_SAMPLE)]
    most = getattr(trained.model.config, "max_length", BATCH_TOKENS) - 2

    def fits(pair: tuple[str, ...]) -> bool:
        return all(len(ids) <= most for tokenizer in trained.tokenizers for ids in tokenizer.encode(list(pair)))

    fitting = [pair for pair in sample if fits(pair)]
    if len(fitting) < SWAP_LEAST:
        return False
    sources, targets = (list(side) for side in zip(*fitting, strict=True))
    forward, backward = (
        teacher_forced_scores(trained, *sides)["bits_per_byte"] for sides in ((sources, targets), (targets, sources))
    )
    return bool(forward > SWAP_MARGIN * backward)


def evaluate_text(
    trained: TrainedModel, pieces: Iterable[tuple[str, bool]], *, context: int | None = None, by_position: bool = False
) -> dict[str, Any]:
    """Compute the perplexity of running text in windows of the model's context length, or of `context` tokens.

    A context beyond the trained one works with every position encoding but a learned table. `by_position` adds the loss
    by position in the window.
    """
    chunks = list(pieces)
    encoded = trained.tokenizers[0].encode([text for text, _ in chunks])
    documents: list[list[int]] = [[]]
    for (_, last), ids in zip(chunks, encoded, strict=True):
        documents[-1] += [*ids, END] if last else ids
        if last:
            documents.append([])
    sides = (Sequences.from_lists([ids for ids in documents if ids]),)
    split = Split(sides, len(documents), TextSize.measure(text for text, _ in chunks))
    return evaluate_split(trained, split, context=context, by_position=by_position)


def evaluate_split(
    trained: TrainedModel,
    split: Split,
    *,
    share: float = 1.0,
    context: int | None = None,
    by_position: bool = False,
) -> dict[str, Any]:
    """Compute the perplexity of prepared token ids, or of an evenly spaced share of them."""
    config = trained.model.config
    if context is None:
        context = config.max_length if hasattr(config, "max_length") else 256
    elif getattr(config, "has_position_table", False) and context > config.max_length:
        raise UsageError(
            f"a context of {context} tokens is longer than the {config.max_length} positions that {trained.name} has "
            "learned; sinusoidal, rotary or alibi positions, or none, have no such limit"
        )
    rows = max(1, BATCH_TOKENS // context)
    batches = TextBatches(split.sides[0], context=context, rows=rows, seed=0, shuffle=False)
    limit = round(share * batches.labels_per_epoch)
    scores = evaluate_perplexity(trained.model, CausalLMLoss(), batches, split, trained.device, limit=limit)
    if by_position:
        scores["by_position"] = losses_by_position(trained.model, batches, trained.device, limit=limit)
    return scores
