"""Ablation of the Triton kernels: real workloads with each kernel, and with its torch equivalent instead. Needs CUDA.

    python benchmarks/kernels.py            writes results/kernels-gpu.json

"Without" makes one `kernels.dispatch.has_*` answer no; everything else stays. The two take turns, and a ratio is
without / with, by round (median and quartiles): above 1, the kernel is faster. Training workloads are bfloat16 forward
and backward passes, decoding workloads 64 greedy steps over CUDA graphs.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
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
    *(
        Ablation("fused_decode_step", f"gpt2 greedy decoding, {rows} row(s)", partial(decode_step, rows))
        for rows in (1, 2, 4, 8)
    ),
    Ablation("argmax_logprob", "gpt2 greedy decoding, 1 row", lambda: decode_step(1)),
    Ablation("argmax_logprob", "gpt2 greedy decoding, 64 rows", lambda: decode_step(64)),
]


def never(*_: object, **__: object) -> bool:
    return False


def milliseconds(step: Step) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def measure(ablation: Ablation) -> dict[str, Any]:
    """Time both variants in turns, after warm-up (compilation and graph capture)."""
    without = mock.patch.object(dispatch, f"has_{ablation.kernel}", never)
    torch._dynamo.reset()
    variants: dict[str, tuple[Step, AbstractContextManager[object]]] = {}
    for name, context in (("with", nullcontext()), ("without", without)):
        torch.manual_seed(0)
        with context:
            step = ablation.make_step()
            for _ in range(3):
                step()
        variants[name] = step, context
    times: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(ROUNDS):
        for name in sorted(variants, reverse=bool(number % 2)):
            step, context = variants[name]
            with context:
                times[name].append(milliseconds(step))
    ratios = [plain / fused for plain, fused in zip(times["without"], times["with"], strict=True)]
    low, middle, high = statistics.quantiles(ratios)
    return {
        "kernel": ablation.kernel,
        "workload": ablation.workload,
        **{f"ms_{name}": round(statistics.median(each), 3) for name, each in times.items()},
        "ratio": round(middle, 3),
        "ratio_quartiles": [round(low, 3), round(high, 3)],
    }


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit(
            "benchmarks/kernels.py needs a CUDA GPU: on a CPU no Triton kernel is used, so there is nothing to compare"
        )
    rows = []
    for ablation in ABLATIONS:
        rows.append(row := measure(ablation))
        times = f"{row['ms_with']:>9.2f} ms{row['ms_without']:>9.2f} ms{row['ratio']:>7.2f}×"
        print(f"{row['kernel']:<20}{row['workload']:<36}{times} {row['ratio_quartiles']}", flush=True)
        torch.cuda.empty_cache()
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    out = Path(__file__).parent / "results" / "kernels-gpu.json"
    out.write_text(json.dumps({"command": "python benchmarks/kernels.py", "machine": machine, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
