"""Forward and backward of blocks and whole models: heedful beside torch.nn and Hugging Face, in one run.

    python benchmarks/layers.py --device cpu                  float32
    python benchmarks/layers.py --device cuda [--compile]     bfloat16 autocast, eager or under torch.compile

Every contender lives in a fresh process of its own, so its peak memory is its own; the processes take turns
(A B C, B C A, …) at short bursts, so a busy machine disturbs all alike. A ratio is theirs / ours: above 1, heedful
is faster or leaner; for time it is the median over rounds. All sides have the same shapes, padding, dtype and number
of parameters, dropout 0, random weights, and `scaled_dot_product_attention` as their kernel.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Contender = tuple[nn.Module, dict[str, Any]]
"""A model, and what it is called with."""


@dataclass(frozen=True)
class Shape:
    batch: int
    tokens: int
    width: int = 512
    heads: int = 8
    layers: int = 1
    vocabulary: int = 0  # of a block: its input and output are vectors


BLOCKS = ("encoder block", "decoder block", "causal block")
CELLS = {
    "cpu": [(block, shape) for block in BLOCKS for shape in (Shape(16, 64), Shape(2, 512))]
    + [
        ("paper base", Shape(8, 32, layers=6, vocabulary=37_000)),
        ("bert-like", Shape(8, 128, layers=8, vocabulary=30_522)),
        ("gpt2-like", Shape(2, 256, layers=6, vocabulary=50_257)),
    ],
    "cuda": [(block, shape) for block in BLOCKS for shape in (Shape(256, 64), Shape(32, 512))]
    + [
        ("paper base", Shape(768, 32, layers=6, vocabulary=37_000)),
        ("bert-like", Shape(256, 128, width=768, heads=12, layers=12, vocabulary=30_522)),
        ("gpt2-like", Shape(16, 1024, width=768, heads=12, layers=12, vocabulary=50_257)),
    ],
}


class Inputs:
    """What all contenders are fed: vectors (a block) or token ids (a model), and how much of each row is real."""

    def __init__(self, shape: Shape, device: str) -> None:
        torch.manual_seed(0)
        rows, self.device = (shape.batch, shape.tokens), device
        self.x, self.memory = (torch.randn(*rows, shape.width, device=device, requires_grad=True) for _ in range(2))
        self.source, self.target = (torch.randint(3, max(shape.vocabulary, 4), rows, device=device) for _ in range(2))
        self.lengths = torch.linspace(max(shape.tokens // 2, 1), shape.tokens, shape.batch, device=device).long()
        self.real = torch.arange(shape.tokens, device=device) < self.lengths[:, None]
        self.from_above = torch.randn(*rows, shape.width, device=device)  # the gradient, where the output is vectors


def ours(work: str, shape: Shape, i: Inputs) -> Contender:
    from heedful import build
    from heedful.layers.attention import CrossAttention, SelfAttention
    from heedful.layers.block import Block
    from heedful.layers.feed_forward import FeedForward
    from heedful.layers.masks import causal, padding
    from heedful.layers.residual import Residual

    width, heads, real = shape.width, shape.heads, padding(i.lengths, shape.tokens)
    size = {"width": width, "heads": heads, "layers": shape.layers, "vocabulary": shape.vocabulary, "dropout": 0.0}

    def block(activation: Any, order: Any, cross: CrossAttention | None = None) -> Block:
        feed_forward = FeedForward(width, 4 * width, activation=activation)
        return Block(SelfAttention(width, heads), feed_forward, partial(Residual, width, order=order), cross)

    match work:
        case "encoder block":
            return block("gelu", "post"), {"x": i.x, "mask": real}
        case "decoder block":
            cross = CrossAttention(width, heads)
            return block("relu", "post", cross), {"x": i.x, "mask": causal(), "memory": i.memory, "memory_mask": real}
        case "causal block":
            return block("gelu_tanh", "pre"), {"x": i.x, "mask": causal()}
        case "paper base":
            return build("paper-base", **size), {"source": i.source, "target": i.target, "source_lengths": i.lengths}
        case "bert-like":
            return build("bert-base", **size, tasks=()), {"tokens": i.source, "lengths": i.lengths}
        case _:
            return build("gpt2", **size), {"tokens": i.target}


class TorchModel(nn.Module):
    """What a user of torch.nn writes around its stacks: a table, positions, and logits from the same table."""

    def __init__(self, work: str, shape: Shape, encoder: nn.Module | None, decoder: nn.Module | None) -> None:
        super().__init__()
        self.encoder, self.decoder, self.scale = encoder, decoder, 1.0
        self.table = nn.Embedding(shape.vocabulary, shape.width)
        learned = {"bert-like": 512, "gpt2-like": 1024}.get(work, 0)
        self.positions = nn.Parameter(torch.randn(learned or shape.tokens, shape.width), requires_grad=learned > 0)
        self.segments = nn.Parameter(torch.zeros(2, shape.width)) if work == "bert-like" else None
        self.norm = nn.LayerNorm(shape.width) if work == "bert-like" else nn.Identity()
        self.scale = math.sqrt(shape.width) if work == "paper base" else 1.0

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) * self.scale + self.positions[: tokens.shape[1]]
        return self.norm(x if self.segments is None else x + self.segments[0])

    def forward(self, tokens: Tensor, masks: dict[str, Any], target: Tensor, target_masks: dict[str, Any]) -> Tensor:
        states = self.embed(tokens)
        states = states if self.encoder is None else self.encoder(states, **masks)
        if self.segments is not None:
            return states
        states = states if self.decoder is None else self.decoder(self.embed(target), states, **target_masks)
        return F.linear(states, self.table.weight)


def torchs(work: str, shape: Shape, i: Inputs) -> Contender:
    style = {"bert": "gelu", "enco": "gelu", "gpt2": partial(F.gelu, approximate="tanh")}
    style["caus"] = style["gpt2"]
    size = {"d_model": shape.width, "nhead": shape.heads, "dim_feedforward": 4 * shape.width, "batch_first": True}
    size |= {"dropout": 0.0, "activation": style.get(work[:4], "relu"), "norm_first": work[:4] in ("caus", "gpt2")}
    encoder, decoder = nn.TransformerEncoderLayer(**size), nn.TransformerDecoderLayer(**size)
    later = nn.Transformer.generate_square_subsequent_mask(shape.tokens, device=i.device)
    real, before = {"src_key_padding_mask": ~i.real}, {"mask": later, "is_causal": True}
    reading = {"tgt_mask": later, "tgt_is_causal": True, "memory_key_padding_mask": ~i.real}
    match work:
        case "encoder block":
            return encoder, {"src": i.x, **real}
        case "decoder block":
            return decoder, {"tgt": i.x, "memory": i.memory, **reading}
        case "causal block":
            return encoder, {"src": i.x, "src_mask": later, "is_causal": True}
    norm = nn.LayerNorm(shape.width) if work == "gpt2-like" else None
    encoders = nn.TransformerEncoder(encoder, shape.layers, norm, enable_nested_tensor=False)
    decoders = nn.TransformerDecoder(decoder, shape.layers) if work == "paper base" else None
    call = {"tokens": i.source, "masks": before if work == "gpt2-like" else real}
    return TorchModel(work, shape, encoders, decoders), {**call, "target": i.target, "target_masks": reading}


def hugging_faces(work: str, shape: Shape, i: Inputs) -> Contender:
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel
    from transformers.models.bert.modeling_bert import BertLayer
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block
    from transformers.models.marian.modeling_marian import MarianDecoderLayer

    width, heads, layers, hidden = shape.width, shape.heads, shape.layers, 4 * shape.width
    same = {"vocab_size": max(shape.vocabulary, 4), "attn_implementation": "sdpa", "use_cache": False}
    same |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    bert = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers}
    bert |= {"intermediate_size": hidden, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    gpt2 = {"n_embd": width, "n_head": heads, "n_layer": layers, "activation_function": "gelu_pytorch_tanh"}
    gpt2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    marian = {"d_model": width, "dropout": 0.0, "scale_embedding": True, "activation_function": "relu"}
    for side in ("encoder", "decoder"):
        marian |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": hidden}
    real = i.real[:, None, None, :]
    match work:
        case "encoder block":
            return BertLayer(BertConfig(**same, **bert)), {"hidden_states": i.x, "attention_mask": real}
        case "decoder block":
            call = {"hidden_states": i.x, "encoder_hidden_states": i.memory, "encoder_attention_mask": real}
            return MarianDecoderLayer(MarianConfig(**same, **marian), layer_idx=0), call
        case "causal block":
            return GPT2Block(GPT2Config(**same, **gpt2), layer_idx=0), {"hidden_states": i.x}
        case "paper base":
            call = {"input_ids": i.source, "attention_mask": i.real.long(), "decoder_input_ids": i.target}
            return MarianMTModel(MarianConfig(**same, **marian)), call
        case "bert-like":
            call = {"input_ids": i.source, "attention_mask": i.real.long()}
            return BertModel(BertConfig(**same, **bert), add_pooling_layer=False), call
        case _:
            return GPT2LMHeadModel(GPT2Config(**same, **gpt2)), {"input_ids": i.target}


CONTENDERS = {"heedful": ours, "torch.nn": torchs, "hugging face": hugging_faces}


def contest(library: str, work: str, shape: Shape, device: str, compiled: bool) -> tuple[int, Callable[[int], float]]:
    """How many parameters a contender has, and a function that takes so many steps and says how long one took."""
    inputs = Inputs(shape, device)
    model, call = CONTENDERS[library](work, shape, inputs)
    model.to(device).train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    forward = torch.compile(model) if compiled else model
    precision = partial(torch.autocast, "cuda", torch.bfloat16) if device == "cuda" else nullcontext

    def step() -> None:
        for leaf in (*weights, inputs.x, inputs.memory):
            leaf.grad = None
        with precision():
            output = forward(**call)
        output = output if isinstance(output, Tensor) else output[0]
        if output.shape[-1] == shape.vocabulary:
            F.cross_entropy(output.flatten(0, 1), inputs.target.flatten()).backward()
        else:
            output.backward(inputs.from_above.to(output.dtype))

    def timed(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    return sum(weight.numel() for weight in weights), timed


def serve(pipe: Any, library: str, work: str, shape: Shape, device: str, compiled: bool) -> None:
    """One contender's process: takes as many steps as it is asked to, until asked for none."""
    toy = Shape(2, 8, 16, 2, vocabulary=shape.vocabulary and 50)
    contest(library, work, toy, device, False)[1](2)  # code and libraries come into memory, and are not counted
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    parameters, timed = contest(library, work, shape, device, compiled)
    timed(3)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far: building and compiling are not counted
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    pipe.send(parameters)
    while steps := pipe.recv():
        if steps > 1:
            timed(1)  # bring the caches back after the others' turn
        pipe.send(timed(steps))
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resident("VmHWM") - before
    pipe.send(peak / 2**20)


def resident(field: str) -> int:
    """VmRSS: bytes in memory now; VmHWM: the most so far."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def measure(work: str, shape: Shape, device: str, compiled: bool, rounds: int) -> dict[str, Any]:
    """One row: a process for each contender, taking turns."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for library in CONTENDERS:
        pipes[library], end = context.Pipe()
        processes.append(context.Process(target=serve, args=(end, library, work, shape, device, compiled)))
        processes[-1].start()
        end.close()

    def ask(library: str, steps: int) -> float:
        pipes[library].send(steps)
        return float(pipes[library].recv())

    parameters = {library: pipe.recv() for library, pipe in pipes.items()}
    steps = max(1, round(0.1 / ask("heedful", 1)))
    order, seconds = list(CONTENDERS), {library: [] for library in CONTENDERS}
    for _ in range(rounds):
        for library in order:
            seconds[library].append(ask(library, steps))
        order.append(order.pop(0))
    memory = {library: ask(library, 0) for library in CONTENDERS}
    for process in processes:
        process.join()

    row: dict[str, Any] = {"cell": f"{work} {shape.batch}×{shape.tokens}", "shape": asdict(shape)}
    for library, times in seconds.items():
        quarters = statistics.quantiles([t / o for t, o in zip(times, seconds["heedful"], strict=True)])
        row[library] = {
            "ms": round(1000 * statistics.median(times), 3),
            "ms_fastest": round(1000 * min(times), 3),
            "time_ratio": round(quarters[1], 3),
            "time_ratio_quartiles": [round(quarters[0], 3), round(quarters[2], 3)],
            "peak_mib": round(memory[library], 1),
            "memory_ratio": round(memory[library] / memory["heedful"], 3),
            "parameters": parameters[library],
        }
    return row


def machine(device: str) -> dict[str, Any]:
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": cpus[0].split(":")[1].strip() if cpus else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "dtype": "bfloat16 autocast" if device == "cuda" else "float32",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="measure all contenders under torch.compile")
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a measurement; writes only --out")
    parser.add_argument("--only", default="", help="cells whose name contains this; writes only --out")
    parser.add_argument("--out", type=Path, help="where to write the JSON, if not beside this file in results/")
    args = parser.parse_args()
    rounds = 5 if args.quick else 25

    print(f"{'theirs / ours':<24}{'heedful':>18}{'torch.nn':>24}{'hugging face':>24}")
    print(f"{'':<24}{'ms':>10}{'MiB':>8}" + f"{'time':>16}{'memory':>8}" * 2)
    rows = []
    for work, shape in CELLS[args.device]:
        if args.only in f"{work} {shape.batch}×{shape.tokens}":
            row = measure(work, shape, args.device, args.compile, rounds)
            line = f"{row['cell']:<24}{row['heedful']['ms']:>10.2f}{row['heedful']['peak_mib']:>8.0f}"
            for theirs in (row["torch.nn"], row["hugging face"]):
                low, high = theirs["time_ratio_quartiles"]
                line += f"{theirs['time_ratio']:>10.2f} ±{(high - low) / 2:.2f}{theirs['memory_ratio']:>9.2f}"
            print(line, flush=True)
            rows.append(row)

    name = f"layers-{'gpu' if args.device == 'cuda' else 'cpu'}{'-compiled' if args.compile else ''}.json"
    out = args.out or (None if args.quick or args.only else Path(__file__).parent / "results" / name)
    if out is not None:
        command = f"python benchmarks/layers.py --device {args.device}" + " --compile" * args.compile
        command += " --quick" * args.quick + f" --only '{args.only}'" * bool(args.only)
        record = {"command": command, "rounds": rounds, "machine": machine(args.device), "rows": rows}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
