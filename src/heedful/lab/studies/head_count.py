"""A5: how many heads are needed, and are the concatenation and the sum of heads the same?"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from heedful.lab.fitting import fit
from heedful.lab.model_measures import first_batch
from heedful.lab.plotting import Lines
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.lab.toy_tasks import DateTask, ReorderTask
from heedful.layers.multi_head_attention import SelfAttention
from heedful.layers.taps import TapSite, edit, record, tap_names

WIDE: dict[str, int] = {"width": 64}
NEEDED = 0.01
"""A head is needed if without it the share of right tokens falls by more than this."""


@torch.inference_mode()
def sum_form_error(model: torch.nn.Module, source: torch.Tensor) -> float:
    """The largest difference between Concat(h_1 … h_H) W_o and Σ_h h_h W_h in the first block, in float64."""
    model.double()
    with record(model, "encoder.0.attention.heads", "encoder.0.attention.output") as recorded:
        model.encode(source)  # type: ignore[operator]
    attention = next(module for module in model.modules() if isinstance(module, SelfAttention))
    summed = attention.contributions(recorded["encoder.0.attention.heads"]).sum(1) + attention.output.bias
    return float((summed - recorded["encoder.0.attention.output"]).abs().max())


def census(model: Any, task: DateTask) -> list[float]:
    """How much the share of right tokens falls when each head of the model is left out, one at a time."""
    batch = task.test_batch()
    before = task.token_accuracy(model, batch)
    falls = []
    for tap in (name for name in tap_names(model) if name.endswith(".heads")):
        for head in range(model.config.heads):
            with edit(model, {tap: partial(without_head, head)}):
                falls.append(before - task.token_accuracy(model, batch))
    return falls


def without_head(head: int, values: torch.Tensor, site: TapSite) -> torch.Tensor:
    """The outputs of all heads with those of one at 0."""
    return values.index_fill(1, torch.tensor([head], device=values.device), 0.0)


def measure(trial: Trial) -> dict[str, Measured]:
    model = {"width": trial.number("width"), "heads": trial.number("heads"), "feed_forward": 2 * trial.number("width")}
    order, dates = ReorderTask("reverse"), DateTask(("en",))
    fitted = fit(order, trial, steps=trial.budget["steps"], model=model)
    translator = fit(dates, trial, steps=trial.budget["date_steps"], model=model)
    falls = census(translator.model, dates)
    return {
        "reverse": order.exact_match(fitted.model),
        "loss": fitted.final_loss(),
        "dates": dates.token_accuracy(translator.model),
        "needed": sum(fall > NEEDED for fall in falls) / len(falls),
        "sum_form": sum_form_error(fitted.model, first_batch(order, trial.seed, trial.device).source),
    }


STUDY = Study(
    name="heads",
    question="How many heads are needed?",
    concept="A5",
    setup=(
        "An encoder-decoder (one block each, rotary positions) with the same number of parameters whatever the number "
        "of heads: H heads of width d/H. It learns to reverse random symbols (exact match at length 8, training loss "
        "at the end) and to translate English dates to ISO 8601 (tokens right). Census: the share of the translator's "
        "heads, of all three attentions, without which alone it gets more than one point fewer tokens right. Sum form: "
        "the largest difference, in the trained model and in float64, between the concatenated heads times W_o and the "
        "sum of each head times its slice of W_o."
    ),
    variants=grid(width=(32, 64), heads=(1, 2, 4, 16)),
    measure=measure,
    measures=(
        Measure("reverse", "reverse", "percent", in_words="the share of sequences that are reversed without an error"),
        Measure("loss", "training loss (nats)", digits=3, in_words="the training loss in nats"),
        Measure("dates", "dates", "percent"),
        Measure("needed", "heads needed", "percent", in_words="the share of heads that are needed"),
        Measure("sum_form", "sum form minus concatenation", "scientific", 0, "the largest difference of the two forms"),
    ),
    predictions=(
        Claim(
            "two heads learn to reverse better than one, and sixteen of width 4 worse than two of width 32",
            lambda r: (
                r.is_more("loss", {**WIDE, "heads": 1}, {**WIDE, "heads": 2})
                & r.is_more("loss", {**WIDE, "heads": 16}, {**WIDE, "heads": 2})
            ),
        ),
        Claim(
            "of sixteen heads an attention a translator of dates needs fewer than half, each left out alone",
            lambda r: r.is_below("needed", {**WIDE, "heads": 16}, 0.5),
        ),
        Claim(
            "the sum of heads equals their concatenation up to rounding",
            lambda r: r.is_below("sum_form", {}, 1e-12),
        ),
    ),
    wording={
        "width": "at width {}",
        "heads": {1: "with one head", 2: "with two heads", 4: "with four heads", 16: "with sixteen heads"},
    },
    panels=(
        Lines("loss", x="heads", log_x=True, log=True),
        Lines("reverse", x="heads", log_x=True),
        Lines("needed", x="heads", log_x=True),
    ),
    would_change=(
        "Tasks that need several things at once from other tokens: reversing needs one. The census leaves out one head "
        "at a time; heads that stand in for each other are needed together. `heedful census --prune` removes many."
    ),
    budget={"steps": 400, "date_steps": 200},
    quick={"steps": 250, "date_steps": 60},
)  # fmt: skip
