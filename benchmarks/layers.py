"""Time and memory of forward and backward passes: heedful, torch.nn and Hugging Face, blocks and whole models.

    python benchmarks/layers.py --device cpu                  float32
    python benchmarks/layers.py --device cuda [--compile]     bfloat16 autocast, eager or under torch.compile

Every library runs in a fresh process, so its peak memory is its own; the processes take turns (A B C, B C A, …) in
short bursts, so a busy machine affects all alike. A ratio is other / heedful: above 1, heedful is faster or needs less
memory; for time it is the median over rounds. All libraries have the same shapes, padding, dtype and number of
parameters, dropout 0, random weights, and `scaled_dot_product_attention`.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ModelCall = tuple[nn.Module, dict[str, Any]]
"""A model and the keyword arguments of its forward pass."""

BLOCKS = {"bert": "encoder block", "paper": "decoder block", "gpt2": "causal block"}
MODELS = {"bert": "bert-like", "paper": "paper base", "gpt2": "gpt2-like"}


class Cell(NamedTuple):
    family: str
    batch: int
    tokens: int
    width: int = 512
    heads: int = 8
    layers: int = 1
    vocabulary: int = 0  # 0: a single block, from vectors to vectors

    @property
    def name(self) -> str:
        return f"{(MODELS if self.vocabulary else BLOCKS)[self.family]} {self.batch}×{self.tokens}"


CELLS = {
    "cpu": [Cell(family, *shape) for family in BLOCKS for shape in ((16, 64), (2, 512))]
    + [
        Cell("paper", 8, 32, layers=6, vocabulary=37_000),
        Cell("bert", 8, 128, layers=8, vocabulary=30_522),
        Cell("gpt2", 2, 256, layers=6, vocabulary=50_257),
    ],
    "cuda": [Cell(family, *shape) for family in BLOCKS for shape in ((256, 64), (32, 512))]
    + [
        Cell("paper", 768, 32, layers=6, vocabulary=37_000),
        Cell("bert", 256, 128, width=768, heads=12, layers=12, vocabulary=30_522),
        Cell("gpt2", 16, 1024, width=768, heads=12, layers=12, vocabulary=50_257),
    ],
}


class Inputs:
    """Inputs of all libraries: vectors (for a block) or token ids (for a model), and the real length of each row."""

    def __init__(self, cell: Cell, device: str) -> None:
        torch.manual_seed(0)
        rows = (cell.batch, cell.tokens)
        self.x, self.memory = (torch.randn(*rows, cell.width, device=device, requires_grad=True) for _ in range(2))
        self.source, self.target = (torch.randint(3, max(cell.vocabulary, 4), rows, device=device) for _ in range(2))
        self.lengths = torch.linspace(cell.tokens // 2, cell.tokens, cell.batch, device=device).long()
        self.real = torch.arange(cell.tokens, device=device) < self.lengths[:, None]
        self.output_gradient = torch.randn(*rows, cell.width, device=device)  # for a block


def heedful_model(cell: Cell, i: Inputs) -> ModelCall:
    from heedful import PRESETS, TransformerConfig, build
    from heedful.layers.masks import causal, padding
    from heedful.models.transformer import make_stack

    settings = PRESETS[{"bert": "bert-base", "paper": "paper-base", "gpt2": "gpt2"}[cell.family]]
    size = {"width": cell.width, "heads": cell.heads, "layers": cell.layers, "vocabulary": max(cell.vocabulary, 4)}
    config, real = TransformerConfig(**settings | size | {"dropout": 0.0, "tasks": ()}), padding(i.lengths, cell.tokens)
    if not cell.vocabulary:
        block = make_stack(config, 1, cross=cell.family == "paper").blocks[0]
        decoder_masks = {"memory": i.memory, "memory_mask": real} if cell.family == "paper" else {}
        return block, {"x": i.x, "mask": real if cell.family == "bert" else causal(), **decoder_masks}
    pair = {"source": i.source, "source_lengths": i.lengths, "target": i.target}
    calls = {"bert": {"tokens": i.source, "lengths": i.lengths}, "paper": pair, "gpt2": {"tokens": i.target}}
    return build(config), calls[cell.family]


class TorchModel(nn.Module):
    """torch.nn's stacks with the embedding table, positions and tied logits a user adds to them."""

    def __init__(self, cell: Cell, encoder: nn.Module, decoder: nn.Module | None) -> None:
        super().__init__()
        self.encoder, self.decoder, bert = encoder, decoder, cell.family == "bert"
        self.table = nn.Embedding(cell.vocabulary, cell.width)
        self.scale = cell.width**0.5 if cell.family == "paper" else 1.0
        learned = {"bert": 512, "gpt2": 1024}.get(cell.family, 0)
        self.positions = nn.Parameter(torch.randn(learned or cell.tokens, cell.width), requires_grad=learned > 0)
        self.segments = nn.Parameter(torch.zeros(2, cell.width)) if bert else None
        self.norm = nn.LayerNorm(cell.width) if bert else nn.Identity()

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) * self.scale + self.positions[: tokens.shape[1]]
        return self.norm(x if self.segments is None else x + self.segments[0])

    def forward(self, tokens: Tensor, masks: dict[str, Any], target: Tensor, target_masks: dict[str, Any]) -> Tensor:
        states: Tensor = self.encoder(self.embed(tokens), **masks)
        if self.decoder is not None:
            states = self.decoder(self.embed(target), states, **target_masks)
        return states if self.segments is not None else F.linear(states, self.table.weight)


def torch_model(cell: Cell, i: Inputs) -> ModelCall:
    activation = {"bert": F.gelu, "paper": F.relu, "gpt2": partial(F.gelu, approximate="tanh")}[cell.family]
    size: dict[str, Any] = {
        "d_model": cell.width,
        "nhead": cell.heads,
        "dim_feedforward": 4 * cell.width,
        "batch_first": True,
    }
    size |= {"dropout": 0.0, "activation": activation, "norm_first": cell.family == "gpt2"}
    encoder, decoder = nn.TransformerEncoderLayer(**size), nn.TransformerDecoderLayer(**size)
    causal = nn.Transformer.generate_square_subsequent_mask(cell.tokens, i.x.device)
    decoder_masks = {"tgt_mask": causal, "tgt_is_causal": True, "memory_key_padding_mask": ~i.real}
    mask = "mask" if cell.vocabulary else "src_mask"
    masks = {mask: causal, "is_causal": True} if cell.family == "gpt2" else {"src_key_padding_mask": ~i.real}
    if not cell.vocabulary and cell.family == "paper":
        return decoder, {"tgt": i.x, "memory": i.memory, **decoder_masks}
    if not cell.vocabulary:
        return encoder, {"src": i.x, **masks}
    norm = nn.LayerNorm(cell.width) if cell.family == "gpt2" else None
    encoders = nn.TransformerEncoder(encoder, cell.layers, norm, enable_nested_tensor=False)
    decoders = nn.TransformerDecoder(decoder, cell.layers) if cell.family == "paper" else None
    call = {"tokens": i.source, "masks": masks, "target": i.target, "target_masks": decoder_masks}
    return TorchModel(cell, encoders, decoders), call


def hugging_face_model(cell: Cell, i: Inputs) -> ModelCall:
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel
    from transformers.models.bert.modeling_bert import BertLayer
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block
    from transformers.models.marian.modeling_marian import MarianDecoderLayer

    real, hidden = i.real[:, None, None, :], 4 * cell.width
    same: dict[str, Any] = {"vocab_size": max(cell.vocabulary, 4), "attn_implementation": "sdpa", "use_cache": False}
    same |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    if cell.family == "bert":
        same |= {"hidden_size": cell.width, "num_attention_heads": cell.heads, "num_hidden_layers": cell.layers}
        same |= {"intermediate_size": hidden, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        if not cell.vocabulary:
            return BertLayer(BertConfig(**same)), {"hidden_states": i.x, "attention_mask": real}
        call = {"input_ids": i.source, "attention_mask": i.real.long()}
        return BertModel(BertConfig(**same), add_pooling_layer=False), call
    if cell.family == "gpt2":
        same |= {"n_embd": cell.width, "n_head": cell.heads, "n_layer": cell.layers, "n_inner": hidden}
        # Their own gelu_new is the same function in seven operations; this is it in one.
        same |= {"activation_function": "gelu_pytorch_tanh", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        if not cell.vocabulary:
            return GPT2Block(GPT2Config(**same), layer_idx=0), {"hidden_states": i.x}
        return GPT2LMHeadModel(GPT2Config(**same)), {"input_ids": i.target}
    same |= {"d_model": cell.width, "dropout": 0.0, "scale_embedding": True, "activation_function": "relu"}
    for side in ("encoder", "decoder"):
        same |= {f"{side}_layers": cell.layers, f"{side}_attention_heads": cell.heads, f"{side}_ffn_dim": hidden}
    if not cell.vocabulary:
        call = {"hidden_states": i.x, "encoder_hidden_states": i.memory, "encoder_attention_mask": real}
        return MarianDecoderLayer(MarianConfig(**same), layer_idx=0), call
    call = {"input_ids": i.source, "attention_mask": i.real.long(), "decoder_input_ids": i.target}
    return MarianMTModel(MarianConfig(**same)), call


LIBRARIES = {"heedful": heedful_model, "torch.nn": torch_model, "hugging face": hugging_face_model}


def prepare(library: str, cell: Cell, device: str, compiled: bool) -> tuple[int, Callable[[int], float]]:
    """The library's number of parameters, and a function from a number of steps to the seconds per step."""
    inputs = Inputs(cell, device)
    model, call = LIBRARIES[library](cell, inputs)
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
        if output.shape[-1] == cell.vocabulary:
            F.cross_entropy(output.flatten(0, 1), inputs.target.flatten()).backward()
        else:
            output.backward(inputs.output_gradient.to(output.dtype))

    def timed(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    return sum(weight.numel() for weight in weights), timed


def serve(pipe: Any, library: str, cell: Cell, device: str, compiled: bool) -> None:
    """One library's process: times as many steps as requested; on 0, sends its peak memory and ends."""
    prepare(library, cell, device, compiled=False)[1](2)  # loads code and workspaces, which are not counted
    before = resident("VmRSS")
    parameters, timed = prepare(library, cell, device, compiled)
    timed(3)
    pipe.send(parameters)
    while steps := pipe.recv():
        if steps > 1:
            timed(1)  # warm the caches after the other processes' turns
        pipe.send(timed(steps))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    timed(2)
    pipe.send((torch.cuda.max_memory_allocated() if device == "cuda" else resident("VmHWM") - before) / 2**20)


def resident(field: str) -> int:
    """VmRSS: bytes in memory now; VmHWM: the most so far."""
    gc.collect()
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def measure(cell: Cell, device: str, compiled: bool, rounds: int) -> dict[str, Any]:
    """One row of the table: a process for each library, taking turns."""

    def start(library: str) -> Any:
        context = multiprocessing.get_context("spawn")
        pipe, end = context.Pipe()
        context.Process(target=serve, args=(end, library, cell, device, compiled), daemon=True).start()
        end.close()
        return pipe

    def request(pipe: Any, steps: int) -> float:
        pipe.send(steps)
        return float(pipe.recv())

    pipes = {library: start(library) for library in LIBRARIES}
    parameters = {library: pipe.recv() for library, pipe in pipes.items()}
    steps = max(1, round(0.1 / request(pipes["heedful"], 1)))
    order = list(LIBRARIES)
    seconds: dict[str, list[float]] = {library: [] for library in LIBRARIES}
    for _ in range(rounds):
        for library in order:
            seconds[library].append(request(pipes[library], steps))
        order.append(order.pop(0))
    memory = {library: request(pipe, 0) for library, pipe in pipes.items()}
    if device == "cpu":
        # malloc keeps a varying amount of freed memory. So peaks are measured separately, in processes where it returns
        # every freed tensor to the system at once.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
        pipes = {library: start(library) for library in LIBRARIES}
        del os.environ["MALLOC_MMAP_THRESHOLD_"]
        memory = {library: pipe.recv() and request(pipe, 0) for library, pipe in pipes.items()}

    row: dict[str, Any] = {"cell": cell.name, "shape": cell._asdict()}
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
    parser.add_argument("--compile", action="store_true", help="measure all libraries under torch.compile")
    parser.add_argument("--quick", action="store_true", help="few rounds, for a first look; writes only --out")
    parser.add_argument("--only", default="", help="cells whose name contains this; writes only --out")
    parser.add_argument("--out", type=Path, help="where to write the JSON, if not beside this file in results/")
    args = parser.parse_args()
    rounds = 5 if args.quick else 25

    print(f"{'other / heedful':<24}{'heedful':>18}{'torch.nn':>24}{'hugging face':>24}")
    print(f"{'':<24}{'ms':>10}{'MiB':>8}" + f"{'time':>16}{'memory':>8}" * 2)
    rows = []
    for cell in CELLS[args.device]:
        if args.only in cell.name:
            row = measure(cell, args.device, args.compile, rounds)
            line = f"{row['cell']:<24}{row['heedful']['ms']:>10.2f}{row['heedful']['peak_mib']:>8.0f}"
            for other in (row["torch.nn"], row["hugging face"]):
                low, high = other["time_ratio_quartiles"]
                line += f"{other['time_ratio']:>10.2f} ±{(high - low) / 2:.2f}{other['memory_ratio']:>9.2f}"
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
