"""Evaluate extractive answers on held-out questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heedful.data.progress import StartProgress, no_progress
from heedful.evaluation.squad import AnswerPrediction, answer_scores
from heedful.inference.question_answerer import QuestionAnswerer

BATCH_QUESTIONS = 256
"""Questions answered per progress update."""


def predict_spans(
    trained: QuestionAnswerer, texts: Sequence[tuple[str, ...]], *, start_progress: StartProgress = no_progress
) -> list[AnswerPrediction]:
    """Predict the best span of each (question, passage, *references), even where "no answer" would score higher."""
    predictions: list[AnswerPrediction] = []
    with start_progress("answering", len(texts)) as watch:
        for start in range(0, len(texts), BATCH_QUESTIONS):
            batch = texts[start : start + BATCH_QUESTIONS]
            answers = trained.answer([question for question, *_ in batch], [passage for _, passage, *_ in batch])
            for (_, _, *references), answer in zip(batch, answers, strict=True):
                predictions.append(AnswerPrediction(answer.spans[0].text, answer.spans[0].score, tuple(references)))
            watch(len(batch))
    return predictions


def evaluate_answers(
    trained: QuestionAnswerer, texts: Sequence[tuple[str, ...]], *, start_progress: StartProgress = no_progress
) -> dict[str, Any]:
    """Score the model's answers by exact match and F1."""
    predictions = predict_spans(trained, texts, start_progress=start_progress)
    return answer_scores(predictions, trained.settings.threshold)
