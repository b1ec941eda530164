"""Resuming: find the state of an interrupted run and check that it may be continued."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heedful.data.dataset import PreparedData
from heedful.device import select_device
from heedful.errors import CheckpointError, UsageError
from heedful.files import verify_manifest
from heedful.loading import read_tokenizers
from heedful.model_files import CONFIG, TOKENIZER_FILE, WEIGHTS
from heedful.model_folder import TEMPORARY
from heedful.models.presets import make_config
from heedful.text.tokenizer import Tokenizer
from heedful.training.checkpoint.format import Checkpoint, list_checkpoints, newest_checkpoint, read_checkpoint
from heedful.training.checkpoint.run_manifest import (
    MANIFEST_FILE,
    STATE_FOLDER,
    RunManifest,
    check_data_unchanged,
    check_recipe_unchanged,
    machine_differences,
    read_run_manifest,
    tokenizer_checksums,
)
from heedful.training.forecast.forecast import Forecast
from heedful.training.recipe import Recipe, make_recipe, read_recipe, settings_of
from heedful.training.reporting.events import Events
from heedful.training.requested_settings import merge_settings
from heedful.training.run_catalog import LOG_FILE, RECIPE_FILE
from heedful.training.run_progress import RunProgress, is_finished
from heedful.training.setup import PreparedRun


@dataclass(frozen=True)
class InterruptedRun:
    """A run on disk: its manifest, its recipe and the checkpoint to continue from."""

    folder: Path
    manifest: RunManifest
    recipe: Recipe
    checkpoint: Checkpoint
    tokenizers: tuple[Tokenizer, ...]
    device: torch.device
    best_is_lost: bool = False
    """Whether the best model is damaged and no checkpoint is old enough to train it again."""

    @property
    def architecture(self) -> str:
        return "recurrent" if str(self.manifest.config["family"]).startswith("recurrent") else "transformer"

    @property
    def is_complete(self) -> bool:
        """Whether the run is trained, evaluated and reported."""
        progress = RunProgress(**self.checkpoint.metadata["progress"])
        finished = is_finished(self.recipe.training, progress) and _is_reported(self.folder)
        return finished and not self.best_is_lost

    def prepared(self, data: PreparedData) -> PreparedRun:
        """The run as it was prepared when it began; weights come from the checkpoint."""
        forecast = Forecast(**self.manifest.forecast).for_run(self.recipe.training)
        return PreparedRun(self.recipe, data, make_config(self.manifest.config), None, self.device, forecast)


def can_resume(path: str | Path) -> bool:
    """Whether `path` holds a run with a checkpoint; a folder whose creation was interrupted does not."""
    folder, _ = parse_resume_path(path)
    state = folder / STATE_FOLDER
    return (folder / RECIPE_FILE).is_file() or ((state / MANIFEST_FILE).is_file() and bool(list_checkpoints(state)))


def parse_resume_path(path: str | Path) -> tuple[Path, Path | None]:
    """The run folder, and the checkpoint if `path` is RUN/training/step-00000500."""
    path = Path(path)
    if re.fullmatch(r"step-\d{8}", path.name) and path.absolute().parent.name == STATE_FOLDER:
        return path.parent.parent, path
    return path, None


def load_interrupted_run(
    path: str | Path, requested: dict[str, Any], device: str, events: Events, *, trusted: bool = False
) -> InterruptedRun:
    """Load a run from its newest undamaged checkpoint, or from the one that `path` names.

    `requested` settings and files must agree with those the run began with. `trusted` skips the checksums of a
    checkpoint that rank 0 has verified.
    """
    folder, chosen = parse_resume_path(path)
    manifest = read_run_manifest(folder)
    stored = read_recipe(folder / RECIPE_FILE) if (folder / RECIPE_FILE).exists() else settings_of(manifest.recipe)
    recipe = make_recipe(merge_settings(stored, requested))
    check_recipe_unchanged(manifest, recipe, folder)
    check_data_unchanged(manifest, recipe)
    tokenizers = read_tokenizers(folder)
    if tokenizer_checksums(tokenizers) != manifest.tokenizers:
        raise CheckpointError(f"{folder / TOKENIZER_FILE} is not the tokenizer the run began with")
    best_is_lost = False
    if chosen:
        checkpoint = read_checkpoint(chosen, manifest.run_id, trusted=trusted)
    else:
        newest = newest_checkpoint(folder / STATE_FOLDER, manifest.run_id, events.note)
        checkpoint, best_is_lost = before_damaged_model(folder, newest, events)
    torch_device = resume_device(manifest, device)
    if changed := machine_differences(manifest, torch_device):
        events.note(f"the machine differs ({changed}): the last digits may differ from an uninterrupted run")
    return InterruptedRun(folder, manifest, recipe, checkpoint, tokenizers, torch_device, best_is_lost)


def before_damaged_model(folder: Path, newest: Checkpoint, events: Events) -> tuple[Checkpoint, bool]:
    """The newest checkpoint; if the best model is damaged, the newest from before it was saved, to train it again; and
    whether there is none, so that the best model is lost.

    A save that was interrupted is not damage: its evaluation comes after the newest checkpoint and is repeated.
    """
    best_step = newest.metadata["progress"]["best_step"]
    if not best_step or (folder / TEMPORARY).exists():
        return newest, False
    try:
        verify_manifest(folder, (CONFIG, WEIGHTS))
    except CheckpointError as error:
        for path in list_checkpoints(folder / STATE_FOLDER):
            with suppress(CheckpointError):
                older = read_checkpoint(path, newest.run_id)
                if older.metadata["progress"]["best_step"] < best_step:
                    events.note(f"{error}; resuming from a checkpoint before it was saved")
                    return older, False
        events.note(f"{error}, and every checkpoint is newer: the weights of step {newest.step:,} replace it")
        return newest, True
    return newest, False


def resume_device(manifest: RunManifest, requested: str) -> torch.device:
    """The requested device; for "auto" the one the run began on, if this machine has it."""
    try:
        return select_device(str(manifest.machine["device"]) if requested == "auto" else requested)
    except UsageError:
        if requested != "auto":
            raise
        return select_device()


def is_cleaned_up(folder: Path) -> bool:
    """Whether the run is finished and its training state has been deleted."""
    return _is_reported(folder) and not (folder / STATE_FOLDER / MANIFEST_FILE).exists()


def _is_reported(folder: Path) -> bool:
    """Whether the last event in the log is the final evaluation; notes may follow it."""
    try:
        kinds = [json.loads(line)["kind"] for line in (folder / LOG_FILE).read_bytes().splitlines()]
        return bool([kind for kind in kinds if kind != "note"][-1] == "done")
    except (OSError, ValueError, LookupError, TypeError):
        return False
