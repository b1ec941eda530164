"""Compiled steps are chosen where they were measured to be faster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRIED = """
import sys, torch
from heedful.training import setup as ready
from heedful.training.reporting.events import Events
from heedful.training.request import Wishes, starting_settings

task, *files = sys.argv[1:]
settings = ("model.width=16", "model.heads=2", "model.layers=1", "training.batch_tokens=256", "training.context=16")
wish = Wishes(task, tuple(files), device="cpu", seconds=30.0, settings=settings)
made = ready.get_ready(starting_settings(wish), wish, Events())
asked, forecast = [], ready.forecast
ready.forecast = lambda recipe, *rest: asked.append(recipe.training.compile) or forecast(recipe, *rest)
for seconds in (1e-9, 1e9):
    from dataclasses import replace
    plain = replace(made.forecast, seconds_per_step=seconds)
    found, chosen = ready.faster_compiled(made.recipe, plain, made.data, made.config, torch.device("cpu"))
    assert chosen == (task == "generate" and found.seconds_per_step < 0.95 * seconds), (chosen, found)
    assert chosen or found == plain
assert asked == ([True, True] if task == "generate" else []), asked
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["generate", "translate"])
def test_compiled_steps_are_tried_and_taken_if_they_are_faster(task: str, tmp_path: Path) -> None:
    """Windows of a text have one shape; sentences have many, and are not tried. In a process without shape checks."""
    lines = [f"a line {n % 17} of words {n % 5}\n" for n in range(400)]
    files = [tmp_path / name for name in ("one.txt", "other.txt")][: 1 if task == "generate" else 2]
    for file in files:
        file.write_text("".join(lines))
    subprocess.run([sys.executable, "-c", TRIED, task, *map(str, files)], check=True, cwd=tmp_path)
