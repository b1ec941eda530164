"""Q2: position encodings and causal masking both break permutation-equivariance: are they interchangeable?"""

from __future__ import annotations

from typing import Any

from heedful.lab.fitting import fit, new_model
from heedful.lab.plotting import Dots
from heedful.lab.position_checks import equivariance_error
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.lab.study_results import Where
from heedful.lab.toy_tasks import CharacterTask, DateTask, ReorderTask, WhichFirstTask, running_text

CAUSAL_ONLY: Where = {"positions": "none", "attention": "causal"}
NOTHING: Where = {"positions": "none", "attention": "bidirectional"}
ROTARY: Where = {"positions": "rotary", "attention": "bidirectional"}


def measure(trial: Trial) -> dict[str, Measured]:
    causal, steps = trial["attention"] == "causal", trial.budget["steps"]
    settings: dict[str, Any] = {"positions": trial.text("positions"), "layers": 2, "encoder_causal": causal}
    copy, backwards, first, dates = ReorderTask("copy"), ReorderTask("reverse"), WhichFirstTask(), DateTask(("en",))
    text = CharacterTask("next" if causal else "masked", context=48)
    pairs = {**settings, "decoder_layers": 1}
    of_text = {name: value for name, value in settings.items() if name != "encoder_causal" or not causal}
    return {
        "copy": copy.exact_match(fit(copy, trial, steps=steps, model=pairs).model),
        "reverse": backwards.exact_match(fit(backwards, trial, steps=steps, model=pairs).model),
        "first": first.accuracy(fit(first, trial, steps=steps, model=settings).model),
        "dates": dates.token_accuracy(fit(dates, trial, steps=trial.budget["text_steps"], model=pairs).model),
        "text": text.loss(fit(text, trial, steps=trial.budget["text_steps"], model=of_text).model),
        "equivariance": equivariance_error(new_model(first, **settings)),
    }  # fmt: skip


STUDY = Study(
    name="order",
    question="Are position encodings and causal masking interchangeable?",
    concept="Q2",
    setup=lambda: (
        "Every variant is trained on five tasks. Copy and reverse: an encoder-decoder on random symbols of length 4 "
        "to 8, exact match at length 8; English dates to ISO 8601, tokens right; which of two marked symbols came "
        "first: an encoder with mean pooling; text: the next character (causal, a decoder) or masked characters "
        f"(bidirectional, an encoder) of {running_text()[1]}, losses that are comparable only within a kind. Causal or "
        "not is the encoder's mask; decoders are always causal. Equivariance: the largest |f(PX) − P f(X)| of a fresh "
        "encoder, relative to its states, for a permutation P; 0 up to rounding if their order changes nothing."
    ),
    variants=grid(
        positions=("none", "sinusoidal", "learned", "rotary", "alibi"), attention=("bidirectional", "causal")
    ),
    measure=measure,
    measures=(
        Measure("copy", "copy", "percent", in_words="the share of sequences that are copied without an error"),
        Measure("reverse", "reverse", "percent", in_words="the share of sequences that are reversed without an error"),
        Measure("first", "which first", "percent", in_words="the share of right answers to which symbol came first"),
        Measure("dates", "dates", "percent"),
        Measure("text", "text (nats)"),
        Measure("equivariance", "equivariance error", "scientific", 0),
    ),
    predictions=(
        Claim(
            "without positions and without a causal mask a model cannot copy, nor say which of two symbols came first",
            lambda r: r.is_below("copy", NOTHING, 0.1) & r.is_below("first", NOTHING, 0.6),
        ),
        Claim(
            "a causal mask alone suffices to say which of two symbols came first",
            lambda r: r.is_above("first", CAUSAL_ONLY, 0.9),
        ),
        Claim(
            "a causal mask alone is no substitute for positions where the exact place matters: it reverses worse than "
            "rotary positions without a mask",
            lambda r: r.is_more("reverse", ROTARY, CAUSAL_ONLY, by=0.1),
        ),
    ),
    wording={
        "positions": {
            "none": "without positions", "sinusoidal": "with sinusoidal positions",
            "learned": "with learned positions", "rotary": "with rotary positions", "alibi": "with ALiBi",
        },
        "attention": {"bidirectional": "without a mask", "causal": "with a causal mask"},
    },
    panels=(Dots("copy"), Dots("reverse"), Dots("first")),
    would_change=(
        "Deeper encoders or longer training with which the causal mask alone copies and reverses as well as position "
        "encodings do; here sequences are short and encoders have two blocks."
    ),
    budget={"steps": 400, "text_steps": 200},
    quick={"steps": 200, "text_steps": 40},
)  # fmt: skip
