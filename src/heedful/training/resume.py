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

from heedful.device import pick_device
from heedful.errors import CheckpointError, UsageError
from heedful.files import verify_manifest
from heedful.inference.trained import TARGET_TOKENIZER, TOKENIZER
from heedful.model_folder import ASIDE, CONFIG, WEIGHTS
from heedful.text.tokenizer import Tokenizer
from heedful.training.checkpoint.format import Checkpoint, checkpoints, newest_checkpoint, read_checkpoint
from heedful.training.checkpoint.run_manifest import (
    RUN,
    STATE,
    Begun,
    other_machine,
    read_beginning,
    refuse_other_recipe,
    refuse_other_text,
    tokenizer_sums,
)
from heedful.training.recipe import RECIPE, Recipe, make_recipe, merged, read_recipe
from heedful.training.reporting.events import METRICS_FILE
from heedful.training.run_progress import Progress, is_finished

Say = Callable[[str], object]


@dataclass(frozen=True)
class Unfinished:
    """A run as it was left."""

    folder: Path
    begun: Begun
    recipe: Recipe
    checkpoint: Checkpoint
    tokenizers: tuple[Tokenizer, ...]
    device: torch.device

    @property
    def kind(self) -> str:
        return "recurrent" if str(self.begun.config["family"]).startswith("recurrent") else "transformer"


def has_begun(path: str) -> bool:
    """Whether there is a run to resume; a folder laid out half, or not at all, is none."""
    return (run_and_checkpoint(path)[0] / RECIPE).is_file()


def run_and_checkpoint(path: str) -> tuple[Path, Path | None]:
    """The run's folder; and the checkpoint, if `path` is one of those in it."""
    given = Path(path)
    if re.fullmatch(r"step-\d{8}", given.name) and given.absolute().parent.name == STATE:
        return given.parent.parent, given
    return given, None


def pick_up(path: str, said: dict[str, Any], device: str, say: Say, *, trusted: bool = False) -> Unfinished:
    """The run in a folder from its newest whole checkpoint, or from the very one that was named.

    What the caller `said` of recipe and files must agree with what the run began with. A checkpoint that is trusted was
    chosen, and summed, by the first process.
    """
    folder, chosen = run_and_checkpoint(path)
    begun = read_beginning(folder)
    asked = make_recipe(merged(read_recipe(folder / RECIPE), said))
    refuse_other_recipe(begun, asked, folder)
    refuse_other_text(begun, asked)
    tokenizers = tuple(Tokenizer.load(file) for file in tokenizer_files(folder))
    if tokenizer_sums(tokenizers) != begun.tokenizers:
        raise CheckpointError(f"{folder / TOKENIZER} is not the tokenizer the run began with")
    state = folder / STATE
    if chosen:
        checkpoint = read_checkpoint(chosen, begun.name, trusted=trusted)
    else:
        checkpoint = before_damage(folder, newest_checkpoint(state, begun.name, say), say)
    there = device_again(begun, device)
    if changed := other_machine(begun, there):
        say(f"not on the machine it began on ({changed}): the last digits may differ from an uninterrupted run's")
    return Unfinished(folder, begun, asked, checkpoint, tokenizers, there)


def before_damage(folder: Path, newest: Checkpoint, say: Say) -> Checkpoint:
    """The newest checkpoint, if the best model in the folder is whole. If it is not, the newest from before it was
    written: the steps since then bring it back. A save that was killed is no damage: its step is yet to come again."""
    best = newest.facts["progress"]["best_step"]
    if not best or (folder / ASIDE).exists():
        return newest
    try:
        verify_manifest(folder, (CONFIG, WEIGHTS))
    except CheckpointError as error:
        for path in checkpoints(folder / STATE):
            with suppress(CheckpointError):
                older = read_checkpoint(path, newest.run)
                if older.facts["progress"]["best_step"] < best:
                    say(f"{error}; going back to a checkpoint from before it was written")
                    return older
        say(f"{error}, and no checkpoint is from before it was written: a better one has to come")
    return newest


def tokenizer_files(folder: Path) -> list[Path]:
    return [file for name in (TOKENIZER, TARGET_TOKENIZER) if (file := folder / name).is_file()]


def device_again(begun: Begun, wanted: str) -> torch.device:
    """The device the run began on, unless another is asked for or that one is not here."""
    try:
        return pick_device(str(begun.machine["device"]) if wanted == "auto" else wanted)
    except UsageError:
        if wanted != "auto":
            raise
        return pick_device()


def nothing_left(run: Unfinished) -> bool:
    """Whether the run is trained, scored and reported."""
    progress = Progress(**run.checkpoint.facts["progress"])
    return is_finished(run.recipe.training, progress) and _is_reported(run.folder)


def was_tidied(folder: Path) -> bool:
    """Whether the run is finished and its state deleted, as it may be."""
    return _is_reported(folder) and not (folder / STATE / RUN).exists()


def _is_reported(folder: Path) -> bool:
    """Whether its log ends with its scores; what was proved of it since then may follow."""
    try:
        kinds = [json.loads(line)["kind"] for line in (folder / METRICS_FILE).read_bytes().splitlines()]
        return bool([kind for kind in kinds if kind != "note"][-1] == "done")
    except (OSError, ValueError, LookupError, TypeError):
        return False
