"""Going on with a run that was interrupted, as if it never had been."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heedful.device import select_device
from heedful.errors import CheckpointError, UsageError
from heedful.files import verify_manifest
from heedful.inference.trained import TARGET_TOKENIZER_FILE, TOKENIZER_FILE
from heedful.model_folder import ASIDE, CONFIG, WEIGHTS
from heedful.text.tokenizer import Tokenizer
from heedful.training.checkpoint.format import Checkpoint, list_checkpoints, newest_checkpoint, read_checkpoint
from heedful.training.checkpoint.run_manifest import (
    MANIFEST_FILE,
    STATE_FOLDER,
    RunManifest,
    machine_differences,
    read_run_manifest,
    check_recipe_unchanged,
    check_data_unchanged,
    tokenizer_checksums,
)
from heedful.training.recipe import RECIPE, Recipe, make_recipe, merge_settings, read_recipe
from heedful.training.reporting.events import METRICS_FILE
from heedful.training.run_progress import RunProgress, is_finished

Notify = Callable[[str], object]


@dataclass(frozen=True)
class InterruptedRun:
    """A run as it was left."""

    folder: Path
    manifest: RunManifest
    recipe: Recipe
    checkpoint: Checkpoint
    tokenizers: tuple[Tokenizer, ...]
    device: torch.device

    @property
    def architecture(self) -> str:
        return "recurrent" if str(self.manifest.config["family"]).startswith("recurrent") else "transformer"


def can_resume(path: str) -> bool:
    """Whether there is a run to resume; a folder laid out half, or not at all, is none."""
    return (run_and_checkpoint(path)[0] / RECIPE).is_file()


def run_and_checkpoint(path: str) -> tuple[Path, Path | None]:
    """The run's folder; and the checkpoint, if `path` is one of those in it."""
    given = Path(path)
    if re.fullmatch(r"step-\d{8}", given.name) and given.absolute().parent.name == STATE_FOLDER:
        return given.parent.parent, given
    return given, None


def load_interrupted_run(path: str, said: dict[str, Any], device: str, say: Notify, *, trusted: bool = False) -> InterruptedRun:
    """The run in a folder from its newest whole checkpoint, or from the very one that was named.

    What the caller `said` of recipe and files must agree with what the run began with. A checkpoint that is trusted was
    chosen, and summed, by the first process.
    """
    folder, chosen = run_and_checkpoint(path)
    begun = read_run_manifest(folder)
    asked = make_recipe(merge_settings(read_recipe(folder / RECIPE), said))
    check_recipe_unchanged(begun, asked, folder)
    check_data_unchanged(begun, asked)
    tokenizers = tuple(Tokenizer.load(file) for file in tokenizer_files(folder))
    if tokenizer_checksums(tokenizers) != begun.tokenizers:
        raise CheckpointError(f"{folder / TOKENIZER_FILE} is not the tokenizer the run began with")
    state = folder / STATE_FOLDER
    if chosen:
        checkpoint = read_checkpoint(chosen, begun.run_id, trusted=trusted)
    else:
        checkpoint = before_damaged_model(folder, newest_checkpoint(state, begun.run_id, say), say)
    there = resume_device(begun, device)
    if changed := machine_differences(begun, there):
        say(f"not on the machine it began on ({changed}): the last digits may differ from an uninterrupted run's")
    return InterruptedRun(folder, begun, asked, checkpoint, tokenizers, there)


def before_damaged_model(folder: Path, newest: Checkpoint, say: Notify) -> Checkpoint:
    """The newest checkpoint, if the best model in the folder is whole. If it is not, the newest from before it was
    written: the steps since then bring it back. A save that was killed is no damage: its step is yet to come again."""
    best = newest.metadata["progress"]["best_step"]
    if not best or (folder / ASIDE).exists():
        return newest
    try:
        verify_manifest(folder, (CONFIG, WEIGHTS))
    except CheckpointError as error:
        for path in list_checkpoints(folder / STATE_FOLDER):
            with suppress(CheckpointError):
                older = read_checkpoint(path, newest.run_id)
                if older.metadata["progress"]["best_step"] < best:
                    say(f"{error}; going back to a checkpoint from before it was written")
                    return older
        say(f"{error}, and no checkpoint is from before it was written: a better one has to come")
    return newest


def tokenizer_files(folder: Path) -> list[Path]:
    return [file for name in (TOKENIZER_FILE, TARGET_TOKENIZER_FILE) if (file := folder / name).is_file()]


def resume_device(begun: RunManifest, wanted: str) -> torch.device:
    """The device the run began on, unless another is asked for or that one is not here."""
    try:
        return select_device(str(begun.machine["device"]) if wanted == "auto" else wanted)
    except UsageError:
        if wanted != "auto":
            raise
        return select_device()


def is_complete(run: InterruptedRun) -> bool:
    """Whether the run is trained, scored and reported."""
    progress = RunProgress(**run.checkpoint.metadata["progress"])
    return is_finished(run.recipe.training, progress) and _is_reported(run.folder)


def is_cleaned_up(folder: Path) -> bool:
    """Whether the run is finished and its state deleted, as it may be."""
    return _is_reported(folder) and not (folder / STATE_FOLDER / MANIFEST_FILE).exists()


def _is_reported(folder: Path) -> bool:
    """Whether its log ends with its scores; what was proved of it since then may follow."""
    try:
        kinds = [json.loads(line)["kind"] for line in (folder / METRICS_FILE).read_bytes().splitlines()]
        return bool([kind for kind in kinds if kind != "note"][-1] == "done")
    except (OSError, ValueError, LookupError, TypeError):
        return False
