"""The `classify` task: labeled texts, an encoder or a pretrained decoder, accuracy and macro F1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from heedful.data.batching import ScoringSample, evenly_spaced
from heedful.data.corpus_files import CorpusFiles
from heedful.data.dataset import PreparedData, Split
from heedful.data.doctor_report import CorpusReport
from heedful.data.labeled_dataset import (
    ClassBatches,
    encode_example,
    encode_labeled,
    prepare_labeled,
    train_labeled_tokenizer,
)
from heedful.data.labeled_reader import find_all_columns, read_labeled
from heedful.data.progress import StartProgress
from heedful.errors import DataError
from heedful.evaluation.calibration import draw_reliability
from heedful.evaluation.classification_metrics import (
    draw_confusion,
    evaluate_classifier,
    fit_useful_temperature,
    label_indices,
    score_batches,
)
from heedful.inference.classifier import Classifier, ClassifierSettings, classifier_logits
from heedful.inference.trained_model import TrainedModel
from heedful.models.decoder import Decoder
from heedful.models.encoder import Encoder
from heedful.models.model_config import ModelConfig
from heedful.objectives.classification_loss import ClassificationLoss, balanced_class_weights, rare_label_weights
from heedful.text.special_token_template import template_for
from heedful.training.defaults import ScalingRule, TrainingConditions, largest_size
from heedful.training.recipe import Recipe
from heedful.training.tasks import EvaluationOptions
from heedful.training.tasks.task import MainScore, Task, Tokenizers, TrainingComponents
from heedful.training.trainer import Evaluation

CARD_SAMPLES = 8
IMBALANCE_RATIO = 3.0
"""Ratio of the most to the least frequent class from which `class_weights = "auto"` weights the loss."""
MIN_CALIBRATION_TEXTS = 50
"""Fewest texts a temperature is fitted on."""
MIN_F1_GAIN = 0.1
"""A model of low accuracy is still useful if its macro F1 exceeds that of the majority class and of guessing by this:
it recognizes rare classes."""
MAX_CLASS_WEIGHT = 20.0
"""Upper bound, so that a handful of texts cannot dominate the loss."""


class ClassificationTask(Task[Classifier]):
    """Single- or multi-label classification of a text or a pair of texts."""

    name = "classify"
    corpus_kind = "labeled"
    description = "classifies"
    main_score = MainScore("accuracy", "accuracy", ".1%")
    evaluation_details = ("by_length",)
    selection_metric = "accuracy (macro F1 with class weights or multiple labels)"
    score_note = (
        "Accuracy has a 95% Wilson interval; macro F1 is the unweighted mean over classes; the calibration error is "
        "the mean gap between predicted probability and observed accuracy."
    )
    sample_columns = ("text", "model", "label")
    loss_unit = "example"
    scaling_rule = ScalingRule(parameters_per_layer=12, stacks=1, min_epochs=8, max_epochs=20, finetune_epochs=4)
    vocabulary_factor = 12
    pretrained_families = ("encoder", "decoder")
    head_prefixes = ("heads.pooled", "heads.sequence_class")

    def corpus_size(self, report: CorpusReport) -> str:
        return f"{report.usable:,} texts with {len(report.labels):,} labels"

    def train_tokenizers(self, recipe: Recipe, files: CorpusFiles, characters: int) -> Tokenizers:
        return (train_labeled_tokenizer(files, *recipe.tokenizer.training(characters)),)

    def prepare_data(self, recipe: Recipe, files: CorpusFiles, tokenizers: Tokenizers, characters: int) -> PreparedData:
        return prepare_labeled(files, tokenizers[0], max_length=recipe.data.max_length)

    def validation_fraction(self, characters: int) -> float:
        return min(0.1, 500_000 / characters)

    def model_defaults(self, conditions: TrainingConditions) -> dict[str, Any]:
        size = largest_size(conditions, self.scaling_rule)
        shape = {**size, "norm_order": "pre", "positions": "rotary", "activation": "gelu", "embedding_scale": False}
        return {"family": "encoder", **shape, "pooling": "mean", "dropout": 0.3 if conditions.low_resource else 0.1}

    def training_defaults(self, conditions: TrainingConditions, model: dict[str, Any]) -> dict[str, Any]:
        """Fine-tuning uses a low learning rate: 5e-5 at width 768, more for narrower models."""
        sampled = 20_000 if conditions.gpu else 2000
        shared = {"schedule": "linear", "weight_decay": 0.01, "patience": 5, "eval_labels": sampled}
        if conditions.pretrained:
            rate = min(5e-4, 5e-5 * 768 / model["width"])
            finetune = {"learning_rate": rate, "label_smoothing": 0.0, "average": "none"}
            return {**shared, **finetune, "batch_tokens": 2048 if conditions.gpu else 1024}
        rate = min(1e-3, 5e-4 * (256 / model["width"]) ** 0.5)
        scratch = {"learning_rate": rate, "label_smoothing": 0.1}
        return {**shared, **scratch, "batch_tokens": 4096 if conditions.gpu else 2048}

    def derived_model_settings(self, settings: dict[str, Any], data: PreparedData) -> dict[str, Any]:
        return {"max_length": data.metadata["max_length"]}

    def head_settings(self, data: PreparedData) -> dict[str, Any]:
        return {"tasks": ("sequence_class",), "classes": len(data.metadata["names"])}

    def finetune_settings(self, body: ModelConfig) -> dict[str, Any]:
        """Pool a decoder's last token, [CLS] if next-sentence prediction trained it, else the mean; add dropout."""
        dropout = {"dropout": max(0.1, getattr(body, "dropout", 0.0))}
        if body.family == "decoder":
            return {"pooling": "last", **dropout}
        return {**dropout, "pooling": "first" if "next_sentence" in getattr(body, "tasks", ()) else "mean"}

    def reinitialized_prefixes(self, start: TrainedModel, data: PreparedData) -> tuple[str, ...]:
        """The classifier head, unless the class names are the same."""
        known = start.settings.names if isinstance(start, Classifier) else ()
        return () if tuple(data.metadata["names"]) == known else ("heads.sequence_class",)

    def task_settings(self, recipe: Recipe, data: PreparedData) -> ClassifierSettings:
        return ClassifierSettings(
            names=tuple(data.metadata["names"]),
            multi_label=data.metadata["multi_label"],
            texts_per_example=len(data.train.sides),
            max_length=recipe.data.max_length,
        )

    def setup_summary(self, recipe: Recipe, data: PreparedData) -> list[str]:
        metadata = data.metadata
        classes = sorted(zip(metadata["counts"], metadata["names"], strict=True), reverse=True)
        names = ", ".join(f"{name} ({count:,})" for count, name in classes[:8]) + (" …" if len(classes) > 8 else "")
        lines = [f"columns    {metadata['columns']}", f"classes    {len(classes):,}: {names}"]
        if weights := class_weights(recipe, data):
            unit = "label" if metadata["multi_label"] else "class"
            ratio = max(weights) / min(weights)
            lines.append(f"weights    the rarest {unit} is weighted {ratio:.1f} times the most frequent")
        return lines

    def split_size(self, split: Split) -> str:
        tokens = sum(int(side.lengths.sum()) for side in split.sides)
        return f"{split.examples:,} examples, {tokens:,} tokens"

    def training_components(self, recipe: Recipe, data: PreparedData, device: torch.device) -> TrainingComponents:
        names, multi_label = data.metadata["names"], data.metadata["multi_label"]
        template, weights = template_for(recipe.model["family"], data.tokenizers[0]), class_weights(recipe, data)
        batching: dict[str, Any] = {
            "multi_label": multi_label,
            "max_tokens": recipe.training.batch_tokens,
            "seed": recipe.seed,
        }
        train = ClassBatches(data.train, template, len(names), weights=weights, **batching)
        valid = ClassBatches(data.valid, template, len(names), shuffle=False, **batching)
        objective = ClassificationLoss(multi_label, recipe.training.label_smoothing)
        text, label = data.valid.texts[0]
        settings = self.task_settings(recipe, data)

        def evaluate(model: Encoder | Decoder) -> Evaluation:
            scores = score_batches(model, valid, names, device, limit=recipe.training.eval_labels)
            reported = {"valid_loss": scores["loss"], "accuracy": scores["accuracy"], "macro_f1": scores["macro_f1"]}
            selected_by = "macro_f1" if weights or multi_label else "accuracy"
            first = Classifier(model, data.tokenizers, settings=settings).classify(text).labels[0]
            sample = (f"text       {text}", f"model      {first.name} {first.probability:.0%}", f"label      {label}")
            return Evaluation(scores[selected_by], reported, sample)

        return TrainingComponents(objective, train, valid, evaluate)

    def evaluate_files(self, trained: Classifier, files: Sequence[Path], options: EvaluationOptions) -> dict[str, Any]:
        require_same_columns(trained, files, options.columns)
        rows = list(read_labeled(files, columns=options.columns, on_bad_line=options.on_bad_line))
        split, cut = encode_labeled(rows, trained.tokenizers[0], trained.settings.names, trained.settings.max_length)
        scores = evaluate_classifier(trained, split, options.start_progress, by_length=options.by_length)
        return scores | ({"texts_cut_off": cut} if cut else {})

    def evaluate_split(self, trained: Classifier, split: Split, options: EvaluationOptions) -> dict[str, Any]:
        fitted = trained.settings.calibration_texts
        sample = ScoringSample.choose(len(label_indices(split)), fitted=fitted, share=options.share)
        return evaluate_classifier(trained, split, options.start_progress, sample=sample)

    def calibrate(self, best: Classifier, data: PreparedData, start_progress: StartProgress, texts: int) -> None:
        """Fit the softmax temperature on evenly spaced validation texts, half of them at most."""
        fitted = evenly_spaced(data.valid.examples, min(texts, data.valid.examples // 2))
        if len(fitted) < MIN_CALIBRATION_TEXTS:
            return
        rows = [[side[index].tolist() for side in data.valid.sides] for index in fitted]
        template = template_for(best.model.config.family, best.tokenizers[0])
        with start_progress("calibrating probabilities", len(fitted)) as watch:
            logits = classifier_logits(best.model, [encode_example(template, row) for row in rows], watch)
        labels = label_indices(data.valid)
        temperature = fit_useful_temperature(logits, [labels[index] for index in fitted], data.metadata["multi_label"])
        if temperature != 1.0:
            best.settings = best.settings.with_changes(temperature=temperature, calibration_texts=len(fitted))

    def weaknesses(self, scores: dict[str, Any]) -> list[str]:
        signs = []
        if "confusion" in scores and sum(map(any, zip(*scores["confusion"]["counts"], strict=True))) == 1:
            signs.append("every text gets the same class")
        guessing = 1 / len(scores["confusion"]["counts"]) if "confusion" in scores else 0.0
        finds_rare_classes = scores["macro_f1"] >= max(scores["majority_macro_f1"], guessing) + MIN_F1_GAIN
        if scores["accuracy"] <= scores["majority_accuracy"] and not finds_rare_classes:
            signs.append(f"accuracy {scores['accuracy']:.1%} is no better than {self._majority(scores)}")
        return signs

    def baselines(self, scores: dict[str, Any]) -> list[str]:
        return [self._majority(scores)]

    def _majority(self, scores: dict[str, Any]) -> str:
        majority, low, high = (scores[key] for key in ("majority_accuracy", "accuracy_low", "accuracy_high"))
        described = f"always the most frequent class: {majority:.1%}"
        if low <= majority <= high and majority != scores["accuracy"]:
            described += f" (the difference is inside the 95% interval, {low:.1%} to {high:.1%})"
        return described

    def scarcity(self, data: PreparedData) -> str:
        texts, classes = data.train.examples, len(data.metadata["names"])
        few = texts < 100 * classes
        return f"only {texts:,} texts for {classes:,} classes: a hundred or more of each are needed" if few else ""

    def plots(self, scores: dict[str, Any], folder: Path) -> dict[str, Path]:
        plots = {"reliability": draw_reliability(scores["reliability"], folder / "reliability.png", unit="class")}
        if "confusion" in scores:
            plots = {"confusion matrix": draw_confusion(**scores["confusion"], file=folder / "confusion.png")} | plots
        return plots

    def headline(self, scores: dict[str, Any]) -> str:
        return (
            f"accuracy {scores['accuracy']:.1%} (95%: {scores['accuracy_low']:.1%} to {scores['accuracy_high']:.1%}), "
            f"macro F1 {scores['macro_f1']:.3f}, calibration error {scores['calibration_error']:.3f}, "
            f"{scores['examples']:,} texts"
        )

    def samples(self, best: Classifier, split: Split) -> list[tuple[str, ...]]:
        examples = [split.texts[index] for index in evenly_spaced(len(split.texts), CARD_SAMPLES)]
        results = best.classify([text for text, _ in examples])
        return [
            (text, " ".join(f"{label.name} {label.probability:.0%}" for label in result.labels), label)
            for (text, label), result in zip(examples, results, strict=True)
        ]


def class_weights(recipe: Recipe, data: PreparedData) -> list[float] | None:
    """Loss weights of the classes as the recipe sets them; None: unweighted."""
    counts, mode = data.metadata["counts"], recipe.training.class_weights
    if mode == "none" or (mode == "auto" and max(counts) < IMBALANCE_RATIO * max(1, min(counts))):
        return None
    return (rare_label_weights if data.metadata["multi_label"] else balanced_class_weights)(counts, MAX_CLASS_WEIGHT)


def require_same_columns(trained: Classifier, files: Sequence[Path], columns: Sequence[str]) -> None:
    """Raise DataError for a table with other columns than the model was trained on: other texts, or label lists."""
    classes = trained.settings
    for path, table in zip(files, find_all_columns(files, columns), strict=True):
        if (len(table.texts), table.multi_label) != (classes.texts_per_example, classes.multi_label):
            labels = "any number of labels" if classes.multi_label else "one label"
            texts = "one text" if classes.texts_per_example == 1 else "two texts"
            raise DataError(f"{path} has {table}; this model expects {texts} with {labels}")


TASK = ClassificationTask()
