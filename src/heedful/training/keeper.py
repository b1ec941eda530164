"""When a run's state is written: every so often, at the end, and when somebody asks it to stop."""

from __future__ import annotations

from pathlib import Path

from heedful.errors import CheckpointError, StoppedError
from heedful.training.begun import STATE, Begun
from heedful.training.checkpoint import Checkpoint, write_checkpoint
from heedful.training.loop import Trainer
from heedful.training.signals import Stop


class Keeper:
    """Keeps a trainer's state in the folder of its run."""

    def __init__(self, folder: Path, begun: Begun, trainer: Trainer) -> None:
        self.folder, self.begun, self.trainer = folder, begun, trainer

    def save(self) -> Checkpoint:
        tensors, progress = self.trainer.state()
        facts = {"seconds": self.trainer.events.seconds, "progress": progress}
        checkpoint = Checkpoint(self.begun.name, self.trainer.progress.step, tensors, facts)
        write_checkpoint(self.folder / STATE, checkpoint, keep=self.trainer.recipe.keep)
        return checkpoint

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take the state over. Its tensors are let go: they are as large as all that training holds."""
        try:
            self.trainer.restore(checkpoint.tensors, checkpoint.facts["progress"])
        except (RuntimeError, KeyError, TypeError) as error:
            why = str(error).replace("\n", " ")
            raise CheckpointError(f"the checkpoint of step {checkpoint.step} does not fit the model: {why}") from None
        checkpoint.tensors.clear()

    def after_step(self, stop: Stop) -> None:
        recipe, step = self.trainer.recipe, self.trainer.progress.step
        if stop.asked or self.trainer.finished or step % (recipe.checkpoint_every or recipe.evaluate_every) == 0:
            self.save()
        if stop.asked:
            said = f"stopped after step {step} and saved; go on with: heedful train --resume {self.folder}"
            raise StoppedError(said, stop.asked)
