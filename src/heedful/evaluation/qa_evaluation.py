"""A model's answers against the references of held-out questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heedful.data.progress import StartProgress, no_progress
from heedful.evaluation.squad import AnswerPrediction, answer_scores
from heedful.inference.trained import TrainedModel

BATCH_QUESTIONS = 256
"""Questions answered between two looks at the clock."""


def predict_spans(
    trained: TrainedModel, texts: Sequence[tuple[str, ...]], *, start_progress: StartProgress = no_progress, **options: Any
) -> list[AnswerPrediction]:
    """For each question, passage and references the best span, whether it would be given as an answer or not."""
    found: list[AnswerPrediction] = []
    with start_progress("answering", len(texts)) as watch:
        for start in range(0, len(texts), BATCH_QUESTIONS):
            some = texts[start : start + BATCH_QUESTIONS]
            answers = trained.answers([(question, passage) for question, passage, *_ in some], **options)
            for (_, _, *references), answer in zip(some, answers, strict=True):
                found.append(AnswerPrediction(answer.spans[0].text, answer.spans[0].score, tuple(references)))
            watch(len(some))
    return found


def evaluate_answers(trained: TrainedModel, texts: Sequence[tuple[str, ...]], *, start_progress: StartProgress = no_progress) -> dict[str, Any]:
    """Every score of the answers that the model gives."""
    threshold = trained.settings.threshold if trained.settings is not None else None
    return answer_scores(predict_spans(trained, texts, start_progress=start_progress), threshold).to_json()
