"""Heads pruned in the order of a census, against random heads; and translations with an attention off.

    python benchmarks/pruning.py MODEL valid.en valid.de [--random 10] [--out benchmarks/results/pruning.json]

The census is taken on the first half of the pairs (evenly spaced), the losses are those of the other half. Random heads
are drawn from those that may be pruned: every attention keeps one head.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import heedful
from heedful.data.batching import evenly_split
from heedful.evaluation.bleu_tokenizer import choose_bleu_tokenizer
from heedful.evaluation.text_metrics import text_scores
from heedful.inspection.census.census_measurement import usable_passes
from heedful.inspection.census.pruning_choice import joint_loss, least_important_heads

SHARES = (0.15, 0.3, 0.45, 0.6, 0.75)
"""Shares of the prunable heads that are pruned."""


def main() -> None:
    arguments = read_arguments()
    model = heedful.load(arguments.model, device="cpu")
    pairs = list(zip(*(file.read_text().splitlines() for file in arguments.files), strict=True))
    chosen, others = ([pairs[index] for index in half] for half in evenly_split(len(pairs), len(pairs) // 2))
    chosen, others = chosen[: arguments.limit], others[: arguments.limit]
    model.measure_means(chosen)
    started = time.perf_counter()
    census = model.census(chosen)
    seconds = time.perf_counter() - started
    if arguments.picture:
        census.save(arguments.picture)
    print(census)
    result: dict[str, Any] = {
        "model": repr(model).replace(f"{str(arguments.model)!r}, ", ""),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": f"python benchmarks/pruning.py {' '.join(each.rpartition('/')[2] for each in sys.argv[1:])}",
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__.partition("+")[0]},
        "census": {"pairs": len(chosen), "parts": len(census.parts), "seconds": round(seconds, 1)},
        "aligning_head": census.aligning_head and census.aligning_head.to_json(),
        "pruned": prune_in_order(model, census, others, arguments.random),
        "switched_off": switch_off(model, census, others[: arguments.translations]),
    }
    print(json.dumps(result, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


def prune_in_order(model: Any, census: Any, pairs: Sequence[Any], draws: int) -> list[dict[str, Any]]:
    """The loss without the least important heads, the most important ones and random ones, all with mean values."""
    passes, _ = usable_passes(model.scored_passes, pairs, None)
    order = least_important_heads(census)
    base = joint_loss(model, passes, [], "mean")
    rows = []
    for share in SHARES:
        count = round(share * len(order))
        samples = [random.Random(seed).sample(order, count) for seed in range(draws)]
        chance = [joint_loss(model, passes, heads, "mean") - base for heads in samples]
        least, most = (joint_loss(model, passes, heads, "mean") - base for heads in (order[:count], order[-count:]))
        rows.append({"heads": count, "of": len(order), "loss": base, "least": least, "most": most, "random": chance})
        spread = f"random {min(chance):+.4f} … {max(chance):+.4f}"
        print(f"{count:3} of {len(order)}: least {least:+.4f}, {spread}, most {most:+.4f}", flush=True)
    return rows


def switch_off(model: Any, census: Any, pairs: Sequence[Any]) -> list[dict[str, Any]]:
    """BLEU and chrF of greedy translations with each cross-attention off, and with positions off."""
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    tokenizer = choose_bleu_tokenizer(targets)
    cross = [each.part for each in census.parts if each.kind == "cross-attention" and each.head is None]
    rows = []
    for parts in ([], *([name] for name in cross), ["encoder.positions"], ["decoder.positions"]):
        interventions = [heedful.Ablate(part) for part in parts]
        outputs = model.translate(sources, beam=1, interventions=interventions, keep=False)
        scores = text_scores(outputs, targets, tokenizer)
        kept = {name: scores[name] for name in ("bleu", "bleu_low", "bleu_high", "chrf", "exact_match")}
        rows.append({"off": parts, "texts": len(sources), **kept})
        print(parts or "nothing off", kept)
    return rows


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("files", type=Path, nargs=2)
    parser.add_argument("--random", type=int, default=10)
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--translations", type=int, default=200)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path, help="where to draw the census")
    return parser.parse_args()


if __name__ == "__main__":
    main()
