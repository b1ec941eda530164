"""Ablation of the Triton kernels: real workloads with each kernel, and with its torch equivalent instead. Needs CUDA.

    python benchmarks/kernels.py            writes results/kernels-gpu.json

"Without" makes one `kernels.dispatch.has_*` answer no; everything else stays. A ratio is without / with: above 1, the
kernel is faster. Training workloads are bfloat16 forward and backward passes, decoding workloads greedy steps over
CUDA graphs. Not run yet: written without access to a GPU, so results/kernels-gpu.json does not exist so far.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

import heedful
from heedful.data.pair_dataset import PairBatch
from heedful.data.text_dataset import TextBatch
from heedful.generation.backends.cuda_graph_backend import CudaGraphDecoder
from heedful.kernels import dispatch
from heedful.objectives.causal_lm_loss import CausalLMLoss
from heedful.objectives.objective import CompiledObjective, Objective
from heedful.objectives.seq2seq_loss import Seq2SeqLoss

ROUNDS = 15
Step = Callable[[], object]


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(6, 8000, (rows, length), device="cuda")


def training_step(preset: str, objective: Objective, batch: Any, **settings: Any) -> Step:
    model = heedful.build(preset, dropout=0.0, **settings).cuda().train()

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = objective.loss(model, batch)
        loss.backward()

    return step


def translation_step() -> Step:
    """The paper's base model on 768 sentence pairs of 32 tokens."""
    source, target, lengths = tokens(768, 32), tokens(768, 32), torch.full((768,), 32, device="cuda")
    batch = PairBatch(source=source, source_lengths=lengths, target=target, labels=target)
    return training_step("paper-base", Seq2SeqLoss(), batch)


def language_model_step(*, compiled: bool) -> Step:
    """GPT-2 small with exact GELU on 16 rows of 1,024 tokens."""
    objective = CompiledObjective(CausalLMLoss()) if compiled else CausalLMLoss()
    text = tokens(16, 1024)
    return training_step("gpt2", objective, TextBatch(tokens=text, labels=text), activation="gelu")


def decode_step(rows: int) -> Step:
    """GPT-2 small: 64 greedy tokens in each row, after a prompt of 64."""
    decoder = CudaGraphDecoder(heedful.build("gpt2").cuda().to(torch.bfloat16).eval())
    prompt = tokens(rows, 64)

    @torch.inference_mode()
    def step() -> None:
        state = decoder.start(rows, capacity=128)
        best, _ = decoder.argmax(prompt, state)
        for _ in range(63):
            best, _ = decoder.argmax(best[:, None], state)

    return step


class Ablation(NamedTuple):
    kernel: str
    workload: str
    make_step: Callable[[], Step]


ABLATIONS = [
    Ablation("short_attention", "paper-base training, 768 × 32", translation_step),
    Ablation("cross_entropy", "paper-base training, 768 × 32", translation_step),
    Ablation("cross_entropy", "gpt2 training, 16 × 1024", lambda: language_model_step(compiled=False)),
    Ablation("gelu", "gpt2 compiled training, 16 × 1024", lambda: language_model_step(compiled=True)),
    Ablation("decode_attention", "gpt2 greedy decoding, 64 rows", lambda: decode_step(64)),
    Ablation("fused_decode_step", "gpt2 greedy decoding, 1 row", lambda: decode_step(1)),
    Ablation("fused_decode_step", "gpt2 greedy decoding, 8 rows", lambda: decode_step(8)),
    Ablation("argmax_logprob", "gpt2 greedy decoding, 64 rows", lambda: decode_step(64)),
]


def never(*_: object, **__: object) -> bool:
    return False


def milliseconds(make_step: Callable[[], Step]) -> float:
    """Median time of a step, after warm-up (compilation and graph capture)."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    step, times = make_step(), []
    for _ in range(3):
        step()
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit(
            "benchmarks/kernels.py needs a CUDA GPU: on a CPU no Triton kernel is used, so there is nothing to compare"
        )
    rows = []
    for kernel, workload, make_step in ABLATIONS:
        fused = milliseconds(make_step)
        with mock.patch.object(dispatch, f"has_{kernel}", never):
            plain = milliseconds(make_step)
        rows.append({"kernel": kernel, "workload": workload, "ms_with": fused, "ms_without": plain})
        print(f"{kernel:<20}{workload:<36}{fused:>9.2f} ms{plain:>9.2f} ms{plain / fused:>7.2f}×", flush=True)
        torch.cuda.empty_cache()
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    out = Path(__file__).parent / "results" / "kernels-gpu.json"
    out.write_text(json.dumps({"command": "python benchmarks/kernels.py", "machine": machine, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
