"""A model's answers against the references of held-out questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heedful.data.stage_progress import Stages, unseen
from heedful.evaluation.squad import Judged, answer_scores
from heedful.inference.trained import TrainedModel

AT_ONCE = 256
"""Questions answered between two looks at the clock."""


def best_spans(
    trained: TrainedModel, texts: Sequence[tuple[str, ...]], *, stages: Stages = unseen, **options: Any
) -> list[Judged]:
    """For each question, passage and references the best span, whether it would be given as an answer or not."""
    found: list[Judged] = []
    with stages("answering", len(texts)) as watch:
        for start in range(0, len(texts), AT_ONCE):
            some = texts[start : start + AT_ONCE]
            answers = trained.answers([(question, passage) for question, passage, *_ in some], **options)
            for (_, _, *references), answer in zip(some, answers, strict=True):
                found.append(Judged(answer.spans[0].text, answer.spans[0].score, tuple(references)))
            watch(len(some))
    return found


def judge_answers(trained: TrainedModel, texts: Sequence[tuple[str, ...]], *, stages: Stages = unseen) -> dict[str, Any]:
    """Every score of the answers that the model gives."""
    threshold = trained.settings.threshold if trained.settings is not None else None
    return answer_scores(best_spans(trained, texts, stages=stages), threshold).to_json()
