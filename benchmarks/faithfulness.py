"""Faithfulness of every attribution method, for one trained model on validation text, and the plot of several models.

python benchmarks/faithfulness.py measure "Multi30k translator" translate-1 val.en --texts 100
python benchmarks/faithfulness.py measure "SST-2 classifier" classify-1 dev.tsv --column 1 --texts 100
python benchmarks/faithfulness.py plot docs/faithfulness.png          # also prints the table

Explained are the model's own answers: of each text some outputs, evenly spaced. A measurement that is not finished
after `--seconds` stops and says on how many texts it is; texts are in an order drawn once, so that any number of them
is spread over the file. With `--column` the file is a table with a header. Results are added to
results/faithfulness-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import heedful
from heedful.inspection.attribution.explain_passes import faithfulness_curves
from heedful.inspection.attribution.faithfulness import RANDOM, OutputCurves, summarize
from heedful.inspection.attribution.methods import available_methods
from heedful.inspection.attribution.perturbation import perturbation_name

RESULTS = Path(__file__).parent / "results" / "faithfulness-cpu.json"
GRID = np.linspace(0, 1, 11)
"""The shares of hidden words at which curves of different lengths are averaged."""


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    trained = heedful.load(arguments.model, device="cpu")
    texts = arguments.file.read_text(encoding="utf-8").splitlines()
    if arguments.column is not None:
        texts = [line.split("\t")[arguments.column] for line in texts[1:]]
    order = np.random.default_rng(0).permutation(len(texts))[: arguments.texts]
    curves: list[list[OutputCurves]] = []
    start = time.monotonic()
    for index in order.tolist():
        passes = trained.scored_passes(texts[index])[:1]
        curves += faithfulness_curves(trained, passes, outputs_per_text=arguments.outputs, seed=index)
        if time.monotonic() - start > arguments.seconds:
            break
    table = summarize(curves, perturbation_name(trained))
    print(arguments.name, table, f"{time.monotonic() - start:.0f} s", sep="\n", flush=True)
    outputs = [output for text in curves for output in text]
    names = [*available_methods(trained), RANDOM]
    return {
        "model": repr(trained).replace(repr(str(arguments.model)) + ", ", ""),
        "text": f"{arguments.file.name}: {table.texts} of {len(texts):,} lines, drawn once",
        "seconds": round(time.monotonic() - start),
        "table": table.model_dump(mode="json"),
        "curves": {name: mean_curves([each.curves[name] for each in outputs], outputs) for name in names},
        "random_orders": mean_curves([each.random.mean(0) for each in outputs], outputs),
        "command": f"python {shlex.join(sys.argv)}".replace(f"{arguments.file.parent}/", "").replace(
            f"{arguments.model.parent}/", ""
        ),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__.partition("+")[0]},
        "date": date.today().isoformat(),
    }


def mean_curves(curves: list[Any], outputs: list[OutputCurves]) -> dict[str, list[float]]:
    """Mean deletion and insertion curves on a common grid."""
    pairs = list(zip(curves, outputs, strict=True))
    return {
        side: np.mean([np.interp(GRID, output.fractions, each[row]) for each, output in pairs], axis=0)
        .round(4)
        .tolist()
        for row, side in enumerate(("deletion", "insertion"))
    }


def print_table(results: dict[str, Any]) -> None:
    """Methods × models in Markdown: area between curves, with its interval."""
    rows: dict[str, dict[str, str]] = {}
    for name, each in results.items():
        for one in each["table"]["methods"]:
            number = f"{one['area']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f})"
            rows.setdefault(one["method"], {})[name] = number
    print("| method |", " | ".join(results), "|")
    print("| --- |" + " --- |" * len(results))
    for method, numbers in rows.items():
        print(f"| `{method}` |", " | ".join(numbers.get(name, "not available") for name in results), "|")


def plot(results: dict[str, Any], file: Path) -> None:
    """Deletion curves, insertion curves and areas with their intervals, one row a model."""
    from matplotlib.figure import Figure

    figure = Figure((12, 3.4 * len(results)), dpi=110, layout="constrained")
    methods = sorted({name for each in results.values() for name in each["curves"]} - {RANDOM})
    colors = {name: f"C{index}" for index, name in enumerate(methods)} | {RANDOM: "0.6"}
    rows = figure.subplots(len(results), 3, squeeze=False)
    for axes, (name, each) in zip(rows, results.items(), strict=True):
        for panel, side in zip(axes, ("deletion", "insertion"), strict=False):
            panel.plot(GRID, each["random_orders"][side], color="0.4", linestyle=":", label="random orders")
            for method in methods:
                if method in each["curves"]:
                    panel.plot(GRID, each["curves"][method][side], color=colors[method], label=method)
            panel.set_title(f"{name}: {side}", fontsize=10, loc="left")
            panel.set_xlabel(f"share of words {'hidden' if side == 'deletion' else 'shown'}")
            panel.set_ylabel("probability of the output")
        table = each["table"]["methods"]
        for row, one in enumerate(table):
            axes[2].plot([one["low"], one["high"]], [row, row], color=colors[one["method"]], linewidth=2.5)
            axes[2].plot(one["area"], row, "o", color=colors[one["method"]])
        axes[2].set_yticks(range(len(table)), [one["method"] for one in table])
        axes[2].invert_yaxis()
        axes[2].axvline(0, color="0.4", linestyle=":")
        axes[2].set_title("area to random orders, 95% interval", fontsize=10, loc="left")
    rows[0][0].legend(frameon=False, fontsize=8)
    for panel in rows.flat:
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("name")
    measuring.add_argument("model", type=Path)
    measuring.add_argument("file", type=Path)
    measuring.add_argument("--column", type=int)
    measuring.add_argument("--texts", type=int, default=100)
    measuring.add_argument("--outputs", type=int, default=2)
    measuring.add_argument("--seconds", type=float, default=200.0)
    commands.add_parser("plot").add_argument("file", type=Path)
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if arguments.command == "plot":
        print_table(results)
        plot(results, arguments.file)
        return
    results[arguments.name] = measure(arguments)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
