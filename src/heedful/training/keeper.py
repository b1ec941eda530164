"""When a run's state is written: every so often, at the end, and when somebody asks it to stop."""

from __future__ import annotations

import time
from pathlib import Path

from heedful.errors import CheckpointError, StoppedError
from heedful.training.begun import STATE, Begun
from heedful.training.checkpoint import Checkpoint, write_checkpoint
from heedful.training.loop import Trainer
from heedful.training.signals import Stop

PATIENCE = 50
"""Unless the recipe says how often, at least so many times as long as a save took goes by before the next."""


class Keeper:
    """Keeps a trainer's state in the folder of its run."""

    def __init__(self, folder: Path, begun: Begun, trainer: Trainer) -> None:
        self.folder, self.begun, self.trainer = folder, begun, trainer
        self.saved = self.took = 0.0

    def save(self) -> Path:
        start = time.monotonic()
        tensors, progress = self.trainer.state()
        facts = {"seconds": self.trainer.events.seconds, "progress": progress}
        checkpoint = Checkpoint(self.begun.name, self.trainer.progress.step, {**tensors}, facts)
        trainer, keep = self.trainer, self.trainer.recipe.keep
        path = write_checkpoint(self.folder / STATE, checkpoint, keep=keep, world=trainer.world)
        self.saved = time.monotonic()
        self.took = self.saved - start
        return path

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take the state over, and let go of its files."""
        try:
            self.trainer.restore(checkpoint.tensors, checkpoint.facts["progress"])
        except (RuntimeError, KeyError, TypeError) as error:
            why = str(error).replace("\n", " ")
            raise CheckpointError(f"the checkpoint of step {checkpoint.step} does not fit the model: {why}") from None
        checkpoint.tensors.clear()

    def after_step(self, stop: Stop) -> None:
        step = self.trainer.progress.step
        asked = self.trainer.world.asked(stop.asked, step)
        if asked or self.trainer.finished or self._is_due():
            self.save()
        if asked:
            said = f"stopped after step {step} and saved; go on with: heedful train --resume {self.folder}"
            raise StoppedError(said, asked)

    def _is_due(self) -> bool:
        """How often state is written changes nothing but how much is lost, so that a clock may decide it."""
        recipe, step = self.trainer.recipe, self.trainer.progress.step
        if recipe.checkpoint_every:
            return step % recipe.checkpoint_every == 0
        if step % recipe.evaluate_every:
            return False
        return self.trainer.world.from_first(lambda: time.monotonic() - self.saved >= PATIENCE * self.took)
