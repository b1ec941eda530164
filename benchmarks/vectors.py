"""Word vectors: heedful beside gensim on the text of enwik8, in one run: words a second, and how good they are.

    python benchmarks/vectors.py --data DATA --gensim PYTHON     PYTHON: one in whose environment gensim is installed

Both read the same file (`enwik8.words`: an article a line, a to z), with skip-gram, 100 numbers a word, a window of 5,
5 words drawn against each, words below 5 occurrences left out, sub-sampling at 1e-3, on the same number of cores, once
over the text for each epoch. They take turns, `--runs` times with a seed of its own each; the cores do nothing else.
All are scored when all are trained.

  words a second   words of the text over the time of training alone, from the first step to the last: heedful's time
                   includes its evaluations and checkpoints; `whole` is the time of the command, reading and all
  a CPU second     the same over the time that cores were busy with it: what is left when others share the machine
  gensim           Word2Vec(corpus_file=…): its fastest way, a thread for each core that never waits for Python
  scores           by `heedful evaluate` for both, from gensim's own word2vec file: Google's analogies (19,544),
                   WordSim-353 and SimLex-999; gensim's own figures for its vectors stand beside them
  halves           the similarity sets cut in two by chance, always the same way, each half scored by itself

DATA holds enwik8/enwik8.gz and word_similarity/.
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

HERE = Path(__file__).parent
BATCH = 1024
"""Words of text in a step of ours, as `heedful train embed` chooses it."""
SETS = ("questions-words.txt", "wordsim353.tsv", "simlex999.txt")
THEIRS = """
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
THEIR_SCORES = """
import json, sys
from gensim.models import KeyedVectors
file, *sets = sys.argv[1:]
vectors = KeyedVectors.load_word2vec_format(file)
print(json.dumps({"own": {
    "analogies": vectors.evaluate_word_analogies(sets[0])[0],
    "wordsim353": vectors.evaluate_word_pairs(sets[1])[1][0],
    "simlex999": vectors.evaluate_word_pairs(sets[2])[1][0]}}))
"""


OURS = """
import json, sys, time
import torch, heedful
text, valid, out, epochs, workers, seed, *settings = sys.argv[1:]
torch.set_num_threads(int(workers))
at, begin = {}, time.perf_counter()
heard = lambda event: at.setdefault(event["kind"], (time.perf_counter(), time.process_time()))
how = [f"training.{name}" for name in ("window=5", "negatives=5", "subsample=1e-3")]
how += ["model.width=100", "tokenizer.min_count=5", f"training.steps={epochs}", *settings]
trained = heedful.train("embed", text, valid=(valid,), out=out, seed=int(seed), settings=tuple(how), listeners=[heard],
                        device="cpu")
end = time.perf_counter()
took, busy = (at["end"][clock] - at["begin"][clock] for clock in (0, 1))
print(json.dumps({"version": heedful.__version__, "training": took, "cpu": busy, "whole": end - begin,
                  "vocabulary": len(trained.words)}))
"""


def run(python: str, script: str, *words: object, threads: int) -> dict[str, Any]:
    """A contender in a process of its own; the last line it prints is its figures."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HEEDFUL_CACHE": str(words[-1])}
    done = subprocess.run(
        [python, "-c", script, *map(str, words[:-1])], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise SystemExit(f"{python} failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def scores(model: Path, sets: list[Path]) -> dict[str, float]:
    """What `heedful evaluate` says; of the similarity sets also each half."""
    from heedful.evaluation.word_vector_benchmarks import WordBenchmark, evaluate_similarity, evaluate_word_vectors, read_benchmark
    from heedful.loading import load_word_vectors

    words = load_word_vectors(model)
    found = evaluate_word_vectors(words, sets)
    for file in sets[1:]:
        pairs = read_benchmark(file).pairs
        order = np.random.default_rng(0).permutation(len(pairs))
        for name, part in zip(("first", "second"), np.array_split(order, 2), strict=True):
            half = WordBenchmark(file.name, pairs=[pairs[place] for place in part])
            found |= evaluate_similarity(words, half, f"{file.stem}_{name}_half")
    return {name: round(value, 4) for name, value in found.items() if isinstance(value, float)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--gensim", required=True, help="a python that has gensim")
    parser.add_argument("--epochs", type=int, nargs="+", default=[1])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--articles", type=int, help="no more than these: a look, not a measurement; writes only --out")
    parser.add_argument("--out", type=Path, help="where to write the JSON, if not beside this file in results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sets = [args.data / "word_similarity" / name for name in SETS]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        text, words = write_text(args.data / "enwik8" / "enwik8.gz", folder, args.articles)
        turns = [(epochs, seed) for epochs in args.epochs for seed in range(1, args.runs + 1)]
        rows = [row for epochs, seed in turns for row in turn(args, folder, text, words, epochs, seed)]
        print(f"{len(rows)} trained", flush=True)
        for row in rows:
            place = folder / row.pop("place")
            if row["tool"] == "gensim":
                row |= run(args.gensim, THEIR_SCORES, place, *sets, folder, threads=args.threads)
            row["scores"] = scores(place, sets)
            print(json.dumps(row), flush=True)
    name = "vectors-cpu.json"
    out = args.out or (None if args.articles else HERE / "results" / name)
    if out is not None:
        command = f"python benchmarks/vectors.py --epochs {' '.join(map(str, args.epochs))} --runs {args.runs}"
        record = {"command": command, "words": words, "machine": machine("cpu"), "rows": rows}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_text(dump: Path, folder: Path, most: int | None) -> tuple[Path, int]:
    """The text that both train on; beside it the last articles, which ours is validated on."""
    lines = list(islice(enwik8.words(dump), most))
    apart = max(1, len(lines) // 200)
    for name, part in (("train.txt", lines[:-apart]), ("valid.txt", lines[-apart:])):
        (folder / name).write_text("\n".join(part) + "\n", encoding="utf-8")
    return folder / "train.txt", sum(line.count(" ") + 1 for line in lines[:-apart])


def turn(
    args: argparse.Namespace, folder: Path, text: Path, words: int, epochs: int, seed: int
) -> list[dict[str, Any]]:
    """Both trained, one after the other."""
    steps = -(-words // BATCH) * epochs
    theirs, ours = f"gensim-{epochs}-{seed}.txt", f"ours-{epochs}-{seed}"
    found = {
        theirs: run(
            args.gensim, THEIRS, text, folder / theirs, epochs, args.threads, seed, folder, threads=args.threads
        ),
        ours: run(
            sys.executable, OURS, text, folder / "valid.txt", folder / ours, steps, args.threads, seed, folder,
            threads=args.threads,
        ),
    }  # fmt: skip
    rows = []
    for tool, place in (("gensim", theirs), ("heedful", ours)):
        speed = words * epochs / found[place]["training"]
        busy = words * epochs / found[place]["cpu"]
        speeds = {"words_per_second": round(speed), "words_per_cpu_second": round(busy)}
        rows.append({"tool": tool, "epochs": epochs, "seed": seed, **speeds, **found[place], "place": place})
    ratio = rows[1]["words_per_second"] / rows[0]["words_per_second"]
    print(f"seed {seed}: heedful / gensim {ratio:.2f} words a second", flush=True)
    return rows


if __name__ == "__main__":
    main()
