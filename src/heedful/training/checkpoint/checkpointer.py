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
from heedful.training.checkpoint.run_manifest import STATE_FOLDER, RunManifest
from heedful.training.signals import StopSignal
from heedful.training.trainer import Trainer

PATIENCE = 50
"""Unless the recipe says how often, at least so many times as long as a save took goes by before the next."""


class Checkpointer:
    """Keeps a trainer's state in the folder of its run."""

    def __init__(self, folder: Path, manifest: RunManifest, trainer: Trainer) -> None:
        self.folder, self.manifest, self.trainer = folder, manifest, trainer
        self.last_saved = self.save_seconds = 0.0
        self.in_background = trainer.device.type != "cpu" and trainer.process_group.size == 1
        self.writer = ThreadPoolExecutor(max_workers=1)
        self.pending: Future[Path] | None = None

    def save(self) -> Path:
        """Write the state as it is now. What became of the last time is known first."""
        self.trainer.process_group.run_on_rank_zero(lambda: self.manifest.check_folder(self.folder))
        start = time.monotonic()
        self.wait()
        trainer = self.trainer
        tensors, progress = trainer.state()
        facts = {"seconds": trainer.events.seconds, "progress": progress}
        kept = {name: tensor.to("cpu", copy=True) if self.in_background else tensor for name, tensor in tensors.items()}
        checkpoint = Checkpoint(self.manifest.run_id, trainer.progress.step, {**kept}, facts)
        keep, state = trainer.recipe.keep_checkpoints, self.folder / STATE_FOLDER
        write = partial(write_checkpoint, state, checkpoint, keep=keep, process_group=trainer.process_group)
        if self.in_background:
            self.pending = self.writer.submit(write)
        else:
            write()
        self.last_saved = time.monotonic()
        self.save_seconds = self.last_saved - start
        return state / checkpoint.folder_name

    def wait(self) -> None:
        """Until what is being written is written."""
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take the state over, and let go of its files."""
        try:
            self.trainer.restore(checkpoint.tensors, checkpoint.metadata["progress"])
        except (RuntimeError, KeyError, TypeError) as error:
            why = str(error).replace("\n", " ")
            raise CheckpointError(f"the checkpoint of step {checkpoint.step} does not fit the model: {why}") from None
        checkpoint.tensors.clear()

    def after_step(self, stop: StopSignal) -> None:
        step = self.trainer.progress.step
        asked = self.trainer.process_group.shared_stop_signal(stop.received, step)
        if asked or self.trainer.finished or self._is_due():
            self.save()
        if asked or self.trainer.finished:
            self.wait()
        if asked:
            raise self.stop_error(asked)

    def stop_error(self, asked: int) -> StoppedError:
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
        return self.trainer.process_group.broadcast_from_rank_zero(lambda: time.monotonic() - self.last_saved >= PATIENCE * self.save_seconds)
