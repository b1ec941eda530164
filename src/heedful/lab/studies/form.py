"""Q1: what is special about the form of self-attention? Other scores, no softmax, and a net with a weight a pair."""

from __future__ import annotations

from typing import Any

from heedful.lab.fitting import equal_size, fit, new_model
from heedful.lab.plotting import Dots
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.lab.toy_tasks import CharacterTask, ReorderTask, running_text
from heedful.models.build import count_parameters

FORMS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "no softmax": {"softmax": False},
    "unscaled dot": {"score": "dot"},
    "bilinear": {"score": "bilinear"},
    "additive": {"score": "additive"},
    "uniform": {"score": "uniform"},
    "position only": {"score": "position"},
    "distance only": {"score": "distance"},
    "net over pairs": {"score": "position", "softmax": False, "head_activation": "relu"},
}
"""The settings of each form. The last is max(0, Σ_j S_ij v_j) W: a feed-forward net with a weight for each pair."""
BASE: dict[str, Any] = {"positions": "sinusoidal", "layers": 2, "max_length": 64}


def measure(trial: Trial) -> dict[str, Measured]:
    form = FORMS[trial.text("form")]
    order, sort, text = ReorderTask("reverse"), ReorderTask("sort"), CharacterTask(context=48)
    pairs = {**BASE, "decoder_layers": 1}
    sizes = equal_size(order, {**pairs, **form}, pairs)
    fitted = fit(order, trial, steps=trial.budget["steps"], model=sizes)
    sorting = fit(sort, trial, steps=trial.budget["steps"], model=sizes)
    writing = fit(text, trial, steps=trial.budget["text_steps"], model=equal_size(text, {**BASE, **form}, BASE))
    return {
        "reverse": order.exact_match(fitted.model),
        "sort": sort.exact_match(sorting.model),
        "text": text.loss(writing.model),
        "parameters": float(count_parameters(new_model(order, **sizes)).total),
    }


STUDY = Study(
    name="form",
    question="What is special about the functional form of self-attention?",
    concept="Q1",
    setup=lambda: (
        "All attentions of a transformer in one form: softmax of scaled dot products; the same without the softmax "
        "(linear attention); other scores; weights that do not depend on the tokens (uniform, a learned number for "
        "each pair of positions, for each distance); and a feed-forward net over the tokens with a weight for each "
        "pair of positions. The width of the position-wise feed-forward network is chosen so that all forms have "
        "nearly the same number of parameters. Reverse and sort: random symbols, exact match at length 8; text: the "
        f"next character of {running_text()[1]}."
    ),
    variants=grid(form=tuple(FORMS)),
    measure=measure,
    measures=(
        Measure("reverse", "reverse", "percent", in_words="the share of sequences that are reversed without an error"),
        Measure("sort", "sort", "percent", in_words="the share of sequences that are sorted without an error"),
        Measure("text", "text (nats)", digits=3, in_words="the loss in nats on text"),
        Measure("parameters", "parameters", digits=0),
    ),
    predictions=(
        Claim(
            "attention without the softmax reverses worse than with it",
            lambda r: r.is_more("reverse", {"form": "softmax"}, {"form": "no softmax"}, by=0.05),
        ),
        Claim(
            "weights that depend on the positions alone predict text worse than weights that depend on the tokens",
            lambda r: r.is_more("text", {"form": "position only"}, {"form": "softmax"}),
        ),
        Claim(
            "a feed-forward net with a weight for each pair of positions sorts worse than softmax attention",
            lambda r: r.is_more("sort", {"form": "softmax"}, {"form": "net over pairs"}, by=0.05),
        ),
    ),
    wording={
        "form": {
            "softmax": "with the softmax", "no softmax": "without the softmax",
            "unscaled dot": "with unscaled dot products", "bilinear": "with bilinear scores",
            "additive": "with additive scores", "uniform": "with uniform weights",
            "position only": "with weights by position", "distance only": "with weights by distance",
            "net over pairs": "for the net over pairs",
        }
    },
    panels=(Dots("reverse"), Dots("sort"), Dots("text")),
    would_change=(
        "A learning rate or an initialization chosen for each form: here all have those of the usual transformer. "
        "Linear attention with a feature map or a norm of its own is another form, not tried here."
    ),
    budget={"steps": 400, "text_steps": 200},
    quick={"steps": 250, "text_steps": 50},
)  # fmt: skip
