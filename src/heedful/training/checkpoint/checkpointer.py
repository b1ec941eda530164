"""When a run's state is written: every so often, at the end, and when somebody asks it to stop.

From a GPU it is copied, and written while training goes on; on a CPU it is written at once, since a copy would take
memory that may not be there. Several processes write at once, too: what they do together must not mix.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from heedful.errors import CheckpointError, StoppedError
from heedful.training.checkpoint.format import Checkpoint, write_checkpoint
from heedful.training.checkpoint.run_manifest import STATE, Begun
from heedful.training.signals import Stop
from heedful.training.trainer import Trainer

PATIENCE = 50
"""Unless the recipe says how often, at least so many times as long as a save took goes by before the next."""


class Keeper:
    """Keeps a trainer's state in the folder of its run."""

    def __init__(self, folder: Path, begun: Begun, trainer: Trainer) -> None:
        self.folder, self.begun, self.trainer = folder, begun, trainer
        self.saved = self.took = 0.0
        self.beside = trainer.device.type != "cpu" and trainer.world.size == 1
        self.writer = ThreadPoolExecutor(max_workers=1)
        self.under_way: Future[Path] | None = None

    def save(self) -> Path:
        """Write the state as it is now. What became of the last time is known first."""
        self.trainer.world.by_first(lambda: self.begun.require_there(self.folder))
        start = time.monotonic()
        self.wait()
        trainer = self.trainer
        tensors, progress = trainer.state()
        facts = {"seconds": trainer.events.seconds, "progress": progress}
        kept = {name: tensor.to("cpu", copy=True) if self.beside else tensor for name, tensor in tensors.items()}
        checkpoint = Checkpoint(self.begun.name, trainer.progress.step, {**kept}, facts)
        keep, state = trainer.recipe.keep, self.folder / STATE
        write = partial(write_checkpoint, state, checkpoint, keep=keep, world=trainer.world)
        if self.beside:
            self.under_way = self.writer.submit(write)
        else:
            write()
        self.saved = time.monotonic()
        self.took = self.saved - start
        return state / checkpoint.folder

    def wait(self) -> None:
        """Until what is being written is written."""
        if self.under_way is not None:
            self.under_way.result()
            self.under_way = None

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
        if asked or self.trainer.finished:
            self.wait()
        if asked:
            raise self.stopped(asked)

    def stopped(self, asked: int) -> StoppedError:
        """What ends a run that was asked to stop."""
        said = f"stopped after step {self.trainer.progress.step} and saved"
        return StoppedError(f"{said}; go on with: heedful train --resume {self.folder}", asked)

    def _is_due(self) -> bool:
        """How often state is written changes nothing but how much is lost, so that a clock may decide it."""
        recipe, step = self.trainer.recipe, self.trainer.progress.step
        if recipe.checkpoint_every:
            return step % recipe.checkpoint_every == 0
        if step % recipe.evaluate_every:
            return False
        return self.trainer.world.from_first(lambda: time.monotonic() - self.saved >= PATIENCE * self.took)
