"""Decoding: heedful by each of its engines beside Hugging Face, CTranslate2 and a loop without a cache, in one run.

    python benchmarks/decoding.py --device cpu       float32 (int8 where it says so): small, base, gpt2
    python benchmarks/decoding.py --device cuda      bfloat16: base, gpt2
    python benchmarks/decoding.py --bleu MODEL test.en test.de     what int8 costs: BLEU and speed by engine

  small   translate 32 → 32 tokens with 3+3 layers, width 256, vocabulary 8,000: batch 1, batch 32, batch 8 with beam 4
  base    the same with 6+6 layers, width 512, vocabulary 32,000 (on a GPU: batch 1, and 64 and 512 with beam 4)
  gpt2    GPT-2 124M: 64 tokens read, 64 written at batch 1 (on a GPU: 256 written at batch 1 and 64)

Every contender lives in a process of its own and they take turns (A B C, B C A, …), so a busy machine disturbs all
alike. Speeds are tokens written a second, of the texts kept; ratios are ours / theirs, round by round (median and
quartiles), with "heedful" as ours (on a GPU "heedful torch"). `decoders.py` says what each contender does.
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
        *(GPT2._replace(rows=rows, wrote=256) for rows in (1, 64)),
    ],
}
OURS = {"cpu": "heedful", "cuda": "heedful torch"}


def serve(pipe: Any, contender: str, device: str, threads: int) -> None:
    """One contender's process: makes itself ready for a cell, or decodes as often as asked and tells the seconds."""
    torch.set_num_threads(threads)
    while asked := pipe.recv():
        if isinstance(asked, tuple):
            cell, folder = asked
            decode = None  # the last cell's weights go first
            try:
                decode = CONTENDERS[contender](cell, folder, device)
                decode()
            except Exception as error:  # one contender's trouble is not the others'
                pipe.send(repr(error)[:2000])
                continue
            asked = 1
        start = time.perf_counter()
        for _ in range(asked):
            wrote = decode()
            assert wrote == cell.tokens, f"{contender} wrote {wrote} tokens instead of {cell.tokens}"
        pipe.send((time.perf_counter() - start) / asked)  # counting what was written waits for a GPU


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
        for contender in field:  # all make themselves ready at once: it is not timed, and some compile
            pipes[contender].send((cell, Path(name)))
        told = {contender: pipes[contender].recv() for contender in field}
        left_out = {contender: why for contender, why in told.items() if isinstance(why, str)}
        field = [contender for contender in field if contender not in left_out]
        times = {contender: max(1, round(seconds / ask(contender, 1))) for contender in field}
        found = take_turns(field, rounds, lambda contender, _: ask(contender, times[contender]))
    speeds = {contender: [cell.tokens / each for each in spent] for contender, spent in found.items()}
    title = f"{cell.name}, batch {cell.rows}" + (f", beam {cell.beam}" if cell.beam > 1 else "")
    row: dict[str, Any] = {"section": title, "unit": "tokens/s", "shape": cell._asdict(), "rounds": rounds}
    row["left_out"] = left_out
    row["contenders"] = {contender: compared(speeds[contender], speeds[OURS[device]]) for contender in field}
    return row


def measure_bleu(folder: Path, files: list[Path], beam: int) -> dict[str, Any]:
    """One model's translations of a test set by each engine: how good, how fast."""
    import heedful
    from heedful.data.corpus_readers import read_pairs
    from heedful.evaluation.text_metrics import text_scores
    from heedful.generation.backends.ctranslate2_cache import ctranslate2_engine
    from heedful.generation.sequence_to_sequence import translate_ids

    trained = heedful.load(folder)
    sources, references = (list(side) for side in zip(*((p.source, p.target) for p in read_pairs(files)), strict=True))
    ids = trained.tokenizers[0].encode(sources)
    spelling = [tokenizer.tokens for tokenizer in trained.tokenizers]
    found: dict[str, Any] = {}
    for engine in ("torch", "float32", "int8"):
        ask: Any = lambda *a, **o: translate_ids(trained.model, *a, **o)  # noqa: E731
        if engine != "torch":
            ask = ctranslate2_engine(trained.model, spelling, folder, engine).translate_ids
        ask(ids[:8], beam=beam)
        start = time.perf_counter()
        texts = trained.tokenizers[-1].decode([each[0].tokens for each in ask(ids, beam=beam)])
        spent = time.perf_counter() - start
        scores = text_scores(texts, references).to_json()
        found[engine] = {**scores, "seconds": round(spent, 2), "beam": beam}
        same = sum(a == b for a, b in zip(texts, found.setdefault("texts", texts), strict=True))
        print(f"{engine:<10} BLEU {scores['bleu']:.2f}  {spent:.1f} s  {same} of {len(texts)} texts as torch's")
        found[engine]["same_as_torch"] = same
    del found["texts"]
    return found


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Tokens a second of every contender: one panel a cell."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(rows), 1, figsize=(8, 0.5 + 1.9 * len(rows)), squeeze=False)
    for row, panel in zip(rows, panels[:, 0], strict=True):
        names = list(row["contenders"])[::-1]
        speeds = [row["contenders"][name]["speed"] for name in names]
        panel.barh(names, speeds, color=["tab:orange" if name.startswith("heedful") else "tab:grey" for name in names])
        panel.set_title(f"{row['section']} ({row['unit']})", fontsize=10, loc="left")
        for place, speed in enumerate(speeds):
            panel.text(speed, place, f" {rounded(speed)}", va="center", fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="+", choices=("small", "base", "gpt2"), help="these models; writes only --out")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does it run?; writes only --out")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender")
    parser.add_argument("--bleu", type=Path, nargs=3, metavar=("MODEL", "SOURCE", "TARGET"), help="instead of speed")
    parser.add_argument("--beam", type=int, default=4, help="of --bleu")
    parser.add_argument("--out", type=Path, help="where to write the JSON (and a PNG beside it), if not in results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.bleu:
        found = measure_bleu(args.bleu[0], args.bleu[1:], args.beam)
        if args.out:
            args.out.write_text(json.dumps(found, indent=2) + "\n")
        return
    cells = [cell for cell in CELLS[args.device] if not args.only or cell.name in args.only]
    if args.quick:
        tiny = {"read": 8, "wrote": 8, "width": 64, "heads": 4, "layers": 2, "vocabulary": 500}
        cells = [cell._replace(rows=min(4, cell.rows), **tiny) for cell in cells]
    rounds, seconds = (2, 0.05) if args.quick else (args.rounds, 1.0)
    field = dict.fromkeys(contender for cell in cells for contender in contenders(cell, args.device))
    pipes = {contender: start(contender, args.device, args.threads) for contender in field}
    rows = []
    for cell in cells:
        rows.append(measure(cell, pipes, args.device, rounds, seconds))
        print(f"{rows[-1]['section']} ({rows[-1]['unit']})")
        for name, one in rows[-1]["contenders"].items():
            low, high = one["ratio_quartiles"]
            print(f"  {name:<26}{rounded(one['speed']):>10}   ours / theirs {one['ratio']:.3f} ({low:.3f}–{high:.3f})")
        for name, why in rows[-1]["left_out"].items():
            print(f"  {name:<26} left out: {why}")
        sys.stdout.flush()
        write(args, rows)  # after each: a later one may fail, or take too long
    for pipe in pipes.values():
        pipe.send(0)


def write(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """The rows measured so far, if they are to be kept."""
    name = f"decoding-{'gpu' if args.device == 'cuda' else 'cpu'}.json"
    out = args.out or (None if args.quick or args.only else HERE / "results" / name)
    if out is None:
        return
    words = ["python benchmarks/decoding.py", f"--device {args.device}", f"--threads {args.threads}"]
    words += ["--only", *args.only] if args.only else []
    words += ["--quick"] * args.quick
    facts = {**machine(args.device), "threads": args.threads}
    facts |= {"ctranslate2": version("ctranslate2")} if args.device == "cpu" else {}
    record = {"command": " ".join(words), "machine": facts, "rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    draw(rows, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
