"""A short stretch of a run, in a process of its own that may be killed: what `--prove-resume` compares.

python -m heedful.training.resume_check_worker RUN COPY DEVICE KILL_AFTER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from heedful.device import select_device
from heedful.model_folder import save
from heedful.text.tokenizer import Tokenizer
from heedful.training.checkpoint.checkpointer import Checkpointer
from heedful.training.checkpoint.format import Checkpoint
from heedful.training.checkpoint.run_manifest import RunManifest
from heedful.training.forecast.forecast import forecast
from heedful.training.recipe import RECIPE, make_recipe, merge_settings, read_recipe
from heedful.training.reporting.events import Events
from heedful.training.resume import can_resume, load_interrupted_run, tokenizer_files
from heedful.training.run import create_run_folder, build_trainer, ready_again
from heedful.training.setup import PreparedRun, prepare_same_data
from heedful.training.signals import StopSignal
from heedful.training.trainer import Evaluation

STEPS = 30
SHORT = {"steps": STEPS, "evaluate_every": STEPS // 2, "checkpoint_every": 7, "keep": 2, "patience": 0}


def train_segment(source: Path, copy: Path, device: torch.device, kill_after: int) -> None:
    """Begin the stretch in `copy`, or go on with it; after step `kill_after` the process is killed."""
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    ready, begun, checkpoint = resumed(copy, device) if can_resume(str(copy)) else begun_anew(source, copy, device)
    trainer = build_trainer(ready, ready.lesson(), Events())
    keeper = Checkpointer(copy, begun, trainer)
    keeper.restore(checkpoint)

    def after_step() -> None:
        if trainer.progress.step == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        keeper.after_step(StopSignal())

    trainer.fit(lambda _: Evaluation(trainer.progress.step, {}), lambda best: save(best, copy), after_step)


def begun_anew(source: Path, copy: Path, device: torch.device) -> tuple[PreparedRun, RunManifest, Checkpoint]:
    recipe = make_recipe(merge_settings(read_recipe(source / RECIPE), {"training": SHORT}))
    tokenizers = tuple(Tokenizer.load(file) for file in tokenizer_files(source))
    data = prepare_same_data(recipe, tokenizers, Events())
    config = recipe.model_config_for(*(len(tokenizer) for tokenizer in tokenizers))
    ready = PreparedRun(recipe, data, config, None, device, forecast(recipe, data, config, device))
    return ready, *create_run_folder(ready, copy)


def resumed(copy: Path, device: torch.device) -> tuple[PreparedRun, RunManifest, Checkpoint]:
    run = load_interrupted_run(str(copy), {}, str(device), print)
    return ready_again(run, Events()), run.manifest, run.checkpoint


if __name__ == "__main__":
    train_segment(Path(sys.argv[1]), Path(sys.argv[2]), select_device(sys.argv[3]), int(sys.argv[4]))
