"""Answer: questions about passages, an encoder that finds where the answer stands, exact match and F1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from heedful.data.batching import evenly_spaced
from heedful.data.dataset_preparation import PreparedData, Split
from heedful.data.doctor_report import CorpusReport
from heedful.data.passage_windows import PassageWindows
from heedful.data.qa_dataset import SpanBatches
from heedful.data.qa_dataset import train_question_tokenizer, prepare_questions, read_questions
from heedful.data.progress import StartProgress, no_progress
from heedful.errors import UsageError
from heedful.evaluation.perplexity import evaluate_perplexity
from heedful.evaluation.qa_evaluation import predict_spans, evaluate_answers
from heedful.evaluation.squad import AnswerPrediction, answer_scores, best_threshold
from heedful.files import write_atomic
from heedful.inference.question_answerer import QuestionAnswerer, AnsweringSettings, EncodedQuestion, encode_question
from heedful.inference.trained import TASK_FILE, TrainedModel
from heedful.models.model_config import ModelConfig
from heedful.objectives.answer_span_loss import AnswerSpanLoss
from heedful.text.tokenizer import Tokenizer
from heedful.training.defaults import ScalingRule, TrainingConditions, vocabulary_for, largest_size
from heedful.training.recipe import DataRecipe, Recipe
from heedful.training.tasks.task import (EvaluationOptions,
    Task,
    TrainingComponents,
    held_out_fraction,
    preparation_arguments,
    tokenizer_arguments,
)
from heedful.training.trainer import Evaluation

USUAL_WINDOW: int = DataRecipe.model_fields["max_length"].default
LONG_ANSWER = 0.999
"""The share of training answers that are no longer than the longest looked for."""


class QuestionAnsweringTask(Task):
    """A question's answer, in the words of a passage."""

    name = "answer"
    corpus_kind = "questions"
    description = "answers questions about a passage"
    selection_metric = "F1"
    score_note = "Exact match and F1 by SQuAD's published rule, the best over all references, with a 95% bootstrap interval."
    loss_unit = "place"
    example_arguments = '"question", "passage"'
    sample_columns = ("question", "model", "reference")
    appetite = ScalingRule(parameters_per_layer=12, stacks=1, min_epochs=3, max_epochs=20)
    pretrained_families = ("encoder",)
    head_prefixes = ("heads.answer_span",)

    def corpus_size(self, report: CorpusReport) -> str:
        return f"{report.usable:,} questions"

    def train_tokenizers(self, recipe: Recipe, report: CorpusReport, start_progress: StartProgress) -> tuple[Tokenizer, ...]:
        arguments = tokenizer_arguments(recipe, report.characters, start_progress)
        return (train_question_tokenizer(held_out=held_out_fraction(recipe), **arguments),)

    def prepare_data(
        self, recipe: Recipe, tokenizers: tuple[Tokenizer, ...], characters: int, start_progress: StartProgress
    ) -> PreparedData:
        return prepare_questions(
            tokenizer=tokenizers[0], windows=windows_of(recipe), **preparation_arguments(recipe, start_progress)
        )

    def validation_fraction(self, characters: int) -> float:
        return min(0.1, 1_000_000 / characters)

    def vocabulary_size(self, characters: int) -> int:
        return vocabulary_for(23, characters)

    def model_defaults(self, situation: TrainingConditions) -> dict[str, Any]:
        if situation.recurrent:
            raise UsageError("answer reads a passage from both sides at once: leave out --model recurrent")
        size, scarce = largest_size(situation, self.appetite), situation.low_resource
        return {"family": "encoder", **size, "norm_order": "pre", "positions": "rotary", "activation": "gelu",
                "embedding_scale": False, "segments": 2, "dropout": 0.2 if scarce else 0.1}  # fmt: skip

    def training_defaults(self, situation: TrainingConditions, model: dict[str, Any]) -> dict[str, Any]:
        """From a model, small steps that do not wash away what it knows: 5e-5 at 768 wide, more for narrower ones."""
        judged = 2000 if situation.gpu else 200  # each is a page to read, and a window has two labels
        shared = {"schedule": "linear", "label_smoothing": 0.0, "weight_decay": 0.01, "average": "none",
                  "eval_texts": judged, "eval_labels": 2 * judged}  # fmt: skip
        if situation.pretrained:
            rate = min(3e-4, 5e-5 * 768 / model["width"])
            return {**shared, "batch_tokens": 6144 if situation.gpu else 3072, "learning_rate": rate}
        rate = min(1e-3, 7e-4 * (256 / model["width"]) ** 0.5)
        return {**shared, "batch_tokens": 12_288 if situation.gpu else 4096, "learning_rate": rate}

    def max_epochs(self, situation: TrainingConditions) -> int:
        """Few from a model (Devlin 2019, A.3: two to four)."""
        return 4 if situation.pretrained else self.appetite.max_epochs

    def head_settings(self, data: PreparedData) -> dict[str, Any]:
        return {"tasks": ("answer_span",)}

    def finetune_settings(self, body: ModelConfig) -> dict[str, Any]:
        """Questions are few: some dropout is needed."""
        return {"dropout": max(0.1, getattr(body, "dropout", 0.0))}

    def derived_model_settings(self, settings: dict[str, Any], data: PreparedData) -> dict[str, Any]:
        return {"max_length": settings["data"].get("max_length", USUAL_WINDOW)}

    def task_settings(self, recipe: Recipe, data: PreparedData) -> AnsweringSettings:
        return answering(windows_of(recipe), data)

    def split_size(self, split: Split) -> str:
        windows, tokens = len(split.sides[0]), int(split.sides[0].lengths.sum())
        return f"{split.examples:,} questions, in {windows:,} windows of {tokens:,} tokens together"

    def calibrate(self, best: TrainedModel, data: PreparedData, start_progress: StartProgress) -> None:
        """The threshold below which there is no answer, where some questions have none: the best one for the first half
        of the validation questions."""
        assert best.folder is not None, "a trained model has a folder"
        if any(len(texts) == 2 for texts in (*data.train.texts, *data.valid.texts)):
            judged = predict_spans(best, data.valid.texts[: len(data.valid.texts) // 2], start_progress=start_progress)
            both = len({bool(each.references) for each in judged}) == 2
            best.settings = best.settings.with_changes(threshold=best_threshold(judged)[1] if both else 0.0)
            write_atomic(best.folder / TASK_FILE, best.settings.model_dump_json(indent=2) + "\n")

    def training_components(self, recipe: Recipe, data: PreparedData, device: torch.device) -> TrainingComponents:
        batching: dict[str, Any] = {"tokens": recipe.training.batch_tokens, "seed": recipe.seed}
        train = SpanBatches(*data.train.sides, **batching)
        valid = SpanBatches(*data.valid.sides, shuffle=False, **batching)
        objective, how = AnswerSpanLoss(), answering(windows_of(recipe), data)
        shown = [data.valid.texts[place] for place in evenly_spaced(len(data.valid.texts), recipe.training.eval_texts)]
        references = [texts[2:] for texts in shown]
        has_unanswerable = any(not each for each in references)

        @cache
        def asked() -> list[EncodedQuestion]:
            return [encode_question(question, passage, data.tokenizers[0], how) for question, passage, *_ in shown]

        def evaluate(model: nn.Module) -> Evaluation:
            loss = evaluate_perplexity(model, objective, valid, data.valid, device, limit=recipe.training.eval_labels).loss
            best = [answer.spans[0] for answer in QuestionAnswerer(model, data.tokenizers[0], how).find(asked())]
            judged = [AnswerPrediction(span.text, span.score, texts) for span, texts in zip(best, references, strict=True)]
            scores = answer_scores(judged, best_threshold(judged)[1] if has_unanswerable else None)
            lines = (f"question   {shown[0][0]}", f"model      {judged[0].text}", f"reference  {first(references[0])}")
            return Evaluation(
                scores.f1, {"valid_loss": loss, "exact_match": scores.exact_match, "f1": scores.f1}, lines
            )

        def write(model: Any, texts: int, at_most: int | None) -> None:
            QuestionAnswerer(model, data.tokenizers[0], how).find(asked()[:texts])

        return TrainingComponents(objective, train, valid, evaluate, len(shown), write)

    def evaluate_files(self, trained: TrainedModel, files: Sequence[Path], options: EvaluationOptions) -> dict[str, Any]:
        asked = read_questions(files, on_bad_line=options.on_bad_line)
        texts = [(each.question, each.passage, *(answer.text for answer in each.answers)) for each in asked]
        return evaluate_answers(trained, texts, start_progress=options.get("start_progress", no_progress))

    def evaluate_split(self, trained: TrainedModel, split: Split, start_progress: StartProgress) -> dict[str, Any]:
        return evaluate_answers(trained, split.texts[fitted(trained.settings, split) :], start_progress=start_progress)

    def headline(self, scores: dict[str, Any]) -> str:
        return (
            f"exact match {scores['exact_match']:.1%}, F1 {scores['f1']:.1%} "
            f"(95%: {scores['f1_low']:.1%} to {scores['f1_high']:.1%}), of {scores['questions']:,} questions"
        )

    def samples(self, best: TrainedModel, split: Split) -> list[tuple[str, ...]]:
        shown = split.texts[:: max(1, len(split.texts) // 5)][:5]
        found = best.answers([(question, passage) for question, passage, *_ in shown])
        return [
            (question, answer.text or NOTHING, first(references))
            for (question, _, *references), answer in zip(shown, found, strict=True)
        ]


NOTHING = "(no answer)"


def first(references: Sequence[str]) -> str:
    return references[0] if references else NOTHING


def windows_of(recipe: Recipe) -> PassageWindows:
    return PassageWindows(max_tokens=recipe.data.max_length, stride=recipe.data.stride)


def answering(windows: PassageWindows, data: PreparedData) -> AnsweringSettings:
    """How to read, and how long answers are, from what was trained on."""
    places = data.train.sides[1].ids.reshape(-1, 3)
    lengths = (places[:, 2].astype(np.int64) - places[:, 1] + 1)[places[:, 1] > 0]
    longest = int(np.quantile(lengths, LONG_ANSWER, method="higher")) if len(lengths) else 1
    return AnsweringSettings(**windows.model_dump(), max_answer_tokens=longest)


def fitted(how: AnsweringSettings | None, split: Split) -> int:
    """Questions of the split that the threshold was chosen by, which cannot judge it."""
    return len(split.texts) // 2 if how is not None and how.threshold is not None else 0


TASK = QuestionAnsweringTask()
