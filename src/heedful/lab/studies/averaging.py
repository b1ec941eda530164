"""Q5: what does the feed-forward network add to repeated averaging? Blocks with and without it."""

from __future__ import annotations

from typing import Any

from heedful.lab.fitting import fit, new_model
from heedful.lab.model_measures import first_batch, token_spread
from heedful.lab.plotting import Lines
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.lab.study_results import Where
from heedful.lab.toy_tasks import CharacterTask, ReorderTask, running_text
from heedful.models.build import count_parameters

WITH: Where = {"feed_forward": "with", "layers": 4}

BLOCKS: dict[str, dict[str, Any]] = {
    "with": {},
    "linear": {"activation": "identity"},
    "without": {"feed_forward": 0},
    "wider heads instead": {"feed_forward": 0, "head_width": 64},
}
"""The settings of each variant. Heads twice as wide have as many weights as the feed-forward network had."""


def measure(trial: Trial) -> dict[str, Measured]:
    text, sort = CharacterTask(context=48), ReorderTask("sort")
    settings = {**BLOCKS[trial.text("feed_forward")], "layers": trial.number("layers")}
    fresh = new_model(text, **settings, norm_order="post").to(trial.device)
    written = fit(text, trial, steps=trial.budget["text_steps"], model=settings)
    sorting = fit(sort, trial, steps=trial.budget["steps"], model={**settings, "decoder_layers": 1})
    batch = first_batch(text, trial.seed, trial.device)
    return {
        "text": text.loss(written.model),
        "sort": sort.exact_match(sorting.model),
        "spread": token_spread(written.model, batch)[-1],
        "fresh_spread": token_spread(fresh, batch)[-1],
        "parameters": float(count_parameters(written.model).total),
    }


STUDY = Study(
    name="averaging",
    question="What does the feed-forward network add to repeated averaging?",
    concept="Q5",
    setup=lambda: (
        "Blocks of attention (width 64, two heads, pre-norm, rotary positions) with the usual feed-forward "
        "network, with a linear one (no ReLU), without any, and without any but with heads of twice the width, which "
        f"have as many parameters. They predict the next character of {running_text()[1]}, and sort random symbols "
        "(exact match at length 8). Spread: how different the tokens of a text are after the last block, "
        "|X − 1x̄ᵀ| / |X|, in the trained model, and in a fresh one with post-norm."
    ),
    variants=grid(feed_forward=tuple(BLOCKS), layers=(1, 4)),
    measure=measure,
    measures=(
        Measure("text", "text (nats)", digits=3, in_words="the loss in nats on text"),
        Measure("sort", "sort", "percent", in_words="the share of sequences that are sorted without an error"),
        Measure("spread", "spread, trained", in_words="the spread of the tokens in the trained model"),
        Measure("fresh_spread", "spread, fresh post-norm"),
        Measure("parameters", "parameters, text", digits=0),
    ),
    predictions=(
        Claim(
            "four blocks without feed-forward networks predict text worse than four with them, also with as many "
            "parameters",
            lambda r: (
                r.is_more("text", {"feed_forward": "without", "layers": 4}, WITH)
                & r.is_more("text", {"feed_forward": "wider heads instead", "layers": 4}, WITH)
            ),
        ),
        Claim(
            "a linear network in the place of the feed-forward network is no better than none, to within 0.03 nats",
            lambda r: r.is_close(
                "text",
                {"feed_forward": "linear", "layers": 4},
                {"feed_forward": "without", "layers": 4},
                within=0.03,
            ),
        ),
        Claim(
            "without feed-forward networks tokens become more alike: the trained spread after four blocks is smaller",
            lambda r: r.is_more(
                "spread", {"feed_forward": "with", "layers": 4}, {"feed_forward": "without", "layers": 4}
            ),
        ),
    ),
    wording={
        "feed_forward": {
            "with": "with the usual feed-forward network", "linear": "with a linear network",
            "without": "without a feed-forward network", "wider heads instead": "with wider heads instead",
        },
        "layers": {1: "with one block", 4: "with four blocks"},
    },
    panels=tuple(Lines(key, x="layers", log_x=True, x_title="blocks") for key in ("text", "sort", "spread")),
    would_change=(
        "Longer training, or texts in which a token means more than a character does. Skip-connections carry every "
        "token past the averaging; the study of skips shows blocks without them."
    ),
    budget={"steps": 300, "text_steps": 300},
    quick={"steps": 200, "text_steps": 100},
)  # fmt: skip
