"""Worker of `--check-resume`: train a short segment of a run in a separate process, which kills itself.

python -m heedful.training.resume_check_worker RUN COPY DEVICE KILL_AFTER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from heedful.device import select_device
from heedful.loading import read_tokenizers
from heedful.training.forecast.forecast import forecast
from heedful.training.recipe import make_recipe, read_recipe
from heedful.training.reporting.events import Events
from heedful.training.requested_settings import merge_settings
from heedful.training.resume import can_resume, load_interrupted_run
from heedful.training.run import Run, build_run
from heedful.training.run_catalog import RECIPE_FILE
from heedful.training.run_folder import create_run_folder
from heedful.training.setup import PreparedRun, prepare_data_again
from heedful.training.signals import StopSignal
from heedful.training.trainer import Evaluation

STEPS = 30
SEGMENT = {"steps": STEPS, "evaluate_every": STEPS // 2, "checkpoint_every": 7, "keep_checkpoints": 2, "patience": 0}


def train_segment(source: Path, copy: Path, device: torch.device, kill_after: int) -> None:
    """Start or resume the segment in `copy`; after step `kill_after` the process kills itself."""
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    run = resume_segment(copy, device) if can_resume(copy) else start_segment(source, copy, device)
    progress = run.trainer.progress

    def after_step() -> None:
        if progress.step == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        run.checkpointer.after_step(StopSignal())

    run.trainer.fit(lambda _: Evaluation(progress.step, {}), run.save_best, after_step)


def start_segment(source: Path, copy: Path, device: torch.device) -> Run:
    """Create a copy of a run that trains a few steps from step 0."""
    recipe = make_recipe(merge_settings(read_recipe(source / RECIPE_FILE), {"training": SEGMENT}))
    tokenizers = read_tokenizers(source)
    data = prepare_data_again(recipe, tokenizers, Events())
    config = recipe.model_config_for(*(len(tokenizer) for tokenizer in tokenizers))
    prepared = PreparedRun(recipe, data, config, None, device, forecast(recipe, data, config, device))
    with create_run_folder(prepared, copy) as manifest:
        run = build_run(prepared, copy, manifest, Events())
        run.checkpointer.save()
        run.checkpointer.wait()
    return run


def resume_segment(copy: Path, device: torch.device) -> Run:
    """Resume the copy from its checkpoint."""
    interrupted = load_interrupted_run(copy, {}, str(device), Events())
    prepared = interrupted.prepared(prepare_data_again(interrupted.recipe, interrupted.tokenizers, Events()))
    return build_run(prepared, copy, interrupted.manifest, Events(), checkpoint=interrupted.checkpoint)


if __name__ == "__main__":
    train_segment(Path(sys.argv[1]), Path(sys.argv[2]), select_device(sys.argv[3]), int(sys.argv[4]))
