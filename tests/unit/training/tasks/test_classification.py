"""The classification task: class weights and fine-tuning defaults."""

from __future__ import annotations

from typing import Any

import pytest

from heedful.data.dataset import PreparedData, Split
from heedful.data.text_size import TextSize
from heedful.training.defaults import TrainingConditions
from heedful.training.recipe import Recipe, make_recipe
from heedful.training.tasks.classification import TASK, class_weights


def conditions(**changes: Any) -> TrainingConditions:
    return TrainingConditions(
        **{"recurrent": False, "tokens": 10**5, "seconds": 60.0, "flops": 1e11, "gpu": False} | changes
    )


def data(*counts: int, multi_label: bool = False) -> PreparedData:
    names, nothing = [f"class {index}" for index, _ in enumerate(counts)], Split((), 0, TextSize(0, 0, 0))
    metadata = {"names": names, "counts": list(counts), "multi_label": multi_label, "columns": "text"}
    return PreparedData((), nothing, nothing, {}, {}, metadata=metadata)


def recipe(**settings: Any) -> Recipe:
    text = {"data": {"train": ["a.csv"]}, "tokenizer": {"vocabulary": 300}, "model": {"family": "encoder"}}
    return make_recipe({"task": "classify", **text, "training": {"steps": 1, **settings}})


def test_imbalanced_classes_are_weighted_and_reported() -> None:
    skewed, even = data(90, 10), data(60, 40)
    assert class_weights(recipe(), skewed) == pytest.approx([100 / 180, 100 / 20])
    assert class_weights(recipe(), even) is None
    assert class_weights(recipe(class_weights="none"), skewed) is None
    assert class_weights(recipe(class_weights="balanced"), even) == pytest.approx([100 / 120, 100 / 80])
    assert "the rarest class is weighted 9.0 times the most frequent" in TASK.setup_summary(recipe(), skewed)[-1]
    assert TASK.setup_summary(recipe(), even)[-1] == "classes    2: class 0 (60), class 1 (40)"


def test_rare_labels_are_weighted_in_multi_label_classification() -> None:
    skewed = data(90, 45, 10, 1, multi_label=True)
    assert class_weights(recipe(), skewed) == pytest.approx([1.0, 2.0, 9.0, 20.0])
    assert class_weights(recipe(), data(60, 40, multi_label=True)) is None
    assert class_weights(recipe(class_weights="none"), skewed) is None
    assert "the rarest label is weighted 20.0 times" in TASK.setup_summary(recipe(), skewed)[-1]


def test_fine_tuning_uses_a_lower_learning_rate_and_fewer_epochs() -> None:
    scratch, finetune = conditions(), conditions(pretrained=True)
    assert TASK.training_defaults(finetune, {"width": 768})["learning_rate"] == pytest.approx(5e-5)
    assert TASK.training_defaults(finetune, {"width": 384})["learning_rate"] == pytest.approx(1e-4)
    assert TASK.training_defaults(scratch, {"width": 384})["learning_rate"] > 3e-4
    assert TASK.scaling_rule.most_epochs(pretrained=True) < TASK.scaling_rule.most_epochs(pretrained=False)
