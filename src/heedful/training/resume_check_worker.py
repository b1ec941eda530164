"""A short stretch of a run, in a process of its own that may be killed: what `--prove-resume` compares.

python -m heedful.training.resume_check_worker RUN COPY DEVICE KILL_AFTER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from heedful.device import pick_device
from heedful.model_folder import save
from heedful.text.tokenizer import Tokenizer
from heedful.training.checkpoint.checkpointer import Keeper
from heedful.training.checkpoint.format import Checkpoint
from heedful.training.checkpoint.run_manifest import Begun
from heedful.training.forecast.forecast import forecast
from heedful.training.recipe import RECIPE, make_recipe, merged, read_recipe
from heedful.training.reporting.events import Events
from heedful.training.resume import has_begun, pick_up, tokenizer_files
from heedful.training.run import lay_out, make_trainer, ready_again
from heedful.training.setup import Ready, prepare_again
from heedful.training.signals import Stop
from heedful.training.trainer import Evaluation

STEPS = 30
SHORT = {"steps": STEPS, "evaluate_every": STEPS // 2, "checkpoint_every": 7, "keep": 2, "patience": 0}


def walk(source: Path, copy: Path, device: torch.device, kill_after: int) -> None:
    """Begin the stretch in `copy`, or go on with it; after step `kill_after` the process is killed."""
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    ready, begun, checkpoint = resumed(copy, device) if has_begun(str(copy)) else begun_anew(source, copy, device)
    trainer = make_trainer(ready, ready.lesson(), Events())
    keeper = Keeper(copy, begun, trainer)
    keeper.restore(checkpoint)

    def after_step() -> None:
        if trainer.progress.step == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        keeper.after_step(Stop())

    trainer.run(lambda _: Evaluation(trainer.progress.step, {}), lambda best: save(best, copy), after_step)


def begun_anew(source: Path, copy: Path, device: torch.device) -> tuple[Ready, Begun, Checkpoint]:
    recipe = make_recipe(merged(read_recipe(source / RECIPE), {"training": SHORT}))
    tokenizers = tuple(Tokenizer.load(file) for file in tokenizer_files(source))
    data = prepare_again(recipe, tokenizers, Events())
    config = recipe.model_config_for(*(len(tokenizer) for tokenizer in tokenizers))
    ready = Ready(recipe, data, config, None, device, forecast(recipe, data, config, device))
    return ready, *lay_out(ready, copy)


def resumed(copy: Path, device: torch.device) -> tuple[Ready, Begun, Checkpoint]:
    run = pick_up(str(copy), {}, str(device), print)
    return ready_again(run, Events()), run.begun, run.checkpoint


if __name__ == "__main__":
    walk(Path(sys.argv[1]), Path(sys.argv[2]), pick_device(sys.argv[3]), int(sys.argv[4]))
