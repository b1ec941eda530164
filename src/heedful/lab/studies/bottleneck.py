"""Q6, T6: how do recurrent models with and without attention, and transformers, degrade with sentence length?"""

from __future__ import annotations

from typing import Any

import torch

from heedful.lab.corpus_task import TITLES, CorpusName, CorpusTask, present_corpora
from heedful.lab.fitting import fit, new_model
from heedful.lab.plotting import Lines
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.lab.toy_tasks import ReorderTask
from heedful.layers.taps import record
from heedful.objectives.objective import to_device

RECURRENT: dict[str, Any] = {
    "family": "recurrent_encoder_decoder", "width": 64, "bidirectional": False, "dropout": 0.0, "tie_output": False,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "one vector": {**RECURRENT, "attention": "none"},
    "with attention": {**RECURRENT, "attention": "bilinear"},
    "transformer": {"positions": "rotary"},
}
LENGTHS = (4, 8, 12, 16, 20, 24)
GRADIENT_LENGTHS = (4, 8, 16, 32, 64)


def gradient_to_first_word(model: Any, length: int, device: torch.device) -> float:
    """The gradient norm of the last predictions by the first source word, relative to that by the last source word."""
    task = ReorderTask("copy", longest=length)
    batch = to_device(task.test_batch(length, rows=16), device)
    with record(model, "source.tokens") as recorded:
        logits = model(batch.source, batch.target, batch.source_lengths)
    (gradient,) = torch.autograd.grad(
        logits[:, -1].logsumexp(-1).sum() - logits[:, -1, 6].sum(), recorded["source.tokens"]
    )
    return float(gradient[:, 0].norm() / gradient[:, length - 1].norm().clamp(min=1e-30))


def plotted_corpus() -> CorpusName:
    """The corpus whose losses by length are drawn: sentences where they are present."""
    return "multi30k" if "multi30k" in present_corpora() else present_corpora()[-1]


def measure(trial: Trial) -> dict[str, Measured]:
    settings = MODELS[trial.text("model")]
    task = ReorderTask("copy", longest=16)
    fresh = new_model(task, **settings).to(trial.device)
    fitted = fit(task, trial, steps=trial.budget["steps"], model=settings)
    by_length = [task.token_accuracy(fitted.model, task.test_batch(length)) for length in LENGTHS]
    gradients = [gradient_to_first_word(fresh, length, trial.device) for length in GRADIENT_LENGTHS]
    quarters: dict[str, list[float]] = {}
    for name in present_corpora():
        pairs = CorpusTask(name)
        translator = fit(pairs, trial, steps=trial.budget["pair_steps"], model=settings)
        quarters[name] = pairs.loss_by_length(translator.model)
    return {
        **{f"{name}_short": losses[0] for name, losses in quarters.items()},
        **{f"{name}_long": losses[-1] for name, losses in quarters.items()},
        "quarters": quarters[plotted_corpus()],
        "short": by_length[0],
        "long": by_length[3],
        "microseconds": 1e6 * fitted.seconds / fitted.tokens,
        "gradient": gradients[3],
        "by_length": by_length,
        "gradients": gradients,
    }


STUDY = Study(
    name="bottleneck",
    question="How does sentence length affect recurrent models with and without attention, and transformers?",
    concept="Q6",
    setup=lambda: (
        "Encoder-decoders of width 64: a GRU that reads from left to right, with one context vector; the same with "
        "attention; a transformer with one block each. They learn to copy random symbols of length 4 to 16; tokens "
        f"right by length, beyond 16 too. Then {'; '.join(TITLES[name] for name in present_corpora())}; each a task "
        "of its own: loss a target token of held-out pairs, for the quarter with the shortest and that with the "
        f"longest sources, and drawn for all quarters of {TITLES[plotted_corpus()]}. Time a target token of training "
        "on copy, of the processor. Gradient: the "
        "norm by the first source word of a function of the last prediction, relative to that by the last source "
        "word, in a fresh model with a source of 32 symbols."
    ),
    variants=grid(model=tuple(MODELS)),
    measure=measure,
    measures=(
        Measure("short", "copy, length 4", "percent"),
        Measure("long", "copy, length 16", "percent", in_words="the share of right tokens in copies of length 16"),
        *(
            Measure(f"{corpus}_{half}", f"{corpus.capitalize()}, {half} (nats)", optional=corpus != "dates")
            for corpus in TITLES
            for half in ("short", "long")
        ),
        Measure("microseconds", "µs a token", digits=0, timed=True),
        Measure(
            "gradient", "gradient, first / last word", "scientific", 1,
            in_words="the gradient at the first word relative to that at the last",
        ),
    ),
    curves=(
        Measure("by_length", "copy by length", "percent"),
        Measure("quarters", "loss by quarter of lengths (nats)"),
        Measure("gradients", "gradient, first word / last word", "scientific"),
    ),
    predictions=(
        Claim(
            "with one vector a recurrent model copies long sequences worse than with attention",
            lambda r: r.is_more("long", {"model": "with attention"}, {"model": "one vector"}, by=0.1),
        ),
        Claim(
            "without attention the gradient that reaches the first of 32 words is less than a hundredth of that which "
            "reaches the last",
            lambda r: r.is_below("gradient", {"model": "one vector"}, 0.01),
        ),
        Claim(
            "the transformer copies sequences of length 16 at least as well as the recurrent model with attention, to "
            "within 5 points",
            lambda r: r.is_more("long", {"model": "transformer"}, {"model": "with attention"}, by=-0.05),
        ),
    ),
    wording={
        "model": {
            "one vector": "with one vector", "with attention": "with attention", "transformer": "for the transformer",
        }
    },
    panels=(
        Lines("by_length", points=LENGTHS, x_title="source length"),
        Lines("gradients", points=GRADIENT_LENGTHS, x_title="source length", log_x=True, log=True),
        Lines("quarters", points=(1, 2, 3, 4), x_title="quarter of pairs, by source length"),
    ),
    would_change=(
        "A bidirectional encoder: in a first trial with one, before the study took its present form, the gradient "
        "of the model with one vector did not vanish (ratio near 2), because the encoder's backward half ends at "
        "the first word. Wider vectors: one of width 64 holds few symbols, one of width 1,000 (Sutskever 2014) "
        "many. Time a token depends on the machine: recurrent networks gain less from a GPU."
    ),
    budget={"steps": 500, "pair_steps": 200},
    quick={"steps": 300, "pair_steps": 50},
)  # fmt: skip
