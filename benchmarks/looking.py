"""What looking inside costs: attention of many sentences, and decoding while nothing listens, in one run each.

    python benchmarks/looking.py attention SOURCE TARGET     attention of 100 sentences: heedful, Hugging Face
    python benchmarks/looking.py idle --before COMMIT        decoding of this commit and of an earlier one

attention: the weights of every layer and head, for given translations and for the model's own, with the same random
weights on both sides; the results are compared. heedful's `look` also tokenizes, ranks the five best labels at each
output and aligns words; Hugging Face gets token ids and only returns its attention tensors.
idle: both commits run in processes of their own, which take turns.
Contenders take turns (A B C, B C A, …) on one thread; speeds are per CPU second, and the ratios are the first one's (of
this commit) / theirs, round by round: median and quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from decoders import END, Cell, save_with_tokenizer
from layers import machine
from training import compared, rounded, take_turns

HERE = Path(__file__).parent
SENTENCES = 100
START = 2
VOCABULARY = 8_000
WRITTEN = 17
"""Words of a generated translation: the mean of the references."""
SHAPES = ((3, 128, 4), (6, 512, 8))
"""Layers, width and heads: what `heedful train` chooses for Multi30k on a CPU, and Transformer-base."""
SMALL = Cell("small", "pairs", 32, 1, 32, 32, 256, 4, 3, VOCABULARY)
WORKLOADS = ("decode, batch 32, greedy", "decode, batch 8, beam 4", "forward pass, 32 x 32 tokens", "training step")


# attention of many sentences ----------------------------------------------------------------------------------------


def measure_attention(files: list[Path], rounds: int, layers: int, width: int, heads: int) -> Iterator[dict[str, Any]]:
    """Sentences a second for the attention of all heads: of given translations, and of the model's own."""
    import heedful
    from heedful.interop.huggingface import choose_layout, export_model
    from heedful.loading import wrap_model
    from heedful.text.tokenizer import Tokenizer, TokenizerConfig

    sources, targets = (file.read_text(encoding="utf-8").splitlines() for file in files)
    tokenizer = Tokenizer.train([*sources, *targets], TokenizerConfig(kind="words", vocabulary=VOCABULARY))
    sources, targets = sources[:SENTENCES], targets[:SENTENCES]
    torch.manual_seed(0)
    size: dict[str, Any] = {"width": width, "heads": heads, "layers": layers, "position_layout": "halves"}
    model = heedful.build("paper-base", vocabulary=len(tokenizer), **size).eval()
    with torch.no_grad():
        model.table.weight[END] = 0.0  # no translation ends by itself: both sides write the same number of tokens
    trained = wrap_model(model, (tokenizer,))
    with tempfile.TemporaryDirectory() as name:
        special = {"pad_token_id": 0, "bos_token_id": START, "eos_token_id": END, "forced_eos_token_id": None}
        special |= {"decoder_start_token_id": START, "suppress_tokens": None}
        export_model(model, Path(name), choose_layout(model), **special)
        theirs, generate = marian(Path(name))
    pairs = list(zip(sources, targets, strict=True))
    ids = [(trained.input_row(source).ids, trained.target_row(target).ids) for source, target in pairs]

    def look_at_translations() -> Any:
        return trained.look(sources, trained.translate(sources, beam=1, max_length=WRITTEN))

    forced: dict[str, Callable[[], Any]] = {
        "heedful, one call": lambda: trained.look(sources, targets),
        "heedful, a sentence at a time": lambda: [trained.look(*pair) for pair in pairs],
        "Hugging Face, a sentence at a time": lambda: [theirs([pair]) for pair in ids],
        "Hugging Face, batches of 10 by length": lambda: in_batches(theirs, ids, 10),
    }
    written: dict[str, Callable[[], Any]] = {
        "heedful, one call": look_at_translations,
        "Hugging Face, a sentence at a time": lambda: [generate(source) for source, _ in ids],
    }
    looks, generated = look_at_translations(), [generate(source) for source, _ in ids]
    assert [list(look.target.ids[1:]) for look in looks] == [tokens[1:] for tokens, _ in generated]
    design = f"{layers}+{layers} layers of {heads} heads, width {width}"
    for section, contenders, difference in (
        (
            "given translations",
            forced,
            largest_difference(forced["heedful, one call"](), [theirs([pair]) for pair in ids]),
        ),
        (f"translations of {WRITTEN} words, greedy", written, largest_cross_difference(looks, generated)),
    ):
        timings = take_turns(list(contenders), rounds, lambda name, _, field=contenders: timed(field[name]))
        speeds = {name: [SENTENCES / seconds for seconds in each] for name, each in timings.items()}
        yield {
            "section": f"attention of {SENTENCES} sentences, {section}, {design}",
            "unit": "sentences per CPU second",
            "rounds": rounds,
            "largest_difference": difference,
            "contenders": {name: compared(speed, speeds["heedful, one call"]) for name, speed in speeds.items()},
        }


def marian(folder: Path) -> tuple[Callable[[list[Any]], Any], Callable[[Any], Any]]:
    """Hugging Face's model of the same weights: its attention for pairs of token ids, and for what it generates."""
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(folder, attn_implementation="eager").eval()

    def attentions(pairs: list[Any]) -> Any:
        sides = [pad(list(sides)) for sides in zip(*pairs, strict=True)]
        with torch.inference_mode():
            result = model(
                input_ids=sides[0][0], attention_mask=sides[0][1], decoder_input_ids=sides[1][0],
                output_attentions=True, use_cache=False,
            )  # fmt: skip
        return result.encoder_attentions, result.decoder_attentions, result.cross_attentions

    def generate(source: Any) -> Any:
        with torch.inference_mode():
            result = model.generate(
                torch.tensor([source]), max_new_tokens=WRITTEN, num_beams=1, do_sample=False, output_attentions=True,
                return_dict_in_generate=True,
            )  # fmt: skip
        layers = range(len(result.cross_attentions[0]))
        cross = [torch.cat([step[layer] for step in result.cross_attentions], 2) for layer in layers]
        return result.sequences[0].tolist(), cross

    return attentions, generate


def pad(rows: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    return tokens, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])


def in_batches(model: Callable[[list[Any]], Any], pairs: list[Any], size: int) -> list[Any]:
    ordered = sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))
    return [model(ordered[start : start + size]) for start in range(0, len(ordered), size)]


def largest_difference(looks: list[Any], theirs: list[Any]) -> float:
    """The largest difference between the attention weights of both."""
    largest = 0.0
    for look, (encoder, decoder, cross) in zip(looks, theirs, strict=True):
        names = ((encoder, "encoder.{}.attention"), (decoder, "decoder.{}.attention"), (cross, "decoder.{}.cross"))
        for tables, name in names:
            for layer, table in enumerate(tables):
                ours = torch.from_numpy(look.attention[name.format(layer)].weights)
                largest = max(largest, float((ours - table[0]).abs().max()))
    return largest


def largest_cross_difference(looks: list[Any], generated: list[Any]) -> float:
    """The same for the cross-attention of generated translations, whose last row Hugging Face does not compute."""
    largest = 0.0
    for look, (_, cross) in zip(looks, generated, strict=True):
        for layer, table in enumerate(cross):
            ours = torch.from_numpy(look.attention[f"decoder.{layer}.cross"].weights)
            largest = max(largest, float((ours[:, : table.shape[2]] - table[0]).abs().max()))
    return largest


def timed(run: Callable[[], Any]) -> float:
    """CPU seconds of this process, which runs one thread: other programs on the machine do not count."""
    start = time.process_time()
    run()
    return time.process_time() - start


# decoding while nothing listens -------------------------------------------------------------------------------------


def serve(folder: Path) -> None:
    """One commit's process: for each workload that is asked for, its seconds."""
    import heedful

    trained = heedful.load(folder, device="cpu")
    texts = trained.tokenizers[0].decode(SMALL.texts())
    network, tokens = trained.model, torch.tensor(SMALL.texts())

    def forward() -> Any:
        with torch.no_grad():
            return network(tokens, tokens)

    def train() -> None:
        network(tokens, tokens).float().square().mean().backward()
        network.zero_grad()

    runs = dict(
        zip(
            WORKLOADS,
            (
                lambda: trained.translate(texts, beam=1, max_length=32),
                lambda: trained.translate(texts[:8], beam=4, max_length=32),
                forward,
                train,
            ),
            strict=True,
        )
    )
    for run in runs.values():
        run()
    print("ready", flush=True)
    for line in sys.stdin:
        print(timed(runs[line.strip()]), flush=True)


def measure_idle(before: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Seconds of each workload on this commit and on an earlier one."""
    with tempfile.TemporaryDirectory() as name:
        earlier, models = Path(name) / "earlier", Path(name) / "models"
        subprocess.run(["git", "worktree", "add", "--detach", str(earlier), before], cwd=HERE, check=True)
        try:
            sources = {"before": earlier / "src", "after": HERE.parent / "src"}
            save = [sys.executable, str(HERE / "looking.py"), "save", str(models)]  # later commits read its format too
            subprocess.run(save, check=True, env={**os.environ, "PYTHONPATH": str(sources["before"])})
            processes = {commit: start(source, models) for commit, source in sources.items()}
            for workload in WORKLOADS:
                yield measure_workload(processes, workload, rounds)
            for process in processes.values():
                process.stdin.close()
                process.wait()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(earlier)], cwd=HERE, check=True)


def start(source: Path, folder: Path) -> Any:
    command = [sys.executable, str(HERE / "looking.py"), "serve", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    return process


def measure_workload(processes: dict[str, Any], workload: str, rounds: int) -> dict[str, Any]:
    def ask(commit: str, _: int) -> float:
        processes[commit].stdin.write(f"{workload}\n")
        processes[commit].stdin.flush()
        return float(processes[commit].stdout.readline())

    timings = take_turns(list(processes), rounds, ask)
    speeds = {commit: [1 / seconds for seconds in each] for commit, each in timings.items()}
    contenders = {commit: compared(speed, speeds["after"]) for commit, speed in speeds.items()}
    return {"section": workload, "unit": "runs per CPU second", "rounds": rounds, "contenders": contenders}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    attention = commands.add_parser("attention")
    attention.add_argument("files", type=Path, nargs=2)
    attention.add_argument("--base", action="store_true", help="also Transformer-base")
    idle = commands.add_parser("idle")
    idle.add_argument("--before", required=True, metavar="COMMIT")
    for name in ("serve", "save"):
        commands.add_parser(name).add_argument("folder", type=Path)
    for each in (attention, idle):
        each.add_argument("--rounds", type=int, default=7)
        each.add_argument("--out", type=Path, help="write the JSON here instead of results/")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.command == "serve":
        serve(args.folder)
        return
    if args.command == "save":
        save_with_tokenizer(SMALL, SMALL.model(), args.folder)
        return
    if args.command == "attention":
        shapes = SHAPES[: 1 + args.base]
        measured = (row for shape in shapes for row in measure_attention(args.files, args.rounds, *shape))
    else:
        measured = measure_idle(args.before, args.rounds)
    out, rows = args.out or HERE / "results" / f"looking-{args.command}-cpu.json", []
    for row in measured:
        print(f"{row['section']} ({row['unit']})")
        for name, result in row["contenders"].items():
            low, high = result["ratio_quartiles"]
            print(f"  {name:<40}{rounded(result['speed']):>10}   {result['ratio']:.3f} ({low:.3f}–{high:.3f})")
        rows.append(row)
        sys.stdout.flush()
        result = {"machine": machine("cpu"), "rows": rows}
        out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
