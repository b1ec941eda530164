"""Decoding speed: heedful with each engine, Hugging Face, CTranslate2 and a loop without KV cache, in one run.

    python benchmarks/decoding.py --device cpu       float32 (int8 where it says so): small, base, gpt2
    python benchmarks/decoding.py --device cuda      bfloat16: base, gpt2
    python benchmarks/decoding.py --bleu MODEL test.en test.de     what int8 costs: BLEU and speed by engine

  small   translate 32 → 32 tokens with 3+3 layers, width 256, vocabulary 8,000: batch 1, batch 32, batch 8 with beam 4
  base    the same with 6+6 layers, width 512, vocabulary 32,000 (on a GPU: batch 1, and 64 and 512 with beam 4)
  gpt2    GPT-2 124M: prompts of 64 tokens, 64 generated at batch 1 (on a GPU: 256 at batch 1 and 64)

Every contender runs in its own process and they take turns (A B C, B C A, …), so a busy machine disturbs all alike.
Speeds are tokens per second of the best hypotheses; ratios are heedful's speed / theirs, round by round (median and
quartiles), with "heedful" on a CPU and "heedful torch" on a GPU. `decoders.py` defines each contender.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from decoders import CONTENDERS, Cell, contenders, export
from layers import machine
from training import compared, rounded, take_turns

HERE = Path(__file__).parent
SMALL = Cell("small", "pairs", 1, 1, 32, 32, 256, 4, 3, 8_000)
BASE = Cell("base", "pairs", 1, 1, 32, 32, 512, 8, 6, 32_000)
GPT2 = Cell("gpt2", "text", 1, 1, 64, 64, 768, 12, 12, 50_257)
CELLS = {
    "cpu": [
        *(cell._replace(rows=rows, beam=beam) for cell in (SMALL, BASE) for rows, beam in ((1, 1), (32, 1), (8, 4))),
        GPT2,
    ],
    "cuda": [
        *(BASE._replace(rows=rows, beam=beam) for rows, beam in ((1, 1), (64, 4), (512, 4))),
        *(GPT2._replace(rows=rows, output_tokens=256) for rows in (1, 64)),
    ],
}
REFERENCE = {"cpu": "heedful", "cuda": "heedful torch"}


def serve(pipe: Any, contender: str, device: str, threads: int) -> None:
    """One contender's process: receives a cell to prepare, or a number of runs to time in seconds per run."""
    torch.set_num_threads(threads)
    while request := pipe.recv():
        if isinstance(request, tuple):
            cell, folder = request
            decode = None  # free the last cell's weights first
            try:
                decode = CONTENDERS[contender](cell, folder, device)
                decode()
            except Exception as error:  # the other contenders go on
                pipe.send(repr(error)[:2000])
                continue
            request = 1
        start = time.perf_counter()
        for _ in range(request):
            tokens = decode()
            assert tokens == cell.tokens, f"{contender} generated {tokens} tokens instead of {cell.tokens}"
        pipe.send((time.perf_counter() - start) / request)  # counting tokens has synchronized the GPU


def start(contender: str, device: str, threads: int) -> Any:
    context = multiprocessing.get_context("spawn")
    pipe, end = context.Pipe()
    context.Process(target=serve, args=(end, contender, device, threads), daemon=True).start()
    end.close()
    return pipe


def measure(cell: Cell, pipes: dict[str, Any], device: str, rounds: int, seconds: float) -> dict[str, Any]:
    field = contenders(cell, device)

    def ask(contender: str, question: Any) -> float:
        pipes[contender].send(question)
        return float(pipes[contender].recv())

    with tempfile.TemporaryDirectory() as name:
        export(cell, Path(name), device)
        for contender in field:  # all prepare at once: it is not timed, and some compile
            pipes[contender].send((cell, Path(name)))
        replies = {contender: pipes[contender].recv() for contender in field}
        left_out = {contender: error for contender, error in replies.items() if isinstance(error, str)}
        field = [contender for contender in field if contender not in left_out]
        runs = {contender: max(1, round(seconds / ask(contender, 1))) for contender in field}
        timings = take_turns(field, rounds, lambda contender, _: ask(contender, runs[contender]))
    speeds = {contender: [cell.tokens / each for each in timing] for contender, timing in timings.items()}
    title = f"{cell.name}, batch {cell.rows}" + (f", beam {cell.beam}" if cell.beam > 1 else "")
    row: dict[str, Any] = {"section": title, "unit": "tokens/s", "shape": cell._asdict(), "rounds": rounds}
    row["left_out"] = left_out
    row["contenders"] = {contender: compared(speeds[contender], speeds[REFERENCE[device]]) for contender in field}
    return row


def measure_bleu(folder: Path, files: list[Path], beam: int) -> dict[str, Any]:
    """BLEU and speed of one model on a test set with each engine."""
    import heedful
    from heedful.data.corpus_readers import read_pairs
    from heedful.evaluation.text_metrics import text_scores
    from heedful.generation.backends.backend import SearchRequest
    from heedful.generation.backends.ctranslate2_cache import converted_engine
    from heedful.generation.backends.select import training_backend
    from heedful.generation.search.settings import SearchSettings

    trained = heedful.load(folder)
    sources, references = (list(side) for side in zip(*((p.source, p.target) for p in read_pairs(files)), strict=True))
    ids = trained.tokenizers[0].encode(sources)
    vocabularies = [tokenizer.tokens for tokenizer in trained.tokenizers]
    settings = SearchSettings(beam=beam)
    results: dict[str, Any] = {}
    torch_texts: list[str] = []
    for engine in ("torch", "float32", "int8"):
        backend: Any = training_backend(trained.model)
        if engine != "torch":
            backend = converted_engine(trained.model, vocabularies, folder, engine)
        backend.translate(SearchRequest(ids[:8], settings))
        start = time.perf_counter()
        results = backend.translate(SearchRequest(ids, settings))
        texts = trained.tokenizers[-1].decode([best.tokens for best, *_ in results])
        seconds = time.perf_counter() - start
        torch_texts = torch_texts or texts
        scores = text_scores(texts, references)
        same = sum(a == b for a, b in zip(texts, torch_texts, strict=True))
        print(f"{engine:<10} BLEU {scores['bleu']:.2f}  {seconds:.1f} s  {same} of {len(texts)} texts equal torch's")
        results[engine] = {**scores, "seconds": round(seconds, 2), "beam": beam, "same_as_torch": same}
    return results


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Plot tokens per second of every contender, one panel per cell."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(rows), 1, figsize=(8, 0.5 + 1.9 * len(rows)), squeeze=False)
    for row, panel in zip(rows, panels[:, 0], strict=True):
        names = list(row["contenders"])[::-1]
        speeds = [row["contenders"][name]["speed"] for name in names]
        panel.barh(names, speeds, color=["tab:orange" if name.startswith("heedful") else "tab:gray" for name in names])
        panel.set_title(f"{row['section']} ({row['unit']})", fontsize=10, loc="left")
        for index, speed in enumerate(speeds):
            panel.text(speed, index, f" {rounded(speed)}", va="center", fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--only", nargs="+", choices=("small", "base", "gpt2"), help="only these models; writes only --out"
    )
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to check that it runs; writes only --out")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each contender")
    parser.add_argument(
        "--bleu", type=Path, nargs=3, metavar=("MODEL", "SOURCE", "TARGET"), help="BLEU by engine instead of speed"
    )
    parser.add_argument("--beam", type=int, default=4, help="beam size for --bleu")
    parser.add_argument("--out", type=Path, help="write the JSON and a PNG here instead of results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.bleu:
        results = measure_bleu(args.bleu[0], args.bleu[1:], args.beam)
        if args.out:
            args.out.write_text(json.dumps(results, indent=2) + "\n")
        return
    cells = [cell for cell in CELLS[args.device] if not args.only or cell.name in args.only]
    if args.quick:
        tiny = {"input_tokens": 8, "output_tokens": 8, "width": 64, "heads": 4, "layers": 2, "vocabulary": 500}
        cells = [cell._replace(rows=min(4, cell.rows), **tiny) for cell in cells]
    rounds, seconds = (2, 0.05) if args.quick else (args.rounds, 1.0)
    field = dict.fromkeys(contender for cell in cells for contender in contenders(cell, args.device))
    pipes = {contender: start(contender, args.device, args.threads) for contender in field}
    rows = []
    for cell in cells:
        rows.append(measure(cell, pipes, args.device, rounds, seconds))
        print(f"{rows[-1]['section']} ({rows[-1]['unit']})")
        for name, result in rows[-1]["contenders"].items():
            low, high = result["ratio_quartiles"]
            ratio = f"{result['ratio']:.3f} ({low:.3f}–{high:.3f})"
            print(f"  {name:<26}{rounded(result['speed']):>10}   heedful / {name} {ratio}")
        for name, error in rows[-1]["left_out"].items():
            print(f"  {name:<26} failed: {error}")
        sys.stdout.flush()
        write(args, rows)  # after each cell: a later one may fail
    for pipe in pipes.values():
        pipe.send(0)


def write(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write the rows measured so far, and the plot, unless this run is partial and has no --out."""
    name = f"decoding-{'gpu' if args.device == 'cuda' else 'cpu'}.json"
    out = args.out or (None if args.quick or args.only else HERE / "results" / name)
    if out is None:
        return
    command = ["python benchmarks/decoding.py", f"--device {args.device}", f"--threads {args.threads}"]
    command += ["--only", *args.only] if args.only else []
    command += ["--quick"] * args.quick
    environment = {**machine(args.device), "threads": args.threads}
    environment |= {"ctranslate2": version("ctranslate2")} if args.device == "cpu" else {}
    record = {"command": " ".join(command), "machine": environment, "rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    plot(rows, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
