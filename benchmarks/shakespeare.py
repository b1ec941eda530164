"""Time to a validation loss on tiny Shakespeare by characters, for one implementation; `training.py` runs it.

    python benchmarks/shakespeare.py heedful|nanogpt-like FILE STARTED SEED DEVICE SIZE

STARTED is `time.time()` when the process was started: the measurement includes starting Python, importing torch and
compiling. Both models have the same shape (6 layers, 6 heads, width 384, context 256, dropout 0.2, no biases) and train
on the first 90% of the characters. The last line printed is JSON.

  nanogpt-like  a reimplementation for this comparison (see `contenders.py`), with nanoGPT's published settings:
                learning rate 1e-3 falling by a cosine to 1e-4 over 5000 steps after 100 of warm-up, betas 0.9 and 0.99,
                weight decay 0.1, clipping at 1, 64 random windows a step, and every 250 steps the mean loss over 200
                batches of random windows of each of the two parts
  heedful       its Trainer with CUDA graphs, twice that learning rate with a cosine to 0 over 1700 steps (the second of
                four such schedules tried, by this loss), and its own evaluation: every validation character once, in
                windows of the same length, every 100 steps
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

LOSS = 1.4609
"""Nats per character: the best of a 5000-step run of nanoGPT."""

SIZES = {
    "whole": {"layers": 6, "heads": 6, "width": 384, "context": 256, "rows": 64, "steps": 5000, "every": 250},
    "quick": {"layers": 1, "heads": 2, "width": 32, "context": 32, "rows": 8, "steps": 60, "every": 20},
}
LEARNING_RATE, MIN_LEARNING_RATE, WARMUP, BETAS, DROPOUT, EVALUATION_BATCHES = 1e-3, 1e-4, 100, (0.9, 0.99), 0.2, 200

Report = Callable[[int, float, float], bool]
"""Takes the step, the validation loss and the evaluation's seconds; returns whether to stop."""


def heedful(text: str, size: dict[str, int], seed: int, device: str, report: Report) -> None:
    import numpy as np

    from heedful.data.dataset import Split
    from heedful.data.text_dataset import TextBatches
    from heedful.data.text_size import TextSize
    from heedful.data.token_store import Sequences
    from heedful.device import select_device
    from heedful.evaluation.perplexity import evaluate_perplexity
    from heedful.models.build import build
    from heedful.models.presets import make_config
    from heedful.objectives.causal_lm_loss import CausalLMLoss
    from heedful.text.special_tokens import SPECIAL_TOKENS
    from heedful.training.recipe import TrainingRecipe
    from heedful.training.reporting.events import Events
    from heedful.training.setup import configure_cpu_memory
    from heedful.training.trainer import Evaluation, Trainer

    torch.manual_seed(seed)
    letters = sorted(set(text))
    number = {letter: len(SPECIAL_TOKENS) + i for i, letter in enumerate(letters)}
    ids, cut = np.array([number[letter] for letter in text], np.uint16), int(0.9 * len(text))
    parts = [Sequences(part, np.array([len(part)])) for part in (ids[:cut], ids[cut:])]
    windows: dict[str, Any] = {"context": size["context"], "rows": size["rows"], "seed": seed}
    train, valid = TextBatches(parts[0], **windows), TextBatches(parts[1], **windows, shuffle=False)
    model = build(
        make_config(
            {
                "family": "decoder",
                "vocabulary": len(SPECIAL_TOKENS) + len(letters),
                "positions": "learned",
                "max_length": size["context"],
                "activation": "gelu",
                "norm_order": "pre",
                "embedding_scale": False,
                "bias": False,
                "dropout": DROPOUT,
                "attention_dropout": DROPOUT,
                **{name: size[name] for name in ("layers", "heads", "width")},
            }
        )
    )
    settings: dict[str, Any] = {
        "steps": size["steps"] * 17 // 50,
        "evaluate_every": size["every"] * 2 // 5,
        "learning_rate": 2 * LEARNING_RATE,
        "warmup": WARMUP,
        "betas": BETAS,
        "weight_decay": 0.1,
        "label_smoothing": 0.0,
        "average": "none",
        "patience": 1,
        "precision": "bfloat16" if device == "cuda" else "float32",
        "cuda_graphs": device == "cuda",
    }
    torch_device, objective = select_device(device), CausalLMLoss()
    recipe = TrainingRecipe(**settings)
    configure_cpu_memory(recipe, train, torch_device)
    trainer = Trainer(model, objective, train, recipe, seed=seed, device=torch_device, events=Events())
    split = Split((parts[1],), 1, TextSize.measure([text[cut:]]))

    def evaluate(model: Any) -> Evaluation:
        start = time.perf_counter()
        loss = evaluate_perplexity(model, objective, valid, split, torch_device)["loss"]
        done = report(trainer.progress.step, loss, time.perf_counter() - start)
        return Evaluation(
            -math.inf if done else trainer.progress.step, {}
        )  # with patience 1, a lower score ends the run

    trainer.fit(evaluate, lambda _: None)


def nanogpt_like(text: str, size: dict[str, int], seed: int, device: str, report: Report) -> None:
    from contenders import Cell, NanoLike, adamw, autocast

    torch.manual_seed(seed)
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    ids, cut = torch.tensor([number[letter] for letter in text]), int(0.9 * len(text))
    context, rows, steps = size["context"], size["rows"], size["steps"]
    shape = Cell("", "text", rows, context, size["width"], size["heads"], size["layers"], len(letters))
    model = NanoLike(shape, dropout=DROPOUT).to(device)
    optimizer = adamw(model, LEARNING_RATE, BETAS)
    forward = torch.compile(model) if device == "cuda" else model

    def windows(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(part) - context, (rows,))
        both = torch.stack([part[start : start + context + 1] for start in starts.tolist()])
        both = both.pin_memory() if device == "cuda" else both
        moved = both.to(device, non_blocking=True)
        return moved[:, :-1].contiguous(), moved[:, 1:].contiguous()

    @torch.no_grad()
    def evaluate() -> float:
        model.eval()
        losses = []
        for part in (ids[:cut], ids[cut:]):
            part_losses = []
            for _ in range(EVALUATION_BATCHES):
                with autocast(device):
                    part_losses.append(float(forward(*windows(part))))
            losses.append(sum(part_losses) / len(part_losses))
        model.train()
        return losses[1]

    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = cosine_with_warmup(step, steps)
        with autocast(device):
            loss = forward(*windows(ids[:cut]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % size["every"] == 0:
            start = time.perf_counter()
            loss = evaluate()
            if report(step, loss, time.perf_counter() - start):
                return


def cosine_with_warmup(step: int, steps: int) -> float:
    """nanoGPT's learning-rate schedule."""
    if step < WARMUP:
        return LEARNING_RATE * step / WARMUP
    progress = min(1.0, (step - WARMUP) / (steps - WARMUP))
    return MIN_LEARNING_RATE + (LEARNING_RATE - MIN_LEARNING_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def main() -> None:
    name, file, started, seed, device, size = sys.argv[1:]
    curve: list[dict[str, float]] = []
    evaluating = 0.0

    def report(step: int, loss: float, seconds: float) -> bool:
        nonlocal evaluating
        evaluating += seconds
        now = time.time() - float(started)
        curve.append(
            {"step": step, "loss": round(loss, 4), "seconds": round(now, 2), "evaluating": round(evaluating, 2)}
        )
        print(f"{name}: step {step}, loss {loss:.4f}, {now:.1f} s", file=sys.stderr, flush=True)
        return loss <= LOSS

    implementation = {"heedful": heedful, "nanogpt-like": nanogpt_like}[name]
    implementation(Path(file).read_text(encoding="utf-8"), SIZES[size], int(seed), device, report)
    last = curve[-1]  # where the loss was reached; otherwise the end, so that the time is a lower bound
    result = {
        "reached": last["loss"] <= LOSS,
        "best_loss": min(point["loss"] for point in curve),
        "step": last["step"],
        "seconds": last["seconds"],
        "seconds_without_evaluating": round(last["seconds"] - last["evaluating"], 2),
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None,
        "curve": curve,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
