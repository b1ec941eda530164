"""Training requests: durations, file options and the settings they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heedful.errors import UsageError
from heedful.syntax import command_line
from heedful.training.request import TrainingRequest, duration_in_seconds, new_run_settings, requested_settings


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2.5m", 150), ("45", 45), ("1d", 86_400)]
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert duration_in_seconds(text) == seconds
    assert TrainingRequest(time=text).seconds == seconds


@pytest.mark.parametrize("text", ["", "soon", "10x", "m10", "-5m", "0s", "10 m"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        TrainingRequest(time=text)


def test_seconds_may_be_a_number() -> None:
    assert TrainingRequest(time=90).seconds == 90
    assert TrainingRequest().seconds is None


@pytest.mark.parametrize("files", ["dev.tsv", Path("dev.tsv"), ["dev.tsv"], (Path("dev.tsv"),)])
def test_one_file_or_several_may_be_given(files: Any) -> None:
    settings = requested_settings(TrainingRequest(task="translate", valid=files))
    assert settings["data"] == {"valid": [str(Path("dev.tsv").resolve())]}


def test_settings_of_a_request_override_each_other_in_order(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('task = "generate"\nseed = 3\n[training]\nsteps = 7\nwarmup = 2\n')
    request = TrainingRequest(recipe=recipe, settings=["training.warmup=4", "model.width=32"], steps=9, seed=5)
    assert requested_settings(request) == {
        "task": "generate",
        "seed": 5,
        "training": {"steps": 9, "warmup": 4},
        "model": {"width": 32},
    }
    assert requested_settings(TrainingRequest(resume="run")) == {}


@pytest.mark.parametrize("option", ["valid", "test"])
def test_half_a_pair_is_refused_with_the_right_form(option: str) -> None:
    """As typed in `--valid dev.en dev.de`, where dev.de becomes a training file."""
    halves: dict[str, Any] = {option: ["dev.en"]}
    with command_line(), pytest.raises(UsageError, match=f"--{option} dev.en --{option} FILE"):
        new_run_settings(TrainingRequest(task="translate", files=["a.en", "a.de", "dev.de"], **halves))
    assert new_run_settings(TrainingRequest(task="generate", files=["a.en"], **halves))
    table: dict[str, Any] = {option: ["dev.tsv.gz"]}
    assert new_run_settings(TrainingRequest(task="translate", files=["a.tsv"], **table))


def test_resume_and_out_name_one_folder() -> None:
    assert TrainingRequest(resume="run", out="run")
    with pytest.raises(UsageError, match='resume="a" and out="b" name two folders; give only resume="a"'):
        TrainingRequest(resume="a", out="b")


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'recurrent'"):
        TrainingRequest(architecture="recurent")


def test_the_length_of_training_is_given_once() -> None:
    with pytest.raises(UsageError, match='time="1m" and steps=5 both set the length of training'):
        TrainingRequest(task="generate", files="a.txt", time="1m", steps=5)
