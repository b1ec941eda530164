"""Classifier metrics: accuracy with its confidence interval, F1 per class, confusion matrix, calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.batching import Indices, ScoringSample, evenly_spaced_batches
from heedful.data.dataset import Split
from heedful.data.labeled_dataset import ClassBatches, encode_example
from heedful.data.progress import StartProgress, no_progress
from heedful.evaluation.calibration import correction_helps, reliability_curve
from heedful.evaluation.length_buckets import accuracy_scores, scores_by_length
from heedful.evaluation.wilson_interval import wilson_interval
from heedful.inference.classifier import MULTI_LABEL_THRESHOLD, Classifier, classifier_logits, logits_to_probabilities
from heedful.inspection.attention_plot import drawn_text, picture_fonts
from heedful.models.decoder import Decoder
from heedful.models.encoder import Encoder
from heedful.objectives.classification_loss import class_logits
from heedful.objectives.objective import to_device
from heedful.shapes import Float
from heedful.text.special_token_template import template_for

Labels = Sequence[npt.NDArray[np.int64]]
"""The label indices of each text."""
Probabilities = npt.NDArray[np.floating[Any]]
MAX_CLASSES_SHOWN = 30
"""The confusion matrix plot shows this many of the most frequent classes."""


def evaluate_classifier(
    trained: Classifier,
    split: Split,
    start_progress: StartProgress = no_progress,
    *,
    sample: ScoringSample | None = None,
    by_length: bool = False,
) -> dict[str, Any]:
    """Compute every metric of a classifier on labeled texts, or on a sample of them; `by_length`: also by token count.

    The calibration error is that of the sample's held-out texts, which the temperature was not fitted on.
    """
    classes, all_labels = trained.settings, label_indices(split)
    chosen, held_out = sample or ScoringSample.choose(len(all_labels))
    labels = [all_labels[row] for row in chosen]
    template = template_for(trained.model.config.family, trained.tokenizers[0])
    rows = [encode_example(template, [side[row].tolist() for side in split.sides]) for row in chosen]
    with start_progress("classifying", len(rows)) as watch:
        logits = classifier_logits(trained.model, rows, watch)
    score = partial(class_scores, names=classes.names, multi_label=classes.multi_label)
    temperatures = (classes.temperature, 1.0)
    calibrated, raw = (logits_to_probabilities(logits, classes.multi_label, T).numpy() for T in temperatures)
    scores = score(calibrated, labels)
    if by_length:
        correct = label_table(labels, len(classes.names)) == predicted_labels(calibrated, classes.multi_label)
        lengths = np.array([len(ids) for ids, _ in rows])
        scores["by_length"] = scores_by_length(lengths, "tokens", accuracy_scores(correct.all(1)))
    if classes.temperature == 1.0:
        return scores
    after, before = (score(table[held_out], [labels[index] for index in held_out]) for table in (calibrated, raw))
    curves = {"raw": before["reliability"], "corrected": after["reliability"]}
    errors = {"calibration_error": after["calibration_error"], "calibration_error_raw": before["calibration_error"]}
    return {**scores, **errors, "reliability": {name: next(iter(curve.values())) for name, curve in curves.items()}}


def predicted_labels(probabilities: Probabilities, multi_label: bool) -> npt.NDArray[np.bool_]:
    """For each text and class, whether the class is predicted."""
    if multi_label:
        return np.greater_equal(probabilities, MULTI_LABEL_THRESHOLD)
    predicted: npt.NDArray[np.bool_] = np.eye(probabilities.shape[1], dtype=bool)[probabilities.argmax(1)]
    return predicted


def label_indices(split: Split) -> Labels:
    """The label ids of each text of a labeled split."""
    assert split.labels is not None, "labeled texts have labels"
    return [split.labels[row].astype(np.int64) for row in range(len(split.labels))]


def fit_temperature(logits: Float[torch.Tensor, "texts classes"], labels: Labels, multi_label: bool) -> float:
    """Fit the temperature T that minimizes the loss of the labels, by ternary search        Guo 2017, 4.2

    log T lies between −3 and 3, where the loss has a single minimum.
    """
    true = label_table(labels, logits.shape[1])

    def loss(log_t: float) -> float:
        probabilities = logits_to_probabilities(logits, multi_label, math.exp(log_t)).numpy()
        return float(text_losses(probabilities, true, multi_label).mean())

    low, high = -3.0, 3.0
    for _ in range(40):
        third = (high - low) / 3
        low, high = (low, high - third) if loss(low + third) < loss(high - third) else (low + third, high)
    return math.exp((low + high) / 2)


def fit_useful_temperature(logits: Float[torch.Tensor, "texts classes"], labels: Labels, multi_label: bool) -> float:
    """Fit the temperature; 1 where it does not help, as decided by cross-fitting on halves."""
    names = [str(number) for number in range(logits.shape[1])]
    raw = logits_to_probabilities(logits, multi_label).numpy()
    held_out = raw.copy()
    for half in (0, 1):
        temperature = fit_temperature(logits[1 - half :: 2], labels[1 - half :: 2], multi_label)
        held_out[half::2] = logits_to_probabilities(logits[half::2], multi_label, temperature).numpy()
    true = label_table(labels, len(names))
    raw_losses, losses = (text_losses(table, true, multi_label) for table in (raw, held_out))
    raw_error, error = (
        class_scores(table, labels, names, multi_label)["calibration_error"] for table in (raw, held_out)
    )
    helps = correction_helps(raw_losses, losses, raw_error, error)
    return fit_temperature(logits, labels, multi_label) if helps else 1.0


@torch.inference_mode()
def score_batches(
    model: Encoder | Decoder,
    batches: ClassBatches,
    names: Sequence[str],
    device: torch.device,
    *,
    limit: int | None = None,
) -> dict[str, Any]:
    """Score a model during training on all texts or about `limit` of them."""

    def predict(indices: Indices) -> npt.NDArray[np.floating[Any]]:
        logits = class_logits(model, to_device(batches.batch(0, indices), device))
        return logits_to_probabilities(logits, batches.multi_label).cpu().numpy()

    chosen = evenly_spaced_batches(batches, limit)
    labels = [batches.label_ids[row].astype(np.int64) for indices in chosen for row in indices.tolist()]
    probabilities = np.concatenate([predict(indices) for indices in chosen])
    return class_scores(probabilities, labels, names, batches.multi_label)


def class_scores(
    probabilities: Probabilities, labels: Labels, names: Sequence[str], multi_label: bool
) -> dict[str, Any]:
    """Compute the metrics of texts with exactly one label, or with any number of labels.

    Accuracy counts texts whose set of labels is exact; macro F1 is the mean over the classes that occur.
    """
    true = label_table(labels, len(names))
    predicted = predicted_labels(probabilities, multi_label)
    if multi_label:
        curve = reliability_curve(probabilities.ravel(), true.ravel())
    else:
        curve = reliability_curve(probabilities.max(1), true[predicted])
    hits, predictions, references = (table.sum(0) for table in (true & predicted, predicted, true))
    f1 = 2 * hits / np.maximum(1, predictions + references)
    present = references > 0
    correct = (true == predicted).all(1)
    micro_f1 = {"micro_f1": float(2 * hits.sum() / max(1, predictions.sum() + references.sum()))}
    return {
        **wilson_interval("accuracy", int(correct.sum()), len(correct)),
        "macro_f1": float(f1[present].mean()) if present.any() else 0.0,
        **(micro_f1 if multi_label else {}),
        "calibration_error": curve.error,
        "loss": float(text_losses(probabilities, true, multi_label).mean()),
        "examples": len(true),
        **majority_scores(true),
        "f1": dict(zip(names, f1.tolist(), strict=True)),
        **({} if multi_label else {"confusion": {"names": list(names), "counts": confusion_counts(true, predicted)}}),
        "reliability": {"labels" if multi_label else "classes": asdict(curve)},
    }


def confusion_counts(true: npt.NDArray[np.bool_], predicted: npt.NDArray[np.bool_]) -> list[list[int]]:
    """Confusion matrix: true classes in rows, predicted classes in columns; every text has one class."""
    classes = true.shape[1]
    cells = true.argmax(1) * classes + predicted.argmax(1)
    counts: list[list[int]] = np.bincount(cells, minlength=classes**2).reshape(classes, classes).tolist()
    return counts


def majority_scores(true: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Majority baseline: accuracy and macro F1 if every text gets the most frequent set of labels."""
    rows, counts = np.unique(true, axis=0, return_counts=True)
    majority = rows[counts.argmax()]
    references = true.sum(0)
    f1 = np.where(majority, 2 * references / np.maximum(1, len(true) + references), 0.0)
    present = references > 0
    return {
        "majority_accuracy": float(counts.max() / len(true)),
        "majority_macro_f1": float(f1[present].mean()) if present.any() else 0.0,
    }


def label_table(labels: Labels, classes: int) -> npt.NDArray[np.bool_]:
    """Whether each text has each label."""
    true = np.zeros((len(labels), classes), bool)
    true[np.repeat(np.arange(len(labels)), [len(row) for row in labels]), np.concatenate(labels)] = True
    return true


def text_losses(
    probabilities: Probabilities, true: npt.NDArray[np.bool_], multi_label: bool
) -> npt.NDArray[np.floating[Any]]:
    """The negative log-likelihood of each text's labels."""
    likelihoods = np.where(true, probabilities, 1 - probabilities) if multi_label else probabilities[true][:, None]
    losses: npt.NDArray[np.floating[Any]] = -np.log(np.clip(likelihoods, 1e-12, None)).sum(1)
    return losses


@picture_fonts()
def draw_confusion(names: Sequence[str], counts: Sequence[Sequence[int]], file: Path) -> Path:
    """Draw the confusion matrix: true classes in rows, predictions in columns, shaded by share of the row."""
    from matplotlib.figure import Figure

    table = np.asarray(counts)
    chosen = np.sort(np.argsort(-table.sum(1), kind="stable")[:MAX_CLASSES_SHOWN])
    table, shown = table[np.ix_(chosen, chosen)], [drawn_text(names[index][:20]) for index in chosen]
    side = 2.5 + 0.45 * len(shown)
    figure = Figure(figsize=(side, side), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    shares = table / np.maximum(1, table.sum(1, keepdims=True))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.ndindex(*table.shape):
        shade = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{table[row, column]:,}", ha="center", va="center", color=shade, fontsize=7)
    axes.set_xticks(range(len(shown)), shown, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(shown)), shown, fontsize=8)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    figure.savefig(file)
    return file
