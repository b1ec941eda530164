"""Compare two models on the same held-out texts: their scores by text length, and the texts that differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heedful.data.corpus_files import as_columns
from heedful.data.corpus_readers import read_pairs
from heedful.data.labeled_reader import read_labeled
from heedful.data.line_reader import OnBadLine
from heedful.data.progress import StartProgress, no_progress
from heedful.errors import UsageError
from heedful.evaluation.bleu_tokenizer import choose_bleu_tokenizer
from heedful.evaluation.length_buckets import length_buckets
from heedful.evaluation.model_comparison import distinct_names, load_pair
from heedful.evaluation.text_metrics import sample_scores
from heedful.inference.classifier import Classifier
from heedful.inference.trained_model import TrainedModel
from heedful.inference.translator import Translator
from heedful.inspection.census.paired_bootstrap import Interval, PairedBootstrap

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LengthBucket:
    """The scores of both models on texts of similar length, with a paired bootstrap of their difference."""

    shortest: int
    longest: int
    """Words."""
    texts: int
    scores: tuple[float, float]
    difference: Interval
    """Second minus first."""
    bleu: tuple[float, float] | None = None


@dataclass(frozen=True)
class ComparedText:
    """A text with both answers, which score differently."""

    text: str
    reference: str
    answers: tuple[str, str]
    scores: tuple[float, float]


@dataclass(frozen=True)
class FileComparison:
    """Scores of two models on the same texts: mean over texts, all of them and by length."""

    names: tuple[str, str]
    task: str
    metric: str
    texts: int
    same_answers: float
    overall: LengthBucket
    buckets: tuple[LengthBucket, ...]
    examples: tuple[ComparedText, ...]
    """The texts whose scores differ most, in both directions."""

    def to_json(self) -> dict[str, Any]:
        buckets = [{**asdict(row), "difference": row.difference.to_json()} for row in (self.overall, *self.buckets)]
        return {**asdict(self), "overall": buckets[0], "buckets": buckets[1:]}


@dataclass(frozen=True)
class _Answers:
    """Both models' answers to the texts of a file, and the score of each."""

    metric: str
    texts: list[str]
    references: list[str]
    answers: tuple[list[str], list[str]]
    scores: Scores
    """2 × texts, from 0 to 100."""
    is_translation: bool


def compare_files(
    first: TrainedModel | str | Path,
    second: TrainedModel | str | Path,
    *files: str | Path,
    columns: str | Sequence[str | int] = (),
    on_bad_line: OnBadLine = "fail",
    examples: int = 3,
    device: str = "auto",
    start_progress: StartProgress = no_progress,
) -> FileComparison:
    """Compare two translators or classifiers on held-out files, which are read as for training.

    Translators are scored by the chrF of each text, classifiers by their accuracy; the interval of a difference is a
    paired bootstrap over texts.
    """
    if not files:
        raise UsageError("nothing to compare on: name the held-out files")
    models = load_pair(first, second, device)
    paths, options = [Path(file) for file in files], {"columns": as_columns(columns), "on_bad_line": on_bad_line}
    if isinstance(models[0], Translator):
        answers = _translations(models, paths, options, start_progress)
    elif isinstance(models[0], Classifier):
        answers = _labels(models, paths, options, start_progress)
    else:
        raise UsageError(
            f"files are compared for translators and classifiers, and {models[0].name} is {models[0].kind}; score each "
            "model with heedful evaluate"
        )
    lengths = np.array([len(text.split()) for text in answers.texts])
    same = [first == second for first, second in zip(*answers.answers, strict=True)]
    return FileComparison(
        distinct_names(*models),
        models[0].task,
        answers.metric,
        len(answers.texts),
        float(np.mean(same)),
        _bucket(answers, lengths, np.arange(len(lengths))),
        tuple(_bucket(answers, lengths, indices) for indices in length_buckets(lengths)),
        tuple(_examples(answers, examples)),
    )


def _bucket(answers: _Answers, lengths: npt.NDArray[np.int64], indices: npt.NDArray[np.int64]) -> LengthBucket:
    first, second = answers.scores[:, indices]
    difference = PairedBootstrap(np.ones(len(indices))).mean(second - first)
    return LengthBucket(
        int(lengths[indices].min()),
        int(lengths[indices].max()),
        len(indices),
        (float(first.mean()), float(second.mean())),
        difference,
        _bleu(answers, indices) if answers.is_translation else None,
    )


def _bleu(answers: _Answers, indices: npt.NDArray[np.int64]) -> tuple[float, float]:
    references = [answers.references[index] for index in indices]
    tokenizer = choose_bleu_tokenizer(answers.references)
    first, second = ([side[index] for index in indices] for side in answers.answers)
    return sample_scores(first, references, tokenizer).bleu, sample_scores(second, references, tokenizer).bleu


def _examples(answers: _Answers, count: int) -> list[ComparedText]:
    """The texts with the largest score differences: half where the first model is better, half where the second is."""
    differences = answers.scores[1] - answers.scores[0]
    order = np.argsort(differences, kind="stable")
    chosen = [*order[: (count + 1) // 2], *order[::-1][: count // 2]]
    return [
        ComparedText(
            answers.texts[index],
            answers.references[index],
            (answers.answers[0][index], answers.answers[1][index]),
            (float(answers.scores[0][index]), float(answers.scores[1][index])),
        )
        for index in dict.fromkeys(chosen)
        if differences[index]
    ]


def _translations(
    models: Sequence[Any], files: Sequence[Path], options: dict[str, Any], start_progress: StartProgress
) -> _Answers:
    from sacrebleu.metrics.chrf import CHRF

    pairs = list(read_pairs(files, **options))
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    answers = []
    for model in models:
        with start_progress(f"translating with {model.short_name}", len(sources)) as watch:
            answers.append(model.translate(sources, progress=watch))
    metric = CHRF()
    scores = [
        [metric.sentence_score(output, [reference]).score for output, reference in zip(side, references, strict=True)]
        for side in answers
    ]
    return _Answers("mean chrF of a text", sources, references, (answers[0], answers[1]), np.array(scores), True)


def _labels(
    models: Sequence[Any], files: Sequence[Path], options: dict[str, Any], start_progress: StartProgress
) -> _Answers:
    rows = list(read_labeled(files, **options))
    texts = ["\t".join(row.texts) for row in rows]
    references = [" ".join(sorted(row.labels)) for row in rows]
    answers = []
    for model in models:
        with start_progress(f"classifying with {model.short_name}", len(texts)):
            results = model.iter_classify(texts)
            answers.append([" ".join(sorted(label.name for label in result.labels)) for result in results])
    scores = [[100.0 * (a == b) for a, b in zip(side, references, strict=True)] for side in answers]
    return _Answers("accuracy in percent", texts, references, (answers[0], answers[1]), np.array(scores), False)
