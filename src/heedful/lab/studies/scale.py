"""Q4: why divide by √d_k? Attention weights and learning as heads grow wider, with other factors of the scores."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from heedful.lab.fitting import fit, new_model
from heedful.lab.model_measures import first_batch
from heedful.lab.plotting import Lines
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.lab.toy_tasks import ReorderTask
from heedful.layers.attention import attention_weights
from heedful.layers.taps import record

SCALES: dict[str, dict[str, Any]] = {
    "1": {"score_scale": 1.0},
    "1/sqrt(d_k)": {},
    "1/d_k": {"score_scale": "1/d_k"},
    "learned": {"score_scale": "learned"},
}
FACTORS = {"1": 0.0, "1/sqrt(d_k)": 0.5, "1/d_k": 1.0, "learned": 0.5}
"""The power of d_k that scores are divided by at the start."""
KEYS = 64


def entropy(weights: Tensor) -> float:
    """−Σ α log α of attention weights as a share of log n: 1 = uniform, 0 = one-hot."""
    entropies = torch.special.entr(weights).sum(-1)
    return float(entropies.detach().mean() / math.log(weights.shape[-1]))


def measure(trial: Trial) -> dict[str, Measured]:
    d_k, scale = trial.number("head_width"), trial.text("scale")
    query, key = (torch.randn(4, KEYS, d_k) for _ in range(2))
    unit = attention_weights(query * d_k ** (0.5 - FACTORS[scale]), key)
    task = ReorderTask("reverse", longest=8)
    model = {"positions": "sinusoidal", "head_width": d_k, **SCALES[scale]}
    fresh, batch = new_model(task, **model), first_batch(task, trial.seed, torch.device("cpu"))
    with record(fresh, "encoder.0.attention.weights") as recorded:
        fresh(batch.source, batch.target)
    fitted = fit(task, trial, steps=trial.budget["steps"], model=model)
    return {
        "unit_entropy": entropy(unit),
        "fresh_entropy": entropy(recorded["encoder.0.attention.weights"]),
        "loss": fitted.final_loss(),
        "reverse": task.exact_match(fitted.model),
    }


STUDY = Study(
    name="scale",
    question="Why are scores divided by the root of the head width?",
    concept="Q4",
    setup=(
        "Entropy of attention weights, as a share of that of the uniform distribution: for random queries and 64 "
        "random keys of unit variance, and for a fresh model. Then an encoder-decoder (one block each, width 64, two "
        "heads of width d_k) learns to reverse random symbols: exact match at length 8, and the training loss at the "
        "end. The learned factor, one a head, starts at 1/√d_k."
    ),
    variants=grid(scale=tuple(SCALES), head_width=(4, 32, 256)),
    measure=measure,
    measures=(
        Measure("unit_entropy", "entropy, unit variance", "percent", in_words="the entropy for unit variance"),
        Measure("fresh_entropy", "entropy, fresh model", "percent", in_words="the entropy in a fresh model"),
        Measure("loss", "training loss (nats)", in_words="the training loss in nats"),
        Measure("reverse", "reverse", "percent", in_words="the share of sequences that are reversed without an error"),
    ),
    predictions=(
        Claim(
            "without a factor, wide heads with queries and keys of unit variance are nearly one-hot: entropy below 15%",
            lambda r: r.is_below("unit_entropy", {"scale": "1", "head_width": 256}, 0.15),
        ),
        Claim(
            "with 1/√d_k that entropy is the same for heads of width 4 and 256 to within 5 points",
            lambda r: r.is_close(
                "unit_entropy",
                {"scale": "1/sqrt(d_k)", "head_width": 4},
                {"scale": "1/sqrt(d_k)", "head_width": 256},
                within=0.05,
            ),
        ),
        Claim(
            "a model with heads of width 256 learns worse without a factor than with 1/√d_k",
            lambda r: r.is_more("loss", {"scale": "1", "head_width": 256}, {"scale": "1/sqrt(d_k)", "head_width": 256}),
        ),
    ),
    wording={
        "scale": {
            "1": "without a factor", "1/sqrt(d_k)": "with 1/√d_k", "1/d_k": "with 1/d_k",
            "learned": "with a learned factor",
        },
        "head_width": "at head width {}",
    },
    panels=(
        Lines("unit_entropy", x="head_width", log_x=True),
        Lines("fresh_entropy", x="head_width", log_x=True),
        Lines("loss", x="head_width", log_x=True),
    ),
    would_change=(
        "An initialization that gives queries and keys unit variance at every width. The library's (Glorot) makes the "
        "weights of wide heads smaller, which does part of the work of the factor at the start of training."
    ),
    budget={"steps": 300},
    quick={"steps": 200},
)  # fmt: skip
