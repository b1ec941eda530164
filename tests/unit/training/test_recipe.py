"""A recipe is checked whole, comes back from its file unchanged, and names the nearest right key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heedful.errors import UsageError
from heedful.training.recipe import check_keys, make_recipe, read_recipe, to_toml, apply_overrides

SETTINGS: dict[str, Any] = {
    "task": "translate",
    "seed": 3,
    "data": {"train": ['a "quoted" \\ name.en', "b.de"]},
    "tokenizer": {"vocabulary": 1000, "lowercase": True},
    "model": {"family": "encoder_decoder", "width": 64, "heads": 4, "dropout": 0.25},
    "training": {"steps": 100, "learning_rate": 1e-5, "betas": [0.9, 0.999]},
}


def test_a_recipe_comes_back_from_its_file_unchanged(tmp_path: Path) -> None:
    recipe = make_recipe(SETTINGS)
    file = tmp_path / "recipe.toml"
    file.write_text(to_toml(recipe), encoding="utf-8")
    assert make_recipe(read_recipe(file)) == recipe


def test_overrides_are_read_as_toml_or_as_bare_words() -> None:
    changed = apply_overrides(SETTINGS, ["model.width=128", "training.schedule=linear", "seed=9", "model.bias=false"])
    recipe = make_recipe(changed)
    assert (recipe.model["width"], recipe.training.schedule, recipe.seed) == (128, "linear", 9)
    assert recipe.model["bias"] is False
    assert SETTINGS["model"]["width"] == 64, "the settings given are left as they were"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.widht=3", "width"),
        ("training.stpes=3", "steps"),
        ("tokenizer.vocab=3", "vocabulary"),
        ("dta.train=x", "data"),
        ("training.dropout=0.1", "did you mean 'model.dropout'"),
        ("training.steps", "section.key=value"),
    ],
)
def test_a_misspelt_key_names_the_nearest_right_one(change: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_keys(apply_overrides(SETTINGS, [change]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.heads=7", "width 63 or 70"),
        ("training.steps=0", "training: steps"),
        ("training.learning_rate=-1", "learning_rate"),
        ("model.dropout=1.5", "dropout"),
        ("training.schedule=sideways", "schedule"),
        ("task=sing", "task"),
        ('training={steps=1, shard=true, optimizer="muon"}', "shard = true goes with none of record, compile and muon"),
    ],
)
def test_an_impossible_value_is_named(change: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_recipe(apply_overrides(SETTINGS, [change]))


def test_a_duplicate_key_in_a_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('task = "translate"\ntask = "generate"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="line 2"):
        read_recipe(file)


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml does not exist"):
        read_recipe(tmp_path / "none.toml")
