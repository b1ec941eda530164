"""What saving and restoring the state of a sharded run takes of each process: memory beyond what it trains with, time.

torchrun --standalone --nproc-per-node 2 benchmarks/parts.py --width 1024 --layers 12 --out /tmp/parts
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
    """A line of what Linux says about this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def measured(what: str, work: Callable[[], object], world: ProcessGroup) -> None:
    """Its time, and the most memory it had beyond what was held before, in each process."""
    world.all_gather(lambda: Path("/proc/self/clear_refs").write_text("5"))  # forget the peak so far
    before, start = kibibytes("VmRSS"), time.perf_counter()
    work()
    took, more = time.perf_counter() - start, kibibytes("VmHWM") - before
    peaks = ", ".join(f"{peak / 2**20:.2f}" for peak in world.all_gather(lambda: more))
    if world.is_rank_zero:
        print(f"{what:<8}{took:6.1f} s   {peaks} GiB more at the peak of each process")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--whole", action="store_true", help="weights are not cut")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    with join_process_group("cpu") as world:
        model = heedful.build("laptop-writer", vocabulary=8192, width=asked.width, heads=8, layers=asked.layers)
        recipe = TrainingRecipe(steps=9, average="exponential", shard=not asked.whole)
        batches = TextBatches(Sequences.from_lists([[7, 8, 9, 10]]), context=2, rows=2, seed=0)
        device = torch.device("cpu")
        trainer = Trainer(model, CausalLMLoss(), batches, recipe, seed=0, device=device, events=Events(), process_group=world)
        trainer.step(trainer.batch_stream())
        tensors, facts = trainer.state()
        whole = sum(tensor.nbytes for tensor in tensors.values())
        own = sum(local_shard(tensor).tensor.nbytes for tensor in tensors.values())
        if world.is_rank_zero:
            print(f"state {whole / 2**30:.2f} GiB, of which a process keeps {own / 2**30:.2f}")
        kept = Checkpoint("run", 1, {**tensors}, {"progress": facts})
        measured("save", lambda: write_checkpoint(asked.out, kept, keep=1, process_group=world), world)

        def restore() -> None:
            found = newest_checkpoint(asked.out, "run", print)
            trainer.restore(found.tensors, found.metadata["progress"])

        measured("restore", restore, world)
        world.run_on_rank_zero(lambda: shutil.rmtree(asked.out))


if __name__ == "__main__":
    main()
