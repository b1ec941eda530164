"""How good a classifier is: accuracy with its interval, F1 of each class, which are taken for which, calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heedful.data.batching import Indices, evenly_spaced_batches
from heedful.data.dataset_writer import Split
from heedful.data.labelled_dataset import ClassBatches, encode_example
from heedful.data.progress import StartProgress, no_progress
from heedful.evaluation.calibration import reliability_curve
from heedful.inference.classifier import MULTI_LABEL_THRESHOLD, classifier_logits, logits_to_probabilities
from heedful.inference.trained import TrainedModel
from heedful.objectives.classification_loss import class_logits
from heedful.objectives.objective import to_device
from heedful.shapes import Float
from heedful.text.special_token_template import template_for

Counts = npt.NDArray[np.int64]
MAX_CLASSES_SHOWN = 30
"""Classes a confusion matrix has room for: the most frequent ones."""


def evaluate_classifier(trained: TrainedModel, split: Split, start_progress: StartProgress = no_progress, *, calibration_size: int = 0) -> dict[str, Any]:
    """Every score of a classifier on labelled texts.

    The first texts, if its temperature was `fitted` on them, have no say in how well that fits.
    """
    assert split.labels is not None, "labelled texts have labels"
    classes = trained.settings
    frame = template_for(trained.model.config.family, trained.tokenizers[0])
    rows = [encode_example(frame, [side[place].tolist() for side in split.sides]) for place in range(len(split.labels))]
    with start_progress("classifying", len(rows)) as watch:
        logits = classifier_logits(trained.model, rows, watch)
    labels = label_indices(split)
    score = multi_label_scores if classes.several else single_label_scores
    said, raw = (logits_to_probabilities(logits, classes.several, T).numpy() for T in (classes.temperature, 1.0))
    scores = score(said, labels, classes.names)
    if classes.temperature == 1.0:
        return scores
    after, before = (score(each[calibration_size:], labels[calibration_size:], classes.names) for each in (said, raw))
    curves = {"raw": before["reliability"], "corrected": after["reliability"]}
    kept = {"calibration_error": after["calibration_error"], "calibration_error_raw": before["calibration_error"]}
    return {**scores, **kept, "reliability": {name: next(iter(curve.values())) for name, curve in curves.items()}}


def label_indices(split: Split) -> list[npt.NDArray[np.int64]]:
    """The numbers of each text's labels."""
    assert split.labels is not None, "labelled texts have labels"
    return [split.labels[place].astype(np.int64) for place in range(len(split.labels))]


def fit_temperature(
    logits: Float[torch.Tensor, "texts classes"], labels: Sequence[npt.NDArray[np.int64]], multi_label: bool
) -> float:
    """The T under which the labels are likeliest: one number, found by halving        Guo 2017, 4.2

    log T is sought between −3 and 3, where the loss has one valley.
    """
    score, names = multi_label_scores if multi_label else single_label_scores, [str(number) for number in range(logits.shape[1])]

    def loss(power: float) -> float:
        return float(score(logits_to_probabilities(logits, multi_label, math.exp(power)).numpy(), labels, names)["loss"])

    low, high = -3.0, 3.0
    for _ in range(40):
        third = (high - low) / 3
        low, high = (low, high - third) if loss(low + third) < loss(high - third) else (low + third, high)
    return math.exp((low + high) / 2)


@torch.inference_mode()
def score_batches(
    model: Any, batches: ClassBatches, names: Sequence[str], device: torch.device, *, limit: int | None = None
) -> dict[str, Any]:
    """The scores of a model being trained, on all texts or on about `limit` of them, and what it says of the first."""

    def judged(indices: Indices) -> npt.NDArray[np.floating[Any]]:
        logits = class_logits(model, to_device(batches.batch(0, indices), device))
        return logits_to_probabilities(logits, batches.multi_label).cpu().numpy()

    chosen = evenly_spaced_batches(batches, limit)
    labels = [batches.label_ids[place].astype(np.int64) for indices in chosen for place in indices.tolist()]
    said = np.concatenate([judged(indices) for indices in chosen])
    scores = (multi_label_scores if batches.multi_label else single_label_scores)(said, labels, names)
    (first,) = judged(np.zeros(1, np.int64))
    return {**scores, "first": f"{names[int(first.argmax())]} {first.max():.0%}"}


def single_label_scores(
    said: npt.NDArray[np.floating[Any]], labels: Sequence[npt.NDArray[np.int64]], names: Sequence[str]
) -> dict[str, Any]:
    """Where each text has one label."""
    true, found = np.concatenate(labels), said.argmax(1)
    confusion = np.bincount(true * len(names) + found, minlength=len(names) ** 2).reshape(len(names), -1)
    right = true == found
    curve = reliability_curve(said.max(1).tolist(), right.tolist())
    given = np.clip(said[np.arange(len(true)), true], 1e-12, None)
    return {
        "accuracy": float(right.mean()),
        **wilson_interval(int(right.sum()), len(right)),
        "macro_f1": _macro(f1_scores(confusion), confusion.sum(1)),
        "calibration_error": curve.error,
        "loss": float(-np.log(given).mean()),
        "examples": len(true),
        "f1": dict(zip(names, f1_scores(confusion).tolist(), strict=True)),
        "confusion": {"names": list(names), "counts": confusion.tolist()},
        "reliability": {"classes": curve.to_json()},
    }


def multi_label_scores(
    said: npt.NDArray[np.floating[Any]], labels: Sequence[npt.NDArray[np.int64]], names: Sequence[str]
) -> dict[str, Any]:
    """Where a text may have any number of labels: accuracy is the share that got all of theirs and no other."""
    true = np.zeros(said.shape, bool)
    for row, numbers in zip(true, labels, strict=True):
        row[numbers] = True
    found = said >= MULTI_LABEL_THRESHOLD
    both, given, wanted = ((a).sum(0) for a in (true & found, found, true))
    right = (true == found).all(1)
    each = 2 * both / np.maximum(1, given + wanted)
    curve = reliability_curve(said.ravel().tolist(), true.ravel().tolist())
    return {
        "accuracy": float(right.mean()),
        **wilson_interval(int(right.sum()), len(right)),
        "macro_f1": _macro(each, wanted),
        "micro_f1": float(2 * both.sum() / max(1, given.sum() + wanted.sum())),
        "calibration_error": curve.error,
        "loss": float(-np.log(np.clip(np.where(true, said, 1 - said), 1e-12, None)).sum(1).mean()),
        "examples": len(true),
        "f1": dict(zip(names, each.tolist(), strict=True)),
        "reliability": {"labels": curve.to_json()},
    }


def f1_scores(confusion: Counts) -> npt.NDArray[np.float64]:
    """2 · right / (said + true), for each class; 0 for one that is neither said nor true."""
    right = confusion.diagonal()
    return np.asarray(2 * right / np.maximum(1, confusion.sum(0) + confusion.sum(1)), np.float64)


def _macro(each: npt.NDArray[np.float64], wanted: npt.NDArray[Any]) -> float:
    """The mean over classes that occur."""
    there = wanted > 0
    return float(each[there].mean()) if there.any() else 0.0


def wilson_interval(right: int, total: int, z: float = 1.96) -> dict[str, float]:
    """Ends of the 95% interval of a share        Wilson 1927, sound near 0 and 1 and for few examples, too"""
    share, extra = right / max(1, total), z * z / max(1, total)
    middle = (share + extra / 2) / (1 + extra)
    spread = z * math.sqrt(share * (1 - share) / max(1, total) + extra / (4 * max(1, total))) / (1 + extra)
    return {"accuracy_low": max(0.0, middle - spread), "accuracy_high": min(1.0, middle + spread)}


def draw_confusion(names: Sequence[str], counts: Sequence[Sequence[int]], file: Path) -> Path:
    """Rows: what texts are; columns: what they were taken for. Shades are shares of the row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = np.asarray(counts)
    chosen = np.sort(np.argsort(-table.sum(1), kind="stable")[:MAX_CLASSES_SHOWN])
    table, shown = table[np.ix_(chosen, chosen)], [names[place][:20] for place in chosen]
    side = 2.5 + 0.45 * len(shown)
    figure = Figure(figsize=(side, side), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shares = table / np.maximum(1, table.sum(1, keepdims=True))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.ndindex(*table.shape):
        shade = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{table[row, column]:,}", ha="center", va="center", color=shade, fontsize=7)
    axes.set_xticks(range(len(shown)), shown, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(shown)), shown, fontsize=8)
    axes.set_xlabel("taken for")
    axes.set_ylabel("is")
    figure.savefig(file)
    return file
