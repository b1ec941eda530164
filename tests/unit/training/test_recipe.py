"""Recipes: validation, TOML round trip, overrides and suggestions for misspelled keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from heedful.errors import UsageError
from heedful.training.recipe import TASKS_USING, absolute_paths, known_keys, make_recipe, read_recipe, to_toml
from heedful.training.requested_settings import apply_settings, check_keys

SETTINGS: dict[str, Any] = {
    "task": "translate",
    "seed": 3,
    "data": {"train": ['a "quoted" \\ name.en', "two\nlines\t.de"]},
    "tokenizer": {"vocabulary": 1000, "lowercase": True},
    "model": {"family": "encoder_decoder", "width": 64, "heads": 4, "dropout": 0.25},
    "training": {"steps": 100, "learning_rate": 1e-5, "betas": [0.9, 0.999]},
}


def test_a_recipe_survives_a_round_trip_through_toml(tmp_path: Path) -> None:
    recipe = make_recipe(absolute_paths(SETTINGS, tmp_path))
    file = tmp_path / "recipe.toml"
    file.write_text(to_toml(recipe, tmp_path), encoding="utf-8")
    assert make_recipe(read_recipe(file)) == recipe


def test_paths_of_a_recipe_are_relative_to_its_folder(tmp_path: Path) -> None:
    recipe = make_recipe(absolute_paths({**SETTINGS, "start_from": "base"}, tmp_path / "text"))
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "recipe.toml"
    file.write_text(to_toml(recipe, file.parent), encoding="utf-8")
    assert str(tmp_path) not in file.read_text()
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    settings = read_recipe(tmp_path / "elsewhere" / "recipe.toml")
    assert settings["start_from"] == str(tmp_path / "text" / "base")
    assert settings["data"]["train"] == [str(tmp_path / "text" / name) for name in SETTINGS["data"]["train"]]
    assert "/" not in to_toml(recipe).partition("[tokenizer]")[0], "without a folder, files by name"


def test_a_recipe_has_no_settings_of_other_tasks(tmp_path: Path) -> None:
    written = to_toml(make_recipe(SETTINGS), tmp_path)
    assert not [key for key in ("negatives", "mask_probability", "stride", "class_weights") if key in written]
    changed = make_recipe({**SETTINGS, "training": {"steps": 1, "negatives": 7}})
    assert "negatives = 7" in to_toml(changed, tmp_path)
    training = {"steps": 1, "optimizer": "row_adagrad"}
    embed = {**SETTINGS, "task": "embed", "model": {"family": "word_vectors"}, "training": training}
    assert "negatives" in to_toml(make_recipe(embed), tmp_path)
    for key in TASKS_USING:
        section, _, name = key.partition(".")
        assert name in known_keys((section,)), key


def test_overrides_are_toml_values_or_bare_strings() -> None:
    changed = apply_settings(SETTINGS, ["model.width=128", "training.schedule=linear", "seed=9", "model.bias=false"])
    recipe = make_recipe(changed)
    assert (recipe.model["width"], recipe.training.schedule, recipe.seed) == (128, "linear", 9)
    assert recipe.model["bias"] is False
    assert SETTINGS["model"]["width"] == 64, "the original settings are not changed"


def test_a_bleu_tokenizer_is_for_translation() -> None:
    with pytest.raises(UsageError, match="bleu_tokenizer is for translate, not generate"):
        make_recipe(
            apply_settings(SETTINGS, {"task": "generate", "model.family": "decoder", "training.bleu_tokenizer": "zh"})
        )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.widht=3", "width"),
        ("training.stpes=3", "steps"),
        ("tokenizer.vocab=3", "vocabulary"),
        ("dta.train=x", "data"),
        ("training.dropout=0.1", "did you mean 'model.dropout'"),
        ("training.steps", "section.key=value"),
        ("task.x=1", "unknown setting 'task.x'"),
        ("data=3", "data is a section of settings, not 3; write data.key=value"),
    ],
)
def test_a_misspelled_key_suggests_the_nearest_one(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_keys(apply_settings(SETTINGS, [override]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.heads=7", "width 63 or 70"),
        ("training.steps=0", "training: steps"),
        ("training.learning_rate=-1", "learning_rate"),
        ("model.dropout=1.5", "dropout"),
        ("training.schedule=sideways", "schedule"),
        ("task=sing", "task"),
        (
            'training={steps=1, shard=true, optimizer="muon"}',
            "shard = true cannot be combined with cuda_graphs",
        ),
    ],
)
def test_an_invalid_value_is_named(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_recipe(apply_settings(SETTINGS, [override]))


def test_a_duplicate_key_in_a_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('task = "translate"\ntask = "generate"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="line 2"):
        read_recipe(file)


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml does not exist"):
        read_recipe(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "does not exist"),
        ("pipe", "is not a regular file"),
        ("folder", "is not a regular file"),
        ("binary", "is not UTF-8 text"),
        ("damaged", "is not valid TOML: Invalid value"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_one_line(kind: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind != "missing":
        file.write_bytes(b"\xff\xfe" if kind == "binary" else b"steps = [")
    with pytest.raises(UsageError, match=f"recipe .*recipe.toml {message}") as refusal:
        read_recipe(file)
    assert "\n" not in str(refusal.value)
