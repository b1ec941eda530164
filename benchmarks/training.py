"""Training: heedful beside torch.nn, Hugging Face, JoeyNMT and a model like nanoGPT's, in one run.

    python benchmarks/training.py --device cpu [--joeynmt PYTHON]
                                        float32: translator, characters, epoch, whole
    python benchmarks/training.py --device cuda
                                        bfloat16 autocast: gpt2, base, bert, shakespeare, whole

  translator    a bare step of a small encoder-decoder: 3+3 layers, width 256, vocabulary 8,000, 32 × (32 + 32) tokens
  characters    a bare step of nanoGPT's CPU model: 4 layers, width 128, vocabulary 65, 12 × 64 tokens
  epoch         real tokens a second over an epoch of Multi30k and one evaluation, through each toolkit's own loop
  gpt2          a bare step of GPT-2 124M: 64 × 1,024 tokens; vocabulary 50,304, as GPT-2's 50,257 is usually padded
  base          a bare step of Transformer-base: 6+6 layers, width 512, vocabulary 32,000, 768 × (32 + 32) tokens
  bert          a bare step of BERT-base's masked words: 256 × 128 tokens, 15% of them hidden, vocabulary 30,522
  shakespeare   wall time, from nothing, to a validation loss of 1.4609 on Tiny Shakespeare
  whole         `heedful train` as it is, loader, evaluations and checkpoints included, beside its own bare steps

Corpora are read from HEEDFUL_DATA. Every library runs in a fresh process, so that its peak memory can be measured; they
take turns (A B C, B C A, …), so that other load on the machine affects all equally. Ratios are heedful / other in
tokens per second, by round (median and quartiles), and other / heedful in memory and in time to a loss: above 1,
heedful is faster or leaner. `contenders.py`, `epoch.py` and `shakespeare.py` describe what each library runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

import epoch
import shakespeare
from contenders import Cell, contend, contenders
from layers import machine, resident

HERE = Path(__file__).parent
CELLS = {
    "translator": Cell("translator", "pairs", 32, 32, 256, 8, 3, 8_000),
    "characters": Cell("characters", "text", 12, 64, 128, 4, 4, 65),
    "gpt2": Cell("gpt2", "text", 64, 1024, 768, 12, 12, 50_304),
    "base": Cell("base", "pairs", 768, 32, 512, 8, 6, 32_000),
    "bert": Cell("bert", "masked", 256, 128, 768, 12, 12, 30_522),
}
SECTIONS = {
    "cpu": ("translator", "characters", "epoch", "whole"),
    "cuda": ("gpt2", "base", "bert", "shakespeare", "whole"),
}


class Settings(NamedTuple):
    device: str
    threads: int
    rounds: int
    quick: bool
    compiled: bool
    pairs: int
    joeynmt: str | None


# A bare step ---------------------------------------------------------------------------------------------------------


def serve(pipe: Any, library: str, cell: Cell, device: str, threads: int, compiled: bool) -> None:
    """One library's process: runs as many steps as requested; for 0 steps, sends its peak memory."""
    torch.set_num_threads(threads)

    def timed(step: Callable[[], object], steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    if device == "cpu":
        timed(contend(library, cell, device, compiled=False)[1], 2)  # loads code and workspace: not counted
    before = resident("VmRSS")
    parameters, step = contend(library, cell, device, compiled)
    timed(step, 3)
    if device == "cuda":
        torch.cuda.empty_cache()  # frees memory for the others
    pipe.send(parameters)
    while steps := pipe.recv():
        timed(step, 1)  # warms the caches after the others' turns
        pipe.send(timed(step, steps))
        if device == "cuda":
            torch.cuda.empty_cache()
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        timed(step, 2)  # a CUDA graph allocates its memory at capture: on a GPU, the peak of all steps counts
    pipe.send((torch.cuda.max_memory_allocated() if device == "cuda" else resident("VmHWM") - before) / 2**20)


def measure_step(cell: Cell, settings: Settings) -> dict[str, Any]:
    if settings.quick:
        cell = cell._replace(rows=4, tokens=16, width=64, heads=4, layers=2, vocabulary=min(1000, cell.vocabulary))
    device, field = settings.device, contenders(cell)

    def start(library: str) -> Any:
        context = multiprocessing.get_context("spawn")
        pipe, end = context.Pipe()
        args = (end, library, cell, device, settings.threads, settings.compiled)
        context.Process(target=serve, args=args, daemon=True).start()
        end.close()
        return pipe

    def request(pipe: Any, steps: int) -> float:
        pipe.send(steps)
        return float(pipe.recv())

    pipes = {library: start(library) for library in field}  # concurrently: not timed, and compiling takes long
    parameters = {library: int(pipe.recv()) for library, pipe in pipes.items()}
    for library, number in parameters.items():
        assert abs(number / parameters["heedful"] - 1) < 0.02, f"{library} has {number:,} parameters"
    steps = max(1, round((0.1 if settings.quick else 1.0) / request(pipes["heedful"], 2)))
    seconds = take_turns(field, settings.rounds, lambda library, _: request(pipes[library], steps))
    memory = {library: request(pipe, 0) for library, pipe in pipes.items()}
    if device == "cpu":
        # As in layers.py: peaks are measured in processes that give every freed tensor back at once.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
        for library in field:
            pipe = start(library)
            pipe.recv()
            memory[library] = request(pipe, 0)
        del os.environ["MALLOC_MMAP_THRESHOLD_"]

    peak = matmul_peak(device)
    row: dict[str, Any] = {"section": cell.name, "unit": "tokens/s", "shape": cell._asdict(), "matmul_flops": peak}
    row |= {"steps_a_turn": steps, "flops_per_step": cell.flops(), "contenders": {}}
    for library, times in seconds.items():
        speeds = [cell.step_tokens / t for t in times]
        row["contenders"][library] = {
            **compared(speeds, [cell.step_tokens / t for t in seconds["heedful"]]),
            "ms": round(1000 * statistics.median(times), 3),
            "of_peak": round(cell.flops() / statistics.median(times) / peak, 4),
            "peak_mib": round(memory[library], 1),
            "memory_ratio": round(memory[library] / memory["heedful"], 3),
            "parameters": parameters[library],
        }
    return row


def matmul_peak(device: str) -> float:
    """FLOP/s of a large matrix product, to which `of_peak` is relative."""
    size, kind, times = (8192, torch.bfloat16, 50) if device == "cuda" else (2048, torch.float32, 5)
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))

    def burst() -> float:
        start = time.perf_counter()
        for _ in range(times):
            a @ b
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / times

    return 2 * size**3 / min(burst() for _ in range(4))


# Whole runs ----------------------------------------------------------------------------------------------------------


def measure_epoch(settings: Settings) -> dict[str, Any]:
    missing = {}
    if find_spec("accelerate") is None:
        missing |= dict.fromkeys(("hugging-face", "hugging-face-grouped"), "its Trainer needs the package accelerate")
    if settings.joeynmt is None:
        missing["joeynmt"] = "no --joeynmt PYTHON was given"
    shape = {"width": 64, "heads": 4, "layers": 1} if settings.quick else epoch.SHAPE
    field = [toolkit for toolkit in epoch.TOOLKITS if toolkit not in missing]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HEEDFUL_CACHE"] = str(folder / "cache")
        pairs, vocabulary = (400, 2000) if settings.quick else (settings.pairs, 8000)
        properties = epoch.prepare(corpora() / "multi30k", folder, pairs, vocabulary, shape)

        def once(toolkit: str, _: int) -> dict[str, Any]:
            python = settings.joeynmt if toolkit == "joeynmt" else sys.executable
            command = [python, HERE / "epoch.py", toolkit, folder, settings.threads]
            return run_json(command, settings.threads)

        results = take_turns(field, settings.rounds, once)

    row: dict[str, Any] = {"section": "epoch", "unit": "real tokens/s", "properties": properties, "left_out": missing}
    row["contenders"] = {}
    for toolkit, runs in results.items():
        speeds = {who: [run["tokens_per_second"] for run in results[who]] for who in ("heedful", toolkit)}
        memory = {who: statistics.median(run["peak_mib"] for run in results[who]) for who in ("heedful", toolkit)}
        row["contenders"][toolkit.replace("-", " ")] = {
            **compared(speeds[toolkit], speeds["heedful"]),
            "seconds": [round(run["seconds"], 3) for run in runs],
            "peak_mib": round(memory[toolkit], 1),  # the whole process, libraries included
            "memory_ratio": round(memory[toolkit] / memory["heedful"], 3),
            "parameters": runs[0]["parameters"],
            "valid_loss": round(statistics.median(run["valid_loss"] for run in runs), 4),  # smoothed, but for heedful's
            "versions": runs[0]["versions"],
        }
        assert abs(runs[0]["parameters"] / results["heedful"][0]["parameters"] - 1) < 0.02, toolkit
    return row


def measure_shakespeare(settings: Settings) -> dict[str, Any]:
    file, size = corpora() / "tinyshakespeare" / "input.txt", "quick" if settings.quick else "whole"

    def once(who: str, seed: int) -> dict[str, Any]:
        command = [sys.executable, HERE / "shakespeare.py", who, file, time.time(), 1 + seed, settings.device, size]
        return run_json(command, settings.threads)

    results = take_turns(["heedful", "nanogpt-like"], 1 if settings.quick else min(3, settings.rounds), once)
    row: dict[str, Any] = {"section": "shakespeare", "unit": "1/s", "loss": shakespeare.LOSS, "contenders": {}}
    row["shape"] = shakespeare.SIZES[size]
    for who, runs in results.items():
        speeds = {name: [1 / run["seconds"] for run in results[name]] for name in ("heedful", who)}
        reached = sum(run["reached"] for run in runs)  # a run that did not counts with its whole length
        row["contenders"][who] = {**compared(speeds[who], speeds["heedful"]), "reached": reached, "runs": runs}
    return row


def measure_whole(settings: Settings) -> dict[str, Any]:
    seconds = 20 if settings.quick else 60 if settings.device == "cuda" else 300
    with tempfile.TemporaryDirectory() as name:
        os.environ["HEEDFUL_CACHE"] = name
        command = [sys.executable, HERE / "whole.py", corpora() / "multi30k", seconds, settings.device]
        result = run_json(command, settings.threads)
    speeds = {"heedful": 1000 / result["whole_ms"], "bare steps": 1000 / result["bare_ms"]}
    row: dict[str, Any] = {"section": "whole", "unit": "steps/s", "seconds": seconds, "result": result}
    row["contenders"] = {who: compared([speed], [speeds["heedful"]]) for who, speed in speeds.items()}
    row["contenders"]["bare steps"] |= {key: result[key] for key in ("ratio", "ratio_quartiles")}  # of its windows
    return row


def run_json(command: list[Any], threads: int) -> dict[str, Any]:
    """Run a process and parse the last line of its output."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def corpora() -> Path:
    return Path(os.environ["HEEDFUL_DATA"])


# Together ------------------------------------------------------------------------------------------------------------


def take_turns(field: list[str], rounds: int, once: Callable[[str, int], Any]) -> dict[str, list[Any]]:
    """Run in rotating order (A B C, B C A, …); the results of each round by name."""
    order = list(field)
    results: dict[str, list[Any]] = {name: [] for name in field}
    for number in range(rounds):
        for name in order:
            results[name].append(once(name, number))
        order.append(order.pop(0))
    return results


def compared(speeds: list[float], heedful: list[float]) -> dict[str, Any]:
    ratios = [ours / other for ours, other in zip(heedful, speeds, strict=True)]
    low, middle, high = statistics.quantiles(ratios) if len(ratios) > 1 else ratios * 3
    return {
        "speed": round(statistics.median(speeds), 4),
        "ratio": round(middle, 3),
        "ratio_quartiles": [round(low, 3), round(high, 3)],
    }


def rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.4g}"


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Bar chart of speeds relative to heedful, one group per section."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(rows), 1, figsize=(8, 0.6 + 1.5 * len(rows)), squeeze=False, sharex=True)
    for row, panel in zip(rows, panels[:, 0], strict=True):
        names = list(row["contenders"])[::-1]
        entries = [row["contenders"][name] for name in names]
        shares = [1 / one["ratio"] for one in entries]
        spread = [[max(0, s - 1 / f["ratio_quartiles"][1]) for s, f in zip(shares, entries, strict=True)]]
        spread += [[max(0, 1 / f["ratio_quartiles"][0] - s) for s, f in zip(shares, entries, strict=True)]]
        colors = ["tab:orange" if name.startswith("heedful") else "tab:gray" for name in names]
        panel.barh(names, shares, xerr=spread, color=colors)
        panel.set_title(f"{row['section']} ({row['unit']})", fontsize=10, loc="left")
        for index, one in enumerate(entries):
            panel.text(0.01, index, rounded(one["speed"]), va="center", color="white", fontsize=8)
    panels[-1, 0].set_xlabel("speed, heedful = 1 (bars: quartiles of the rounds)")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def main() -> None:
    every = list(dict.fromkeys([*SECTIONS["cpu"], *SECTIONS["cuda"]]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="+", choices=every, help="these sections; writes only --out")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does it run?; writes only --out")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, help="turns of each contender (25 of bare steps, 3 of whole runs)")
    parser.add_argument("--pairs", type=int, default=8000, help="training pairs in the epoch")
    parser.add_argument("--compile", action="store_true", help="compile on a CPU too; on a GPU it is always done")
    parser.add_argument("--joeynmt", metavar="PYTHON", help="the python of an environment that has joeynmt 2.3")
    parser.add_argument("--out", type=Path, help="where to write the JSON (and a PNG beside it), if not in results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    rows = []
    for section in args.only or SECTIONS[args.device]:
        whole = section not in CELLS
        rounds = args.rounds or (2 if args.quick else 3 if whole else 25)
        compiled = args.compile or args.device == "cuda"
        settings = Settings(args.device, args.threads, rounds, args.quick, compiled, args.pairs, args.joeynmt)
        measures = {"epoch": measure_epoch, "shakespeare": measure_shakespeare, "whole": measure_whole}
        row = {"rounds": rounds, **(measures[section](settings) if whole else measure_step(CELLS[section], settings))}
        print(f"{section} ({row['unit']})")
        for name, one in row["contenders"].items():
            low, high = one["ratio_quartiles"]
            memory = f"{one['peak_mib']:>10,.0f} MiB" if one.get("peak_mib") else ""
            ratio = f"ours / theirs {one['ratio']:.3f} ({low:.3f}–{high:.3f})"
            print(f"  {name:<24}{rounded(one['speed']):>12}   {ratio}{memory}")
        for name, why in row.get("left_out", {}).items():
            print(f"  {name:<24} left out: {why}")
        sys.stdout.flush()
        rows.append(row)
        write(args, rows)  # after each: a later one may fail, or take too long


def write(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """The rows measured so far, if they are to be kept."""
    name = f"training-{'gpu' if args.device == 'cuda' else 'cpu'}.json"
    out = args.out or (None if args.quick or args.only else HERE / "results" / name)
    if out is None:
        return
    words = [f"--{key} {value}".strip() for key, value in measured_options(args).items()]
    record = {
        "command": " ".join(["python benchmarks/training.py", *words]),
        "machine": {**machine(args.device), "threads": args.threads},
        "notes": {"nanogpt-like": "a stand-in of the same shape and recipe; not nanoGPT's code"},
        "rows": rows,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    draw(rows, out.with_suffix(".png"))


def measured_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that change the measurement."""
    options = {"device": args.device, "threads": args.threads, "only": " ".join(args.only or ()), "pairs": args.pairs}
    options |= {"rounds": args.rounds, "joeynmt": "PYTHON" if args.joeynmt else None}
    flags = {name: "" for name in ("quick", "compile") if getattr(args, name)}
    return {name: value for name, value in options.items() if value} | flags


if __name__ == "__main__":
    main()
