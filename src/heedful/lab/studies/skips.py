"""Q3: what is the skip-connection for? Depth with and without it, with the norm before or after."""

from __future__ import annotations

from heedful.lab.fitting import fit, new_model
from heedful.lab.model_measures import first_batch, gradient_norms, token_spread
from heedful.lab.plotting import Lines
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.lab.study_results import Where
from heedful.lab.toy_tasks import CharacterTask, running_text

DEEP: Where = {"depth": 24, "norm": "pre"}


def measure(trial: Trial) -> dict[str, Measured]:
    task = CharacterTask(context=32, rows=8)
    model = {
        "width": 32, "feed_forward": 64, "layers": trial.number("depth"), "norm_order": trial.text("norm"),
        "skip": bool(trial["skip"]),
    }  # fmt: skip
    fresh = new_model(task, **model).to(trial.device)
    batch = first_batch(task, trial.seed, trial.device)
    norms, spreads = gradient_norms(fresh, task, batch), token_spread(fresh, batch)
    fitted = fit(task, trial, steps=trial.budget["steps"], model=model, learning_rate=2e-3)
    return {
        "loss": task.loss(fitted.model),
        "gradient_ratio": norms[0] / max(norms[-1], 1e-30),
        "spread": spreads[-1],
        "gradients": norms,
        "spreads": spreads,
    }


STUDY = Study(
    name="skips",
    question="What is the role of the skip-connection?",
    concept="Q3",
    setup=lambda: (
        "A decoder-only transformer (width 32, two heads, rotary positions) that predicts the next character of "
        f"{running_text()[1]}; skip-connections of all blocks on or off, norm before or after the sub-layer. Gradients "
        "and token states are those of the fresh model on one batch. Spread: |X − 1x̄ᵀ| / |X|, 0 if all tokens of a "
        "text have one state. The same learning rate for all variants."
    ),
    variants=grid(depth=(2, 8, 24), skip=(True, False), norm=("pre", "post")),
    measure=measure,
    measures=(
        Measure("loss", "loss after training (nats)", in_words="the loss in nats after training"),
        Measure("gradient_ratio", "gradient norm, first block / last"),
        Measure("spread", "spread of tokens, last block", digits=3, in_words="the spread of the tokens"),
    ),
    curves=(
        Measure("gradients", "gradient norm by block, 24 blocks", "scientific"),
        Measure("spreads", "spread of tokens by block, 24 blocks"),
    ),
    predictions=(
        Claim(
            "with skip-connections 24 blocks learn about as well as 2 (pre-norm)",
            lambda results: results.is_close(
                "loss", {**DEEP, "skip": True}, {**DEEP, "skip": True, "depth": 2}, within=0.2
            ),
        ),
        Claim(
            "without them 24 blocks learn much less than with them (pre-norm)",
            lambda results: results.is_more("loss", {**DEEP, "skip": False}, {**DEEP, "skip": True}, by=0.3),
        ),
        Claim(
            "without them the tokens of a text become alike, with a spread below a tenth after 24 blocks (pre-norm)",
            lambda results: results.is_below("spread", {**DEEP, "skip": False}, 0.1),
        ),
    ),
    wording={
        "depth": "with {} blocks",
        "skip": {True: "with skip-connections", False: "without skip-connections"},
        "norm": {"pre": "pre-norm", "post": "post-norm"},
    },
    panels=(
        Lines("loss", x="depth", log_x=True, x_title="blocks"),
        Lines("gradients", where=(("depth", 24),), x_title="block", log=True),
        Lines("spreads", where=(("depth", 24),), x_title="block"),
    ),
    would_change=(
        "An initialization or a learning rate, chosen for the variant without skip-connections, with which 24 blocks "
        "learn as fast; here both are those of the usual transformer. Longer training could also close a gap."
    ),
    budget={"steps": 250},
    quick={"steps": 60},
)
