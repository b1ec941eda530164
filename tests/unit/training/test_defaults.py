"""Defaults: more text and more time never give a smaller model, and every default can be built."""

from __future__ import annotations

from dataclasses import replace

import pytest

import heedful
from heedful.models.presets import make_config
from heedful.training.defaults import TrainingConditions, parameters
from heedful.training.recipe import TrainingRecipe
from heedful.training.tasks import TASKS, get_task

LAPTOP = TrainingConditions(recurrent=False, tokens=900_000, seconds=600.0, flops=2e11, gpu=False)


@pytest.mark.parametrize("name", sorted({*TASKS} - {"embed"}))  # whose vectors have one size
@pytest.mark.parametrize("gpu", [False, True])
def test_more_text_or_more_time_never_gives_a_smaller_model(name: str, gpu: bool) -> None:
    task = get_task(name)

    def size(**changes: float) -> int:
        model = task.model_defaults(replace(LAPTOP, gpu=gpu, flops=7e14 if gpu else 2e11, **changes))
        return parameters({name: model[name] for name in ("width", "layers")}, task.scaling_rule)

    by_time = [size(seconds=10.0**power, tokens=50_000_000) for power in range(1, 7)]
    assert by_time == sorted(by_time)
    assert by_time[0] < by_time[-1]
    by_text = [size(tokens=10**power, seconds=1e7) for power in range(4, 9)]
    assert by_text == sorted(by_text)
    assert by_text[0] < by_text[-1]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("tokens", [1_000, 10_000_000])
def test_defaults_are_a_valid_model_and_recipe(name: str, recurrent: bool, tokens: int) -> None:
    task, conditions = get_task(name), replace(LAPTOP, recurrent=recurrent, tokens=tokens)
    if recurrent and not task.has_recurrent_model:
        pytest.skip("refused; see the journeys")
    settings = task.model_defaults(conditions)
    assert heedful.count_parameters(make_config({**settings, "vocabulary": 1000})).total > 0
    assert TrainingRecipe(steps=1, **task.training_defaults(conditions, settings))


def test_the_vocabulary_grows_with_the_text_within_bounds() -> None:
    sizes = [get_task("translate").vocabulary_size(10**power) for power in range(3, 11)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 512
    assert sizes[-1] == 32_000
    assert get_task("generate").vocabulary_size(10**6) < get_task("translate").vocabulary_size(10**6)


def test_the_validation_split_stays_small_for_long_texts() -> None:
    assert get_task("generate").validation_fraction(1_000_000) == 0.1
    assert get_task("translate").validation_fraction(1_000_000) == 0.02
    assert get_task("generate").validation_fraction(10**9) * 10**9 == pytest.approx(5_000_000)
