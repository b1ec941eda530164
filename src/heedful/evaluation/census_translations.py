"""BLEU and chrF of a translator's census: translate freely with each part ablated, and score the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heedful.data.batching import evenly_spaced
from heedful.data.progress import StartProgress
from heedful.errors import UsageError
from heedful.evaluation.bleu_tokenizer import choose_bleu_tokenizer
from heedful.evaluation.text_metrics import SampleScores, sample_scores
from heedful.inference.trained_model import TrainedModel
from heedful.inference.translator import Translator
from heedful.inspection.census.census_result import AblateTo, Census, PartCensus, TranslationBaseline
from heedful.interventions.kinds import Ablate, Intervention


def score_translations(
    census: Census,
    trained: TrainedModel,
    examples: Sequence[tuple[str, str]],
    count: int,
    start_progress: StartProgress,
) -> Census:
    """Add the BLEU and chrF of at most `count` evenly spaced texts, translated greedily with each part ablated.

    Only the first of the census's ablations (zero or mean) is scored.
    """
    if not isinstance(trained, Translator):
        raise UsageError(f"{trained.name} is {trained.kind}: only a translator's census has translations to score")
    sample = [examples[index] for index in evenly_spaced(len(examples), count)]
    sources, targets = (list(side) for side in zip(*sample, strict=True))
    tokenizer = choose_bleu_tokenizer(targets)

    def score(interventions: Sequence[Intervention]) -> SampleScores:
        outputs = trained.translate(sources, beam=1, keep=False, interventions=interventions)
        return sample_scores(outputs, targets, tokenizer)

    base, to, parts = score([]), census.to[0], []
    with start_progress("translating", len(census.parts)) as progress:
        for part in census.parts:
            parts.append(
                _with_change(part, to, base, score([Ablate(part.part, to=to)])) if to in part.changes else part
            )
            progress(1)
    return replace(census, parts=tuple(parts), translations=TranslationBaseline(len(sample), base.bleu, base.chrf))


def _with_change(part: PartCensus, to: AblateTo, base: SampleScores, scores: SampleScores) -> PartCensus:
    change = replace(part.changes[to], bleu=scores.bleu - base.bleu, chrf=scores.chrf - base.chrf)
    return replace(part, changes={**part.changes, to: change})
