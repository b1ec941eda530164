"""Run set-up: torch.compile is used where it was measured to be faster; CPU memory settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful.data.pair_dataset import PairBatches
from heedful.data.token_store import Sequences
from heedful.errors import UsageError
from heedful.training.recipe import TrainingRecipe
from heedful.training.request import TrainingRequest
from heedful.training.run import prepare_request
from heedful.training.setup import configure_cpu_memory

SCRIPT = """
import sys, torch
from dataclasses import replace
from heedful.training import setup
from heedful.training.request import TrainingRequest
from heedful.training.run import prepare_request

task, *files = sys.argv[1:]
settings = ("model.width=16", "model.heads=2", "model.layers=1", "training.batch_tokens=256", "training.context=16")
request = TrainingRequest(task=task, files=files, device="cpu", time=30, settings=settings)
run = prepare_request(request)
compiled, forecast = [], setup.forecast
setup.forecast = lambda recipe, *rest: compiled.append(recipe.training.compile) or forecast(recipe, *rest)
for seconds in (1e-9, 1e9):
    plain = replace(run.forecast, seconds_per_step=seconds)
    best, chosen = setup.try_compiling(run.recipe, plain, run.data, run.config, torch.device("cpu"))
    assert chosen == (task == "generate" and best.seconds_per_step < 0.95 * seconds), (chosen, best)
    assert chosen or best == plain
assert compiled == ([True, True] if task == "generate" else []), compiled
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["generate", "translate"])
def test_compiled_steps_are_used_if_they_are_faster(task: str, tmp_path: Path) -> None:
    """Only tried with batches of one shape: not for sentence pairs. In a subprocess, without shape checks."""
    lines = [f"a line {n % 17} of words {n % 5}\n" for n in range(400)]
    files = [tmp_path / name for name in ("one.txt", "other.txt")][: 1 if task == "generate" else 2]
    for file in files:
        file.write_text("".join(lines))
    subprocess.run([sys.executable, "-c", SCRIPT, task, *map(str, files)], check=True, cwd=tmp_path)


@pytest.mark.parametrize(
    ("fixed_shape", "precision", "capacity"),
    [(True, "float32", None), (False, "float32", "0"), (False, "bfloat16", None)],
)
def test_onednn_kernels_are_cached_only_for_fixed_shapes(
    fixed_shape: bool, precision: Any, capacity: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
    recipe = TrainingRecipe(steps=1, precision=precision)
    texts = Sequences.from_lists([[6, 7, 8]])
    batches = PairBatches(texts, texts, max_tokens=8, seed=0)
    monkeypatch.setattr(PairBatches, "fixed_shape", fixed_shape)
    configure_cpu_memory(recipe, batches, torch.device("cpu"))
    assert os.environ.get(name) == capacity
    monkeypatch.setenv(name, "7")
    configure_cpu_memory(recipe, batches, torch.device("cpu"))
    assert os.environ[name] == "7", "a value set by the user is kept"


@pytest.mark.parametrize(("chosen", "positions"), [((), "sinusoidal"), (("model.positions=none",), "none")])
def test_scores_without_content_train_without_another_setting(
    chosen: tuple[str, ...], positions: str, tmp_path: Path
) -> None:
    """The usual rotary positions turn queries and keys, which such scores do not read."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"one {n}\ttwo {n}\n" for n in range(40)), encoding="utf-8")
    settings = ("model.width=16", "model.heads=2", "model.layers=1", "model.score=uniform", *chosen)
    request = TrainingRequest(task="translate", files=(str(file),), device="cpu", steps=1, settings=settings)
    assert prepare_request(request).recipe.model["positions"] == positions


def test_the_context_of_a_language_model_fits_its_table_of_positions(tmp_path: Path) -> None:
    """The default context fits; a requested one that does not fit is refused before anything is built."""
    file = tmp_path / "book.txt"
    file.write_text("".join(f"a line {n}\n" for n in range(200)), encoding="utf-8")
    small = ("model.width=16", "model.heads=2", "model.layers=1", "model.score=position", "model.max_length=32")

    def prepare(*settings: str) -> Any:
        files = (str(file),)
        return prepare_request(
            TrainingRequest(task="generate", files=files, device="cpu", steps=1, settings=(*small, *settings))
        )

    assert prepare().recipe.training.context == 32
    with pytest.raises(UsageError, match=r"context=64 is longer than the 32 positions .* set training\.context=32"):
        prepare("training.context=64")
