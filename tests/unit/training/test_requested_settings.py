"""Settings as callers write them: suggestions for misplaced keys, lists, mappings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heedful.errors import UsageError
from heedful.training.requested_settings import apply_settings, check_keys, settings_without_effect


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("width=64", "unknown setting 'width'; did you mean 'model.width'?"),
        ("learning_rat=1", "unknown setting 'learning_rat'; did you mean 'training.learning_rate'?"),
        ("max_length=9", "unknown setting 'max_length'; did you mean 'data.max_length' or 'model.max_length'?"),
        ("modle.width=9", "unknown setting 'modle.width'; did you mean 'model.width'?"),
        ("zzz=9", "unknown setting 'zzz'; known: data, model, seed, start_from, task, tokenizer, training"),
        ("width", "a setting is written section.key=value, got 'width'"),
    ],
)
def test_a_misplaced_key_suggests_its_section(setting: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        check_keys(apply_settings({}, [setting]))
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("training.betas=0.9,0.98", [0.9, 0.98]),
        ("training.betas=[0.9, 0.98]", [0.9, 0.98]),
        ("data.columns=review,stars", ["review", "stars"]),
        ("data.columns=review, stars", ["review", "stars"]),
        ("data.train=a.txt", ["a.txt"]),
        ("data.valid=", []),
        ("model.family=a,b", "a,b"),
    ],
)
def test_a_list_is_written_with_commas_where_a_list_is_expected(setting: str, value: Any) -> None:
    section, _, key = setting.partition("=")[0].partition(".")
    assert apply_settings({}, [setting]) == {section: {key: value}}


@pytest.mark.parametrize(
    "settings",
    [
        {"model.width": 64, "data.train": (Path("a"),)},
        {"model": {"width": 64}, "data": {"train": [Path("a")]}},
        ["model.width=64", "data.train=a"],
    ],
)
def test_settings_are_a_mapping_or_as_typed(settings: Any) -> None:
    base = {"model": {"width": 8, "heads": 2}}
    assert apply_settings(base, settings) == {"model": {"width": 64, "heads": 2}, "data": {"train": ["a"]}}
    assert apply_settings({}, "model.width=64") == {"model": {"width": 64}}


def test_settings_that_only_other_tasks_use_are_named() -> None:
    changes = ["training.context=64", "training.window=3", "model.width=8"]
    assert settings_without_effect(changes, "embed") == [
        "training.context has no effect on embed: it is for generate and fill"
    ]
    assert settings_without_effect({"training": {"window": 3}}, "classify") == [
        "training.window has no effect on classify: it is for embed"
    ]
    assert settings_without_effect(changes[:1], "generate") == []
