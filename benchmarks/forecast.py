"""Forecast and actual usage: `heedful plan` beside real runs, over a grid of models and batch sizes.

    python benchmarks/forecast.py [--device cpu] [--others] [--out benchmarks/results/forecast-cpu.json]

On a CPU each run is a separate process, since the peak memory of a process includes all it did before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import heedful

WIDTHS = {"cpu": (64, 256, 512), "cuda": (256, 1024)}
BATCHES = {"cpu": (1024, 8192), "cuda": (8192, 32_768)}
SHAPES: list[tuple[str, str]] = [
    ("translate", "transformer"),
    ("generate", "transformer"),
    ("translate", "recurrent"),
    ("generate", "recurrent"),
]
OTHER_TASKS: dict[str, tuple[str, str, list[str]]] = {
    "answer": ("squad/train-small.json", "squad/dev-small.json", []),
    "classify": ("sst2/train.tsv", "sst2/dev.tsv", []),
    "fill": ("wikitext2/train.txt", "wikitext2/valid.txt", []),
    "fill, next sentence": ("wikitext2/train.txt", "wikitext2/valid.txt", ["data.next_sentence=true"]),
    "embed": ("wikitext2/train.txt", "wikitext2/valid.txt", []),
}
"""Training file, validation file and settings; all others are the defaults, except for the width."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cpu")
    options.add_argument("--seconds", type=float, default=40.0, help="time allowed for each run")
    options.add_argument("--quick", action="store_true", help="two runs only")
    options.add_argument("--others", action="store_true", help="the tasks other than translate and generate")
    options.add_argument("--out", type=Path)
    options.add_argument("--one", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.one:
        print(json.dumps(run(*json.loads(arguments.one))))
        return
    if arguments.others:
        write_results(other_tasks(arguments.device, arguments.seconds, WIDTHS[arguments.device][:2]), arguments)
        return
    data = Path(os.environ["HEEDFUL_DATA"]) / "multi30k"
    runs = list(itertools.product(SHAPES, WIDTHS[arguments.device], BATCHES[arguments.device]))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        valid = [first_lines(data / f"val.{side}", Path(folder)) for side in ("en", "de")]
        for (task, kind), width, batch in runs[: 2 if arguments.quick else None]:
            files = [str(data / "train.en"), str(data / "train.de")]
            settings = [f"model.width={width}", f"training.batch_tokens={batch}", "tokenizer.vocabulary=6000"]
            if kind == "transformer":
                settings.append(f"model.heads={max(4, width // 64)}")
            sides = 2 if task == "translate" else 1
            run_arguments = (task, kind, arguments.device, arguments.seconds, files[:sides], valid[:sides], settings)
            result = (run if arguments.device == "cuda" else run_in_process)(
                *run_arguments, tempfile.mkdtemp(dir=folder)
            )
            results.append({"task": task, "kind": kind, "width": width, "batch_tokens": batch, **result})
            print(describe(results[-1]), flush=True)
    write_results(results, arguments)


def write_results(results: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    if arguments.out:
        arguments.out.write_text(json.dumps({**environment(arguments.device), "runs": results}, indent=1) + "\n")


def other_tasks(device: str, seconds: float, widths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Compare forecast and actual usage of each other task at two widths."""
    data, results = Path(os.environ["HEEDFUL_DATA"]), []
    for (name, (train, valid, extra)), width in itertools.product(OTHER_TASKS.items(), widths):
        settings = [f"model.width={width}", *extra, *([] if name == "embed" else ["model.heads=4"])]
        with tempfile.TemporaryDirectory() as out:
            task = name.partition(",")[0]
            run_arguments = (
                task,
                "transformer",
                device,
                seconds,
                [str(data / train)],
                [str(data / valid)],
                settings,
                out,
            )
            result = (run if device == "cuda" else run_in_process)(*run_arguments)
        results.append({"task": name, "kind": "transformer", "width": width, **result})
        print(describe(results[-1]), flush=True)
    return results


def first_lines(file: Path, folder: Path, number: int = 200) -> str:
    """The first lines of a validation file: training is forecast, not final scores."""
    short = folder / file.name
    short.write_text("".join(file.read_text(encoding="utf-8").splitlines(keepends=True)[:number]), encoding="utf-8")
    return str(short)


def run(
    task: str,
    kind: str,
    device: str,
    seconds: float,
    files: list[str],
    valid: list[str],
    settings: list[str],
    out: str,
) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    heedful.train(
        task, *files, architecture=kind, device=device, time=seconds, settings=tuple(settings), out=out,
        valid=tuple(valid), listeners=[events.append],
    )  # fmt: skip
    ready, done = (next(event for event in events if event["kind"] == kind) for kind in ("ready", "done"))
    training = {"batch_tokens": ready["recipe"]["training"]["batch_tokens"], "steps": ready["steps"]}
    return {**training, "parameters": sum(ready["parameters"].values()), "rows": done["compared"]}


def run_in_process(*run_arguments: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", json.dumps(run_arguments)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def describe(result: dict[str, Any]) -> str:
    rows = "  ".join(f"{row['name']} {row['ratio']:.2f}" for row in result["rows"])
    return (
        f"{result['task']:<19} {result['kind']:<11} width {result['width']:>4}  batch {result['batch_tokens']:>6}  "
        f"{result['steps']:>5} steps  actual/forecast: {rows}"
    )


def environment(device: str) -> dict[str, Any]:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return {
        "date": date.today().isoformat(),
        "machine": f"{name}, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__.partition("+")[0]},
        "command": f"python {' '.join(sys.argv)}",
    }


if __name__ == "__main__":
    main()
