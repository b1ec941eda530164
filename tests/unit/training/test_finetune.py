"""Fine-tuning: which weights of a model are loaded, new and unused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import heedful
from heedful.data.dataset import PreparedData, Split
from heedful.data.text_size import TextSize
from heedful.errors import UsageError
from heedful.inference.classifier import ClassifierSettings
from heedful.training.finetune import describe_pretrained, load_pretrained, match_weights, pretrained_model_settings
from heedful.training.tasks.classification import TASK as CLASSIFY
from heedful.training.tasks.language_model import TASK as GENERATE


def classifier(names: tuple[str, ...]) -> heedful.TrainedModel:
    shape = {"vocabulary": 20, "width": 16, "heads": 2, "layers": 1, "tasks": ("sequence_class",), "pooling": "mean"}
    model = heedful.build("laptop-reader", classes=len(names), **shape)
    return heedful.Classifier(model, settings=ClassifierSettings(names=names, max_length=9))


def data(*names: str) -> PreparedData:
    nothing = Split((), 0, TextSize(0, 0, 0))
    return PreparedData((), nothing, nothing, {}, {}, metadata={"names": list(names)})


def matched(start: heedful.TrainedModel, *names: str, **changes: Any) -> Any:
    settings = {**pretrained_model_settings(start, CLASSIFY), **CLASSIFY.head_settings(data(*names)), **changes}
    config = heedful.TransformerConfig(vocabulary=20, **settings)
    return match_weights(start, config, CLASSIFY, CLASSIFY.reinitialized_prefixes(start, data(*names)))


def test_a_head_is_loaded_only_if_the_classes_are_the_same() -> None:
    start = classifier(("bad", "good"))
    same, other, more = matched(start, "bad", "good"), matched(start, "cold", "warm"), matched(start, "a", "b", "c")
    assert (same.new, same.unused) == ({}, {})
    assert other.new == other.unused == {"heads.sequence_class": 34}
    assert (more.new, more.unused) == ({"heads.sequence_class": 51}, {"heads.sequence_class": 34})
    assert "table.weight" in other.loaded
    assert torch.equal(other.loaded["table.weight"], start.model.table.weight)


def test_a_shape_mismatch_names_the_setting() -> None:
    with pytest.raises(UsageError, match=r"do not fit model\.layers=2 \(it has 1\)"):
        matched(classifier(("bad", "good")), "bad", "good", layers=2)


def test_pooling_of_a_fine_tuned_classifier_depends_on_the_family() -> None:
    configs = {
        "mean": heedful.preset("laptop-reader"),
        "first": heedful.preset("laptop-reader", tasks=("masked_token", "next_sentence")),
        "last": heedful.preset("laptop-writer"),
    }
    for pooling, config in configs.items():
        assert CLASSIFY.finetune_settings(config) == {"pooling": pooling, "dropout": 0.1}
    assert CLASSIFY.finetune_settings(heedful.preset("laptop-writer", dropout=0.3))["dropout"] == 0.3
    assert CLASSIFY.finetune_settings(heedful.preset("laptop-writer", dropout=0.0))["dropout"] == 0.1


def test_loaded_new_and_unused_parts_are_described() -> None:
    weights = matched(classifier(("bad", "good")), "cold", "warm")
    line = describe_pretrained(weights.to_json())
    assert line.endswith("new: heads.sequence_class (34); unused: heads.sequence_class (34)")


def test_unsuitable_models_are_refused(tmp_path: Any) -> None:
    heedful.save(classifier(("bad", "good")).model, tmp_path)
    with pytest.raises(UsageError, match="holds an encoder for classify, not generate"):
        load_pretrained(str(tmp_path), GENERATE, recurrent=False)
    with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
        load_pretrained(str(tmp_path), CLASSIFY, recurrent=False)
