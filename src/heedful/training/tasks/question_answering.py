"""The `answer` task: questions about passages, an encoder that predicts answer spans, exact match and F1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful.data.batching import evenly_spaced, evenly_split
from heedful.data.corpus_files import CorpusFiles
from heedful.data.dataset import PreparedData, Split
from heedful.data.doctor_report import CorpusReport
from heedful.data.passage_windows import PassageWindows
from heedful.data.progress import StartProgress
from heedful.data.qa_dataset import SpanBatches, prepare_questions, train_question_tokenizer
from heedful.data.qa_reader import read_questions
from heedful.evaluation.perplexity import evaluate_perplexity
from heedful.evaluation.qa_evaluation import evaluate_answers, predict_spans
from heedful.evaluation.squad import AnswerPrediction, answer_scores, best_threshold
from heedful.inference.question_answerer import AnsweringSettings, EncodedQuestion, QuestionAnswerer, encode_question
from heedful.models.encoder import Encoder
from heedful.models.model_config import ModelConfig
from heedful.objectives.answer_span_loss import AnswerSpanLoss
from heedful.training.defaults import ScalingRule, TrainingConditions, largest_size
from heedful.training.recipe import DataRecipe, Recipe
from heedful.training.tasks import EvaluationOptions
from heedful.training.tasks.task import MainScore, Task, Tokenizers, TrainingComponents
from heedful.training.trainer import Evaluation

CARD_SAMPLES = 5
MIN_F1 = 0.1
"""A model below this has not learned to answer."""
DEFAULT_WINDOW: int = DataRecipe.model_fields["max_length"].default
ANSWER_LENGTH_QUANTILE = 0.999
"""Quantile of the training answers' lengths that limits predicted spans."""
NO_ANSWER = "(no answer)"


class QuestionAnsweringTask(Task[QuestionAnswerer]):
    """Extractive question answering, with or without unanswerable questions."""

    name = "answer"
    corpus_kind = "questions"
    description = "answers questions about a passage"
    main_score = MainScore("f1", "F1", ".1%")
    selection_metric = "F1"
    score_note = "Exact match and F1 as in SQuAD (best over the references), with a 95% bootstrap interval."
    loss_unit = "span position"
    example_arguments = '"question", "passage"'
    sample_columns = ("question", "model", "reference")
    scaling_rule = ScalingRule(parameters_per_layer=12, stacks=1, min_epochs=3, max_epochs=20, finetune_epochs=4)
    vocabulary_factor = 23
    pretrained_families = ("encoder",)
    head_prefixes = ("heads.answer_span",)

    def corpus_size(self, report: CorpusReport) -> str:
        return f"{report.usable:,} questions"

    def train_tokenizers(self, recipe: Recipe, files: CorpusFiles, characters: int) -> Tokenizers:
        return (train_question_tokenizer(files, *recipe.tokenizer.training(characters)),)

    def prepare_data(self, recipe: Recipe, files: CorpusFiles, tokenizers: Tokenizers, characters: int) -> PreparedData:
        return prepare_questions(files, tokenizers[0], windows=passage_windows(recipe))

    def validation_fraction(self, characters: int) -> float:
        return min(0.1, 1_000_000 / characters)

    def model_defaults(self, conditions: TrainingConditions) -> dict[str, Any]:
        size, scarce = largest_size(conditions, self.scaling_rule), conditions.low_resource
        return {"family": "encoder", **size, "norm_order": "pre", "positions": "rotary", "activation": "gelu",
                "embedding_scale": False, "segments": 2, "dropout": 0.2 if scarce else 0.1}  # fmt: skip

    def training_defaults(self, conditions: TrainingConditions, model: dict[str, Any]) -> dict[str, Any]:
        """Fine-tuning uses a low learning rate: 5e-5 at width 768, more for narrower models."""
        questions = 2000 if conditions.gpu else 200  # evaluated; a window has two labels
        shared = {"schedule": "linear", "label_smoothing": 0.0, "weight_decay": 0.01, "average": "none",
                  "eval_texts": questions, "eval_labels": 2 * questions}  # fmt: skip
        if conditions.pretrained:
            rate = min(3e-4, 5e-5 * 768 / model["width"])
            return {**shared, "batch_tokens": 6144 if conditions.gpu else 3072, "learning_rate": rate}
        rate = min(1e-3, 7e-4 * (256 / model["width"]) ** 0.5)
        return {**shared, "batch_tokens": 12_288 if conditions.gpu else 4096, "learning_rate": rate}

    def head_settings(self, data: PreparedData) -> dict[str, Any]:
        return {"tasks": ("answer_span",)}

    def finetune_settings(self, body: ModelConfig) -> dict[str, Any]:
        return {"dropout": max(0.1, getattr(body, "dropout", 0.0))}

    def derived_model_settings(self, settings: dict[str, Any], data: PreparedData) -> dict[str, Any]:
        return {"max_length": settings["data"].get("max_length", DEFAULT_WINDOW)}

    def task_settings(self, recipe: Recipe, data: PreparedData) -> AnsweringSettings:
        return answering_settings(recipe, data)

    def split_size(self, split: Split) -> str:
        windows, tokens = len(split.sides[0]), int(split.sides[0].lengths.sum())
        return f"{split.examples:,} questions in {windows:,} windows, {tokens:,} tokens"

    def calibrate(self, best: QuestionAnswerer, data: PreparedData, start_progress: StartProgress, texts: int) -> None:
        """Fit the no-answer threshold on half of the validation questions, if some are unanswerable."""
        if any(len(texts) == 2 for texts in (*data.train.texts, *data.valid.texts)):
            fitted, _ = calibration_halves(data.valid)
            chosen = [fitted[index] for index in evenly_spaced(len(fitted), texts)]
            predictions = predict_spans(best, chosen, start_progress=start_progress)
            has_both = len({bool(prediction.references) for prediction in predictions}) == 2
            best.settings = best.settings.with_changes(threshold=best_threshold(predictions)[1] if has_both else 0.0)

    def training_components(self, recipe: Recipe, data: PreparedData, device: torch.device) -> TrainingComponents:
        batching: dict[str, Any] = {"max_tokens": recipe.training.batch_tokens, "seed": recipe.seed}
        train = SpanBatches(*data.train.sides, **batching)
        valid = SpanBatches(*data.valid.sides, shuffle=False, **batching)
        objective, settings = AnswerSpanLoss(), answering_settings(recipe, data)
        indices = evenly_spaced(len(data.valid.texts), recipe.training.eval_texts)
        examples = [data.valid.texts[index] for index in indices]
        references = [texts[2:] for texts in examples]
        has_unanswerable = not all(references)

        @cache
        def encoded() -> list[EncodedQuestion]:
            return [encode_question(example[0], example[1], data.tokenizers[0], settings) for example in examples]

        def evaluate(model: Encoder) -> Evaluation:
            scored = evaluate_perplexity(model, objective, valid, data.valid, device, limit=recipe.training.eval_labels)
            answers = QuestionAnswerer(model, data.tokenizers, settings=settings).extract(encoded())
            predictions = [
                AnswerPrediction(answer.spans[0].text, answer.spans[0].score, texts)
                for answer, texts in zip(answers, references, strict=True)
            ]
            scores = answer_scores(predictions, best_threshold(predictions)[1] if has_unanswerable else None)
            reference = first_reference(references[0])
            sample = (f"question   {examples[0][0]}", f"model      {predictions[0].text}", f"reference  {reference}")
            metrics = {"valid_loss": scored["loss"], "exact_match": scores["exact_match"], "f1": scores["f1"]}
            return Evaluation(scores["f1"], metrics, sample)

        def generate(model: Encoder, texts: int, at_most: int | None) -> None:
            QuestionAnswerer(model, data.tokenizers, settings=settings).extract(encoded()[:texts])

        return TrainingComponents(objective, train, valid, evaluate, len(examples), generate)

    def evaluate_files(
        self, trained: QuestionAnswerer, files: Sequence[Path], options: EvaluationOptions
    ) -> dict[str, Any]:
        rows = read_questions(files, columns=options.columns, on_bad_line=options.on_bad_line)
        texts = [(row.question, row.passage, *(answer.text for answer in row.answers)) for row in rows]
        return evaluate_answers(trained, texts, start_progress=options.start_progress)

    def evaluate_split(self, trained: QuestionAnswerer, split: Split, options: EvaluationOptions) -> dict[str, Any]:
        texts = calibration_halves(split)[1] if trained.settings.threshold is not None else split.texts
        chosen = evenly_spaced(len(texts), max(1, round(options.share * len(texts))))
        return evaluate_answers(trained, [texts[index] for index in chosen], start_progress=options.start_progress)

    def weaknesses(self, scores: dict[str, Any]) -> list[str]:
        f1 = scores.get("f1_answerable", scores["f1"])
        return [f"F1 {f1:.1%} of the questions that have an answer"] if f1 < MIN_F1 else []

    def scarcity(self, data: PreparedData) -> str:
        questions = data.train.examples
        few = questions < 10_000
        return f"only {questions:,} questions: start from a pretrained encoder (--from)" if few else ""

    def headline(self, scores: dict[str, Any]) -> str:
        return (
            f"exact match {scores['exact_match']:.1%}, F1 {scores['f1']:.1%} "
            f"(95%: {scores['f1_low']:.1%} to {scores['f1_high']:.1%}), of {scores['questions']:,} questions"
        )

    def explained_example(self, example: tuple[str, ...]) -> str | tuple[str, str]:
        return "\t".join(example[:2])

    def samples(self, best: QuestionAnswerer, split: Split) -> list[tuple[str, ...]]:
        examples = [split.texts[index] for index in evenly_spaced(len(split.texts), CARD_SAMPLES)]
        answers = best.answer([question for question, *_ in examples], [passage for _, passage, *_ in examples])
        return [
            (question, answer.text or NO_ANSWER, first_reference(references))
            for (question, _, *references), answer in zip(examples, answers, strict=True)
        ]


def first_reference(references: Sequence[str]) -> str:
    """The reference shown in samples."""
    return references[0] if references else NO_ANSWER


def passage_windows(recipe: Recipe) -> PassageWindows:
    """How the recipe cuts long passages into windows."""
    return PassageWindows(max_tokens=recipe.data.max_length, stride=recipe.data.stride)


def answering_settings(recipe: Recipe, data: PreparedData) -> AnsweringSettings:
    """Window sizes from the recipe, the longest answer from the training answers."""
    spans = data.train.sides[1].ids.reshape(-1, 3)
    lengths = (spans[:, 2].astype(np.int64) - spans[:, 1] + 1)[spans[:, 1] > 0]
    longest = int(np.quantile(lengths, ANSWER_LENGTH_QUANTILE, method="higher")) if len(lengths) else 1
    return AnsweringSettings(**passage_windows(recipe).model_dump(), max_answer_tokens=longest)


def calibration_halves(split: Split) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The questions that a threshold is fitted on, evenly spaced, and those that it is evaluated on."""
    fitted, held_out = evenly_split(len(split.texts), len(split.texts) // 2)
    return [split.texts[index] for index in fitted], [split.texts[index] for index in held_out]


TASK = QuestionAnsweringTask()
