"""What becomes of a model's weights when training goes on from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import heedful
from heedful.data.dataset_writer import PreparedData, Split
from heedful.errors import UsageError
from heedful.inference.classifier import ClassifierSettings
from heedful.training.finetune import pretrained_model_settings, load_pretrained, match_weights, describe_pretrained
from heedful.training.tasks.classification import TASK as CLASSIFY
from heedful.training.tasks.language_model import TASK as GENERATE


def classifier(names: tuple[str, ...]) -> heedful.TrainedModel:
    shape = {"vocabulary": 20, "width": 16, "heads": 2, "layers": 1, "tasks": ("sequence_class",), "pooling": "mean"}
    model = heedful.build("laptop-reader", classes=len(names), **shape)
    return heedful.TrainedModel(model, notes=ClassifierSettings(names=names, max_length=9))


def data(*names: str) -> PreparedData:
    nothing = Split((), 0, 0, 0)
    return PreparedData((), nothing, nothing, {}, {}, metadata={"names": list(names)})


def begun(start: heedful.TrainedModel, *names: str, **changes: Any) -> Any:
    settings = {**pretrained_model_settings(start, CLASSIFY), **CLASSIFY.head_settings(data(*names)), **changes}
    config = heedful.TransformerConfig(vocabulary=20, **settings)
    return match_weights(start, config, CLASSIFY, CLASSIFY.reinitialized_prefixes(start, data(*names)))


def test_a_head_is_kept_only_if_its_classes_mean_the_same() -> None:
    start = classifier(("bad", "good"))
    same, other, more = begun(start, "bad", "good"), begun(start, "cold", "warm"), begun(start, "a", "b", "c")
    assert (same.new, same.left) == ({}, {})
    assert other.new == other.left == {"heads.sequence_class": 34}
    assert (more.new, more.left) == ({"heads.sequence_class": 51}, {"heads.sequence_class": 34})
    assert "table.weight" in other.taken
    assert torch.equal(other.taken["table.weight"], start.model.table.weight)


def test_a_body_of_another_shape_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"do not fit model\.layers=2 \(it has 1\)"):
        begun(classifier(("bad", "good")), "bad", "good", layers=2)


def test_a_summary_is_trained_or_the_mean_or_the_last() -> None:
    configs = {
        "mean": heedful.preset("laptop-reader"),
        "first": heedful.preset("laptop-reader", tasks=("masked_token", "next_sentence")),
        "last": heedful.preset("laptop-writer"),
    }
    for pooling, config in configs.items():
        assert CLASSIFY.finetune_settings(config) == {"pooling": pooling, "dropout": 0.1}
    assert CLASSIFY.finetune_settings(heedful.preset("laptop-writer", dropout=0.3))["dropout"] == 0.3
    assert CLASSIFY.finetune_settings(heedful.preset("laptop-writer", dropout=0.0))["dropout"] == 0.1


def test_what_was_taken_is_told_in_a_line() -> None:
    found = begun(classifier(("bad", "good")), "cold", "warm")
    line = describe_pretrained(found.to_json())
    assert line.endswith("new: heads.sequence_class (34); left over: heads.sequence_class (34)")


def test_a_task_begins_with_bodies_it_can_use(tmp_path: Any) -> None:
    heedful.save(classifier(("bad", "good")).model, tmp_path)
    with pytest.raises(UsageError, match="holds an encoder: it can classify, not generate"):
        load_pretrained(str(tmp_path), GENERATE, recurrent=False)
    with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
        load_pretrained(str(tmp_path), CLASSIFY, recurrent=False)
