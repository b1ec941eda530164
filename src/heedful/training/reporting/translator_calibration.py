"""Calibration of a trained translator: its alignment head, its word confidence and its source lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heedful.data.batching import evenly_spaced
from heedful.data.dataset import PreparedData
from heedful.data.progress import StartProgress
from heedful.evaluation.calibration import fit_useful_confidence
from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.select import training_backend
from heedful.generation.decoding_config import DEFAULT_BEAM
from heedful.generation.input_splitting import InputSplitting
from heedful.generation.search.settings import SearchSettings
from heedful.inference.translator import Translator
from heedful.inspection.alignment_head_selection import choose_unit, select_head
from heedful.inspection.attention_alignment import Alignment, has_cross_attention
from heedful.inspection.confidence import Confidence
from heedful.inspection.hmm_aligner import statistical_alignments
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import Unit, split_words, tokenize_words, word_probabilities, words_from_tokens

CONFIDENCE_SHARE = {"cpu": 0.3}
"""Share of the texts that are translated to fit word confidence, where translating is slow."""
ALIGNER_CELLS = 4000
"""(Source word, target word) cells that the statistical aligner is fitted on, for each text: bounds its time and
memory."""
WordPair = tuple[Sequence[str], Sequence[str]]


def calibrate_translator(best: Translator, data: PreparedData, start_progress: StartProgress, texts: int) -> None:
    """Fit alignment, confidence and input splitting on at most `texts` validation texts, and set them on `best`."""
    best.alignment = select_alignment_head(best, data, start_progress, texts)
    best.confidence = calibrate_word_confidence(best, data, start_progress, texts)
    sources = [source for source, _ in data.valid.texts]
    best.splitting = InputSplitting.measure(data.train.sides[0].lengths, sources, best.model.config)


def select_alignment_head(
    best: Translator, data: PreparedData, start_progress: StartProgress, limit: int
) -> Alignment | None:
    """Select the head that agrees most with a statistical aligner on validation pairs; None without attention."""
    if not has_cross_attention(best.model):
        return None
    texts = [data.valid.texts[index] for index in evenly_spaced(len(data.valid.texts), limit)]
    units = choose_unit([source for source, _ in texts]), choose_unit([target for _, target in texts])
    source_tokenizer, target_tokenizer = best.tokenizers[0], best.tokenizers[-1]
    pairs = [
        (tokenize_words(source, source_tokenizer, units[0]), tokenize_words(target, target_tokenizer, units[1]))
        for source, target in texts
    ]
    cells = sum(len(source.words) * len(target.words) for source, target in pairs) / len(pairs)
    sampled = sample_training_pairs(data, units, int(limit * ALIGNER_CELLS / max(1.0, cells)))
    words = [*((source.words, target.words) for source, target in pairs), *sampled]
    with start_progress("aligning words", len(words)) as watch:
        links = statistical_alignments(words, units, progress=watch)
    with start_progress("comparing heads", len(pairs)) as watch:
        aligner = f"an HMM aligner fitted on {len(words):,} pairs"
        return select_head(best.model, pairs, links, units=units, aligner=aligner, progress=watch)


def sample_training_pairs(data: PreparedData, units: tuple[Unit, Unit], limit: int) -> list[WordPair]:
    """At most `limit` training pairs, evenly spaced over the corpus."""
    total = len(data.train.sides[0])
    indices = np.linspace(0, total - 1, min(total, limit)).astype(int).tolist()
    sides = []
    for side, tokenizer, unit in zip(data.train.sides, (data.tokenizers[0], data.tokenizers[-1]), units, strict=True):
        texts = tokenizer.decode([side[index].tolist() for index in indices])
        sides.append([split_words(text, unit) for text in texts])
    return list(zip(*sides, strict=True))


def calibrate_word_confidence(
    best: Translator, data: PreparedData, start_progress: StartProgress, limit: int
) -> Confidence:
    """Fit how often words of a given probability are correct, on evenly spaced validation texts: half at most."""
    limit = round(limit * CONFIDENCE_SHARE.get(best.device.type, 1.0))
    count = len(data.valid.texts)
    texts = [data.valid.texts[index] for index in evenly_spaced(count, max(1, min(limit, count // 2)))]
    targets = [target for _, target in texts]
    unit = choose_unit(targets)
    sources = best.tokenizers[0].encode([source for source, _ in texts])
    with start_progress("calibrating probabilities", len(texts)) as watch:
        limits = evaluation_length_limits(best.tokenizers[-1], targets)
        request = SearchRequest(sources, SearchSettings(beam=DEFAULT_BEAM), max_lengths=limits, progress=watch)
        outputs = training_backend(best.model).translate(request)
    words = [
        word_probabilities(words_from_tokens(first.tokens, best.tokenizers[-1], unit), first.token_log_probabilities)
        for first, *_ in outputs
    ]
    return fit_useful_confidence(words, targets, unit)


def evaluation_length_limits(tokenizer: Tokenizer, references: Sequence[str]) -> list[int]:
    """Length limits for translations of validation texts: a little beyond the reference, so weak models stay fast."""
    return [len(reference) * 5 // 4 + 5 for reference in tokenizer.encode(list(references))]
