"""Saves a run's checkpoints: at intervals, at the end, and on a stop signal.

On a GPU the state is copied to main memory and written in the background. On a CPU it is written at once, since a copy
might not fit into memory; several ranks also write at once, since their collectives must stay in order.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from heedful.errors import CheckpointError, StoppedError
from heedful.syntax import call
from heedful.training.checkpoint.format import Checkpoint, write_checkpoint
from heedful.training.checkpoint.run_manifest import STATE_FOLDER, RunManifest
from heedful.training.signals import StopSignal
from heedful.training.trainer import Trainer

INTERVAL_FACTOR = 50
"""Without `checkpoint_every`, the time between saves is at least this many times the duration of a save."""


class Checkpointer:
    """Saves and restores a trainer's state in the folder of its run."""

    def __init__(self, folder: Path, manifest: RunManifest, trainer: Trainer) -> None:
        self.folder, self.manifest, self.trainer = folder, manifest, trainer
        self.last_saved = self.save_seconds = 0.0
        self.in_background = trainer.device.type != "cpu" and trainer.process_group.size == 1
        self.writer = ThreadPoolExecutor(max_workers=1)
        self.pending: Future[Path] | None = None

    def save(self) -> Path:
        """Write a checkpoint, in the background on a GPU; an error of the previous background save is raised first."""
        self.trainer.process_group.run_on_rank_zero(lambda: self.manifest.check_folder(self.folder))
        start = time.monotonic()
        self.wait()
        trainer = self.trainer
        tensors, progress = trainer.state()
        if self.in_background:
            tensors = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
        metadata = {"seconds": trainer.events.seconds, "progress": progress}
        checkpoint = Checkpoint(self.manifest.run_id, trainer.progress.step, {**tensors}, metadata)
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
        """Block until the pending save is on disk."""
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint into the trainer and close its files."""
        try:
            self.trainer.restore(checkpoint.tensors, checkpoint.metadata["progress"])
        except (RuntimeError, KeyError, TypeError) as error:
            reason = str(error).replace("\n", " ")
            raise CheckpointError(
                f"the checkpoint of step {checkpoint.step} does not fit the model: {reason}"
            ) from None
        checkpoint.tensors.clear()

    def after_step(self, stop: StopSignal) -> None:
        """Save if due; on a stop signal to any rank, save and raise StoppedError."""
        signal = self.trainer.process_group.shared_stop_signal(stop.received, self.trainer.progress.step)
        if signal or self.trainer.finished or self._is_due():
            self.save()
        if signal or self.trainer.finished:
            self.wait()
        if signal:
            raise self.stop_error(signal)

    def stop_error(self, signal: int) -> StoppedError:
        """The error that ends a run after a stop signal."""
        step = self.trainer.progress.step
        return StoppedError(
            f"stopped after step {step} and saved; resume with: {call('train', resume=self.folder)}", signal
        )

    def _is_due(self) -> bool:
        """Whether to save now. Wall-clock time may decide: it affects only how much work an interruption loses."""
        recipe, step = self.trainer.recipe, self.trainer.progress.step
        if recipe.checkpoint_every:
            return step % recipe.checkpoint_every == 0
        if step % recipe.evaluate_every:
            return False

        def long_enough() -> bool:
            return time.monotonic() - self.last_saved >= INTERVAL_FACTOR * self.save_seconds

        return self.trainer.process_group.broadcast_from_rank_zero(long_enough)
