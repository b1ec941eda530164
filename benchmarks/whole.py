"""A complete run of `heedful train` compared with its training steps alone; one process, for `training.py`.

    python benchmarks/whole.py FOLDER SECONDS DEVICE

Trains a translator on Multi30k as the command does with default settings and a time limit: with data loader,
evaluations and checkpoints. After each evaluation, and on a CPU at each report in between, the run is paused, and a
second trainer of the same recipe runs a few bare steps on batches collated beforehand. Other load on the machine thus
slows both equally. (A GPU still has steps queued when a report is made, and is not paused.) Each window, from one
evaluation to the next, gives a ratio; the result is their median.

The time counts from before the first step to after the last checkpoint, without the bare steps. Preparation before it,
and final evaluation after it, are reported separately (`before_s`, `after_s`): they do not grow with the number of
steps. `parts_s` lists the time of each part in between. The last line printed is JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import torch

BARE = {"cpu": 10, "cuda": 100}
"""Bare steps at a time."""
INSIDE = {"evaluation": "evaluations", "step": "log"}
"""The part of a run in which an event is emitted."""
BARE_BATCHES = 240
"""Batches of an epoch that bare steps use."""


class Stopwatch:
    """Seconds spent in each wrapped function, including the functions it calls."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.running = True

    def wrap(self, owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                if self.running:
                    self.seconds[part] += time.perf_counter() - start

        setattr(owner, name, timed)


def wrap_parts() -> Stopwatch:
    from heedful.training import run
    from heedful.training import trainer as loop
    from heedful.training.checkpoint import checkpointer
    from heedful.training.tasks import translation as translate

    watch = Stopwatch()
    for owner, name, part in (
        (loop.Trainer, "step", "steps"),
        (loop.EpochDataset, "__getitem__", "loader"),
        (loop.Trainer, "_report", "log"),
        (loop.Trainer, "_evaluate", "evaluations"),
        (translate, "predict", "evaluations: loss"),
        (translate, "translate_texts", "evaluations: translating"),
        (run, "save", "evaluations: best model saved"),
        (checkpointer.Checkpointer, "save", "checkpoints"),
    ):
        watch.wrap(owner, name, part)
    return watch


class BareSteps:
    """A second trainer of the same recipe with batches collated beforehand."""

    def __init__(self, recipe: Path, device: str) -> None:
        from heedful.training.reporting.events import Events
        from heedful.training.request import TrainingRequest
        from heedful.training.run import build_trainer, prepare_request

        prepared = prepare_request(TrainingRequest(recipe=recipe, device=device))
        self.trainer = build_trainer(prepared, prepared.training_components(), Events())
        self.device = device
        batches = list(islice(self.trainer.batch_stream(), BARE_BATCHES * prepared.recipe.training.accumulate))
        self.stream = cycle(batches)
        if device == "cuda":  # captures a CUDA graph for each shape
            self._run(2 * BARE_BATCHES)

    def seconds(self) -> float:
        """Seconds per step, after a few steps that warm up the caches."""
        self._run(3)
        start = time.perf_counter()
        self._run(BARE[self.device])
        return (time.perf_counter() - start) / BARE[self.device]

    def _run(self, steps: int) -> None:
        for _ in range(steps):
            self.trainer.step(self.stream)
        if self.device == "cuda":
            torch.cuda.synchronize()


class RunTimer:
    """Listener that measures the windows of a run and pauses it for bare steps."""

    def __init__(self, recipe: Path, device: str) -> None:
        self.recipe, self.device, self.watch = recipe, device, wrap_parts()
        self.at = {"start": time.perf_counter()}
        self.paused = 0.0
        self.bare: list[list[float]] = [[]]
        """Seconds of a bare step, by window: at its start, within it, at its end."""
        self.ends: list[tuple[int, float]] = []
        """Number of steps and seconds at the end of each window."""

    def __call__(self, event: dict[str, Any]) -> None:
        self.at.setdefault(event["kind"], time.perf_counter() - self.paused)
        if event["kind"] == "ready":
            self.steps = BareSteps(self.recipe, self.device)
            self._pause(event["kind"])
        elif event["kind"] == "begin":
            self.watch.seconds.clear()
        elif event["kind"] == "evaluation":
            self.ends.append((event["step"], time.perf_counter() - self.paused - self.at["begin"]))
            self._pause(event["kind"])
            self.bare.append([self.bare[-1][-1]])
        elif event["kind"] == "step" and self.device == "cpu":
            self._pause(event["kind"])
        elif event["kind"] == "end":  # after one more checkpoint
            self.ends[-1] = (self.ends[-1][0], self.at["end"] - self.at["begin"])
            self.watch.running = False

    def _pause(self, kind: str) -> None:
        start, self.watch.running = time.perf_counter(), False
        self.bare[-1].append(self.steps.seconds())
        seconds, self.watch.running = time.perf_counter() - start, True
        self.paused += seconds
        self.watch.seconds[INSIDE.get(kind, "")] -= seconds  # its timer is still running

    def result(self) -> dict[str, Any]:
        starts = [(0, 0.0), *self.ends]
        whole = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(starts)]
        around = [statistics.mean(times) for times in self.bare[: len(whole)]]
        ratios = [b / w for b, w in zip(around, whole, strict=True)]
        low, middle, high = statistics.quantiles(ratios) if len(ratios) > 1 else ratios * 3
        parts, seconds = self.watch.seconds, self.ends[-1][1]
        counted = ("steps", "log", "evaluations", "checkpoints")  # the others are parts of these
        parts["rest"] = seconds - sum(parts[part] for part in counted)
        parts["steps"] -= parts["loader"]
        return {
            "steps": self.ends[-1][0],
            "evaluations": len(self.ends),
            "whole_ms": 1000 * seconds / self.ends[-1][0],
            "bare_ms": 1000 * statistics.mean(around),
            "ratio": middle,
            "ratio_quartiles": [low, high],
            "ratio_of_means": statistics.mean(around) * self.ends[-1][0] / seconds,
            "windows_ms": [[round(1000 * w, 2), round(1000 * b, 2)] for w, b in zip(whole, around, strict=True)],
            "before_s": round(self.at["begin"] - self.at["start"], 2),
            "parts_s": {part: round(parts[part], 2) for part in parts},
            "after_s": round(time.perf_counter() - self.paused - self.at["end"], 2),
        }


def main() -> None:
    corpus, seconds, device = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    import heedful

    files = [str(corpus / f"train.{side}") for side in ("en", "de")]
    valid = tuple(str(corpus / f"val.{side}") for side in ("en", "de"))
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"
        timer = RunTimer(out / "recipe.toml", device)
        trained = heedful.train(
            "translate", *files, valid=valid, time=seconds, device=device, out=str(out), listeners=[timer]
        )
        result = timer.result()
        done = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    shape = {key: getattr(trained.model.config, key) for key in ("width", "layers")}
    print(json.dumps({**shape, **result, "scores": {key: done["scores"][key] for key in ("bleu", "loss")}}))


if __name__ == "__main__":
    main()
