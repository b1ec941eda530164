"""A whole run of `heedful train` beside its bare steps: one contender's process, for `training.py`.

    python benchmarks/whole.py FOLDER SECONDS DEVICE

Trains a translator on Multi30k as the command does when it is given nothing but the files and the time: loader,
evaluations and checkpoints included. Then takes the same steps bare: the run's own batches, made beforehand, and
nothing else. The last line printed is JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    corpus, seconds, device = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    import heedful
    from heedful.training.events import Events
    from heedful.training.ready import get_ready
    from heedful.training.run import make_trainer
    from heedful.training.wishes import Wishes, starting_settings

    files = [str(corpus / f"train.{side}") for side in ("en", "de")]
    valid = tuple(str(corpus / f"val.{side}") for side in ("en", "de"))
    at: dict[str, float] = {}

    def listen(event: dict[str, Any]) -> None:
        at.setdefault(event["kind"], time.perf_counter())

    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"
        heedful.train(
            "translate", *files, valid=valid, seconds=seconds, device=device, out=str(out), listeners=[listen]
        )
        wish = Wishes(recipe=str(out / "recipe.toml"), device=device)
        ready = get_ready(starting_settings(wish), wish, Events())
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        evaluations = sum(line["kind"] == "evaluation" for line in lines)
        lesson = ready.lesson()
        trainer = make_trainer(ready, lesson, Events())
        accumulate, steps = ready.recipe.training.accumulate, ready.recipe.training.steps
        sample = min(60, steps)
        batches = list(islice(trainer.stream(), (sample + 5) * accumulate))
        stream = iter(batches)
        for _ in range(5):
            trainer.step(stream)
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(sample):
            trainer.step(stream)
        if device == "cuda":
            torch.cuda.synchronize()
        bare = (time.perf_counter() - start) / sample
    whole = (at["end"] - at["begin"]) / steps
    found = {"steps": steps, "evaluations": evaluations, "whole_ms": 1000 * whole, "bare_ms": 1000 * bare}
    print(json.dumps({**found, "ratio": bare / whole}))


if __name__ == "__main__":
    main()
