"""Time and additional memory of saving and restoring a sharded checkpoint, for each rank.

torchrun --standalone --nproc-per-node 2 benchmarks/sharded_checkpoint.py --width 1024 --layers 12 --out checkpoints
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch

import heedful
from heedful.data.text_dataset import TextBatches
from heedful.data.token_store import Sequences
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.training.checkpoint.format import Checkpoint, newest_checkpoint, write_checkpoint
from heedful.training.distributed.fsdp import local_shard
from heedful.training.distributed.process_group import ProcessGroup, join_process_group
from heedful.training.recipe import TrainingRecipe
from heedful.training.reporting.events import Events
from heedful.training.trainer import Trainer


def kibibytes(name: str) -> int:
    """A value of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def measure(name: str, work: Callable[[], object], process_group: ProcessGroup) -> None:
    """Print the time of some work, and the peak memory of each rank beyond that before."""
    process_group.all_gather(lambda: Path("/proc/self/clear_refs").write_text("5"))  # resets the peak
    before, start = kibibytes("VmRSS"), time.perf_counter()
    work()
    seconds, added = time.perf_counter() - start, kibibytes("VmHWM") - before
    peaks = ", ".join(f"{peak / 2**20:.2f}" for peak in process_group.all_gather(lambda: added))
    if process_group.is_rank_zero:
        print(f"{name:<8}{seconds:6.1f} s   {peaks} GiB of additional peak memory per rank")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--unsharded", action="store_true", help="replicate the weights")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with join_process_group("cpu") as process_group:
        model = heedful.build("laptop-writer", vocabulary=8192, width=arguments.width, heads=8, layers=arguments.layers)
        recipe = TrainingRecipe(steps=9, average="exponential", shard=not arguments.unsharded)
        batches = TextBatches(Sequences.from_lists([[7, 8, 9, 10]]), context=2, rows=2, seed=0)
        device = torch.device("cpu")
        trainer = Trainer(
            model, CausalLMLoss(), batches, recipe, seed=0, device=device, events=Events(), process_group=process_group
        )
        trainer.step(trainer.batch_stream())
        tensors, progress = trainer.state()
        total = sum(tensor.nbytes for tensor in tensors.values())
        local = sum(local_shard(tensor).tensor.nbytes for tensor in tensors.values())
        if process_group.is_rank_zero:
            print(f"state {total / 2**30:.2f} GiB, of which each rank holds {local / 2**30:.2f}")
        checkpoint = Checkpoint("run", 1, {**tensors}, {"progress": progress})
        measure(
            "save",
            lambda: write_checkpoint(arguments.out, checkpoint, keep=1, process_group=process_group),
            process_group,
        )

        def restore() -> None:
            newest = newest_checkpoint(arguments.out, "run", print)
            trainer.restore(newest.tensors, newest.metadata["progress"])

        measure("restore", restore, process_group)
        process_group.run_on_rank_zero(lambda: shutil.rmtree(arguments.out))


if __name__ == "__main__":
    main()
