"""What is found out about a translator once it is trained: which head aligns, what its probabilities mean, and what it
was made to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from heedful.data.dataset_preparation import PreparedData
from heedful.data.progress import StartProgress
from heedful.evaluation.calibration import word_correctness
from heedful.files import write_atomic
from heedful.generation import input_splitting as reading
from heedful.generation.input_splitting import InputSplitting
from heedful.generation.sequence_to_sequence import translate_ids
from heedful.inference.trained import TrainedModel
from heedful.inspection import attention_alignment as alignment
from heedful.inspection import confidence
from heedful.inspection.attention_alignment import Alignment, has_cross_attention
from heedful.inspection.confidence import Confidence, fit_confidence
from heedful.inspection.head_selection import select_head, choose_unit
from heedful.inspection.hmm_aligner import WordLinks, align_words
from heedful.text.word_tokens import Unit, tokenize_words, words_from_tokens, word_probabilities, split_words

MAX_VALIDATION_PAIRS = 1000
"""Validation pairs that heads are judged by, at most."""
MAX_ALIGNER_CELLS = 4_000_000
"""Words against words that the statistical aligner learns from: this bounds its seconds and its memory."""


def calibrate_translator(best: TrainedModel, data: PreparedData, start_progress: StartProgress) -> None:
    """Measure, tell `best`, and write alignment.json, confidence.json and input_splitting.json into its folder."""
    assert best.folder is not None, "a trained model has a folder"
    best.alignment, best.confidence = (
        select_alignment_head(best, data, start_progress),
        calibrate_word_confidence(best, data, start_progress),
    )
    sources = [source for source, _ in data.valid.texts]
    best.reading = InputSplitting.measure(data.train.sides[0].lengths, sources, best.model.config)
    files = {alignment.ALIGNMENT_FILE: best.alignment, confidence.CONFIDENCE_FILE: best.confidence, reading.FILE: best.reading}
    for name, found in files.items():
        if found is not None:
            write_atomic(best.folder / name, found.model_dump_json(indent=2) + "\n")


def select_alignment_head(best: TrainedModel, data: PreparedData, start_progress: StartProgress) -> Alignment | None:
    """The head whose links agree most with a statistical aligner's on validation pairs; None where there are none."""
    if not has_cross_attention(best.model):
        return None
    texts = data.valid.texts[:MAX_VALIDATION_PAIRS]
    units = choose_unit([source for source, _ in texts]), choose_unit([target for _, target in texts])
    ends = best.tokenizers[0], best.tokenizers[-1]
    pairs = [(tokenize_words(one, ends[0], units[0]), tokenize_words(other, ends[1], units[1])) for one, other in texts]
    cells = sum(len(source.words) * len(target.words) for source, target in pairs) / len(pairs)
    words = [*((source.words, target.words) for source, target in pairs), *sample_training_pairs(data, units, cells)]
    with start_progress("aligning words", len(words)) as watch:
        links = statistical_alignments(words, units, progress=watch)
    with start_progress("comparing heads", len(pairs)) as watch:
        aligner = f"an HMM aligner that learnt from {len(words):,} pairs"
        return select_head(best.model, pairs, links, units=units, aligner=aligner, progress=watch)


Words = tuple[Sequence[str], Sequence[str]]


def statistical_alignments(pairs: Sequence[Words], units: tuple[Unit, Unit], **options: Any) -> list[WordLinks]:
    """A statistical aligner's. A word has many characters: then only what writes characters can be asked."""
    if units == ("characters", "words"):
        turned = align_words([(target, source) for source, target in pairs], symmetric=False, **options)
        return [frozenset((source, target) for target, source in links) for links in turned]
    return align_words(pairs, symmetric=units[0] == units[1], **options)


def sample_training_pairs(data: PreparedData, units: tuple[Unit, Unit], cells: float) -> list[Words]:
    """Training pairs in words, from all over the corpus, as many as `CELLS` allows at so many cells a pair."""
    there = len(data.train.sides[0])
    chosen = np.linspace(0, there - 1, min(there, int(MAX_ALIGNER_CELLS / max(1.0, cells)))).astype(int).tolist()
    sides = []
    for side, tokenizer, unit in zip(data.train.sides, (data.tokenizers[0], data.tokenizers[-1]), units, strict=True):
        texts = tokenizer.decode([side[index].tolist() for index in chosen])
        sides.append([split_words(text, unit) for text in texts])
    return list(zip(*sides, strict=True))


def calibrate_word_confidence(best: TrainedModel, data: PreparedData, start_progress: StartProgress) -> Confidence:
    """How often words of a given probability are right, on the first half of the validation text, or less of it."""
    most = 1000 if best.device.type == "cuda" else 300
    texts = data.valid.texts[: max(1, min(most, len(data.valid.texts) // 2))]
    unit = choose_unit([target for _, target in texts])
    sources = best.tokenizers[0].encode([source for source, _ in texts])
    with start_progress("checking probabilities", len(texts)) as watch:
        found = translate_ids(
            best.model, sources, at_most=evaluation_length_limits(data, range(len(texts))), progress=watch
        )
    words = [
        word_probabilities(words_from_tokens(first.tokens, best.tokenizers[-1], unit), first.token_log_probabilities)
        for first, *_ in found
    ]
    said, right = word_correctness(words, [target for _, target in texts], unit)
    return fit_confidence(said, right, unit=unit, texts=len(texts))


def evaluation_length_limits(data: PreparedData, places: Iterable[int]) -> list[int]:
    """Tokens after which a judged text is cut off: a model that has learned little would ramble on, and what runs that
    far past its reference is wrong anyway."""
    target = data.valid.sides[1]
    return [len(target[place]) * 5 // 4 + 5 for place in places]
