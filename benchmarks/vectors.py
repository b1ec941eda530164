"""Word vectors by heedful and gensim on the text of enwik8: words per second and quality.

    python benchmarks/vectors.py --data DATA --gensim PYTHON     PYTHON: an interpreter with gensim installed

Both train on the same file (`enwik8.words`: one article per line, a to z): skip-gram, vector size 100, window 5, 5
negatives, min_count 5, subsampling 1e-3, on the same number of cores. They alternate, `--runs` times with another seed
each. All models are scored after all are trained.

  words_per_second       words of the text over the time from the first training step to the last; heedful's includes
                         evaluations and checkpoints; `whole` is the time of the whole command
  words_per_cpu_second   the same over processor time
  gensim                 Word2Vec(corpus_file=…), its fastest mode: one thread per core without the GIL
  scores                 by `heedful evaluate` for both: Google's analogies (19,544), WordSim-353 and SimLex-999;
                         for gensim also its own scores
  halves                 the similarity sets split at random (with a fixed seed), each half scored separately

DATA contains enwik8/enwik8.gz and word_similarity/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import enwik8
from layers import machine

RESULTS = Path(__file__).parent / "results"
BATCH_WORDS = 1024
"""Words of a step, the default of `heedful train embed`."""
BENCHMARKS = ("questions-words.txt", "wordsim353.tsv", "simlex999.txt")
GENSIM_TRAINING = """
import json, sys, time
from gensim.models import Word2Vec
import gensim
text, out, epochs, workers, seed = sys.argv[1:]
begin = time.perf_counter()
model = Word2Vec(vector_size=100, window=5, min_count=5, sg=1, negative=5, sample=1e-3, workers=int(workers),
                 seed=int(seed))
model.build_vocab(corpus_file=text)
start, busy = time.perf_counter(), time.process_time()
model.train(corpus_file=text, total_words=model.corpus_total_words, total_examples=model.corpus_count,
            epochs=int(epochs))
end, busy = time.perf_counter(), time.process_time() - busy
model.wv.save_word2vec_format(out)
print(json.dumps({"version": gensim.__version__, "training": end - start, "cpu": busy, "whole": end - begin,
                  "words": model.corpus_total_words, "vocabulary": len(model.wv)}))
"""
GENSIM_SCORES = """
import json, sys
from gensim.models import KeyedVectors
file, *sets = sys.argv[1:]
vectors = KeyedVectors.load_word2vec_format(file)
print(json.dumps({"own": {
    "analogies": vectors.evaluate_word_analogies(sets[0])[0],
    "wordsim353": vectors.evaluate_word_pairs(sets[1])[1][0],
    "simlex999": vectors.evaluate_word_pairs(sets[2])[1][0]}}))
"""


HEEDFUL_TRAINING = """
import json, sys, time
import torch, heedful
text, valid, out, epochs, workers, seed, *settings = sys.argv[1:]
torch.set_num_threads(int(workers))
clocks, begin = {}, time.perf_counter()
listener = lambda event: clocks.setdefault(event["kind"], (time.perf_counter(), time.process_time()))
options = [f"training.{name}" for name in ("window=5", "negatives=5", "subsample=1e-3")]
options += ["model.width=100", "tokenizer.min_count=5", f"training.steps={epochs}", *settings]
trained = heedful.train("embed", text, valid=(valid,), out=out, seed=int(seed), settings=tuple(options),
                        listeners=[listener], device="cpu")
end = time.perf_counter()
elapsed, busy = (clocks["end"][clock] - clocks["begin"][clock] for clock in (0, 1))
print(json.dumps({"version": heedful.__version__, "training": elapsed, "cpu": busy, "whole": end - begin,
                  "vocabulary": len(trained.words)}))
"""


def run(python: str, script: str, *arguments: object, cache: Path, threads: int) -> dict[str, Any]:
    """Run a script in a process of its own and parse the JSON of its last line."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HEEDFUL_CACHE": str(cache)}
    process = subprocess.run(
        [python, "-c", script, *map(str, arguments)], capture_output=True, text=True, env=environment, check=False
    )
    if process.returncode:
        raise SystemExit(f"{python} failed: {process.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def scores(model: Path, sets: list[Path]) -> dict[str, float]:
    """The scores of `heedful evaluate`, and those of each half of the similarity sets."""
    from heedful.evaluation.word_vector_benchmarks import (
        WordBenchmark,
        evaluate_similarity,
        evaluate_word_vectors,
        read_benchmark,
    )
    from heedful.loading import load_word_vectors

    words = load_word_vectors(model)
    results = evaluate_word_vectors(words, sets)
    for file in sets[1:]:
        pairs = read_benchmark(file).pairs
        order = np.random.default_rng(0).permutation(len(pairs))
        for name, part in zip(("first", "second"), np.array_split(order, 2), strict=True):
            half = WordBenchmark(file.name, pairs=[pairs[index] for index in part])
            results |= evaluate_similarity(words, half, f"{file.stem}_{name}_half")
    return {name: round(value, 4) for name, value in results.items() if isinstance(value, float)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--gensim", required=True, help="a Python interpreter with gensim")
    parser.add_argument("--epochs", type=int, nargs="+", default=[1])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--articles", type=int, help="smoke test with this many articles; writes only --out")
    parser.add_argument("--out", type=Path, help="JSON file to write; default: in results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sets = [args.data / "word_similarity" / name for name in BENCHMARKS]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text, words = write_text(args.data / "enwik8" / "enwik8.gz", folder, args.articles)
        runs = [(epochs, seed) for epochs in args.epochs for seed in range(1, args.runs + 1)]
        rows = [row for epochs, seed in runs for row in train_both(args, folder, text, words, epochs, seed)]
        print(f"{len(rows)} trained", flush=True)
        for row in rows:
            model = folder / row.pop("model")
            if row["tool"] == "gensim":
                row |= run(args.gensim, GENSIM_SCORES, model, *sets, cache=folder, threads=args.threads)
            row["scores"] = scores(model, sets)
            print(json.dumps(row), flush=True)
    out = args.out or (None if args.articles else RESULTS / "vectors-cpu.json")
    if out is not None:
        command = f"python benchmarks/vectors.py --epochs {' '.join(map(str, args.epochs))} --runs {args.runs}"
        record = {"command": command, "words": words, "machine": machine("cpu"), "rows": rows}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_text(dump: Path, folder: Path, limit: int | None) -> tuple[Path, int]:
    """Write train.txt, and valid.txt with the last articles (for heedful); returns train.txt and its words."""
    lines = list(islice(enwik8.words(dump), limit))
    held_out = max(1, len(lines) // 200)
    for name, part in (("train.txt", lines[:-held_out]), ("valid.txt", lines[-held_out:])):
        (folder / name).write_text("\n".join(part) + "\n", encoding="utf-8")
    return folder / "train.txt", sum(line.count(" ") + 1 for line in lines[:-held_out])


def train_both(
    args: argparse.Namespace, folder: Path, text: Path, words: int, epochs: int, seed: int
) -> list[dict[str, Any]]:
    """Train gensim's model, then heedful's."""
    steps = -(-words // BATCH_WORDS) * epochs
    gensim_model, heedful_model = f"gensim-{epochs}-{seed}.txt", f"heedful-{epochs}-{seed}"
    limits: dict[str, Any] = {"cache": folder, "threads": args.threads}
    results = {
        gensim_model: run(
            args.gensim, GENSIM_TRAINING, text, folder / gensim_model, epochs, args.threads, seed, **limits
        ),
        heedful_model: run(
            sys.executable, HEEDFUL_TRAINING, text, folder / "valid.txt", folder / heedful_model, steps, args.threads,
            seed, **limits,
        ),
    }  # fmt: skip
    rows = []
    for tool, model in (("gensim", gensim_model), ("heedful", heedful_model)):
        speed = words * epochs / results[model]["training"]
        busy = words * epochs / results[model]["cpu"]
        speeds = {"words_per_second": round(speed), "words_per_cpu_second": round(busy)}
        rows.append({"tool": tool, "epochs": epochs, "seed": seed, **speeds, **results[model], "model": model})
    ratio = rows[1]["words_per_second"] / rows[0]["words_per_second"]
    print(f"seed {seed}: heedful / gensim {ratio:.2f} words per second", flush=True)
    return rows


if __name__ == "__main__":
    main()
