"""Q8: what do position encodings do beyond the trained length? Trained on 64 tokens, read by up to 512."""

from __future__ import annotations

from itertools import pairwise

import torch

from heedful.lab.fitting import fit
from heedful.lab.model_measures import loss_by_position
from heedful.lab.plotting import Dots, Lines
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.lab.toy_tasks import TEST_SEED, CharacterTask, running_text
from heedful.objectives.objective import to_device

TRAINED, LONGEST = 64, 512
EDGES = (0, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Where the parts begin and end that the loss by position is averaged over."""


def measure(trial: Trial) -> dict[str, Measured]:
    task = CharacterTask(context=TRAINED, rows=8)
    model = {"positions": trial.text("positions"), "layers": 2, "max_length": LONGEST}
    fitted = fit(task, trial, steps=trial.budget["steps"], model=model)
    held_out = task.batches(TEST_SEED, held_out=True, context=LONGEST)
    plan = [indices for indices in held_out.plan(0) if len(indices) == task.rows][: trial.budget["batches"]]
    batches = [to_device(held_out.batch(0, indices), trial.device) for indices in plan]
    losses = torch.stack([loss_by_position(fitted.model, batch) for batch in batches]).mean(0)
    return {
        "inside": float(losses[32:TRAINED].mean()),
        "just_beyond": float(losses[TRAINED:128].mean()),
        "far_beyond": float(losses[256:].mean()),
        "increase": float(losses[256:].mean() - losses[32:TRAINED].mean()),
        "by_position": [float(losses[a:b].mean()) for a, b in pairwise(EDGES)],
    }


STUDY = Study(
    name="beyond",
    question="What do position encodings do beyond the trained length?",
    concept="Q8",
    setup=lambda: (
        "A decoder-only transformer (two blocks, width 64, two heads) that predicts the next character of "
        f"{running_text()[1]}, trained on windows of {TRAINED} characters, then given held-out windows of {LONGEST}. "
        "The learned table has 512 rows, of which training reaches 64; the rest keep their initial values (P4). "
        "Loss at positions 33–64 (inside), 65–128, and 257–512 (far beyond)."
    ),
    variants=grid(positions=("none", "sinusoidal", "learned", "rotary", "alibi")),
    measure=measure,
    measures=(
        Measure("inside", "loss at 33–64"),
        Measure("just_beyond", "loss at 65–128"),
        Measure("far_beyond", "loss at 257–512"),
        Measure(
            "increase", "loss at 257–512 minus loss at 33–64",
            in_words="the growth of the loss in nats from positions 33–64 to 257–512",
        ),
    ),
    curves=(Measure("by_position", "loss by position (nats)"),),
    predictions=(
        Claim(
            "ALiBi loses less than 0.05 nats a character far beyond the trained length",
            lambda results: results.is_below("increase", {"positions": "alibi"}, 0.05),
        ),
        Claim(
            "a learned table, whose later rows were never trained, loses more than 0.3 nats there",
            lambda results: results.is_above("increase", {"positions": "learned"}, 0.3),
        ),
        Claim(
            "rotary positions lose more there than ALiBi",
            lambda results: results.is_more("increase", {"positions": "rotary"}, {"positions": "alibi"}),
        ),
    ),
    wording={
        "positions": {
            "none": "without positions", "sinusoidal": "with sinusoidal positions",
            "learned": "with a learned table", "rotary": "with rotary positions", "alibi": "with ALiBi",
        }
    },
    panels=(
        Lines(
            "by_position",
            log_x=True,
            x_title="position (dashed: trained to here)",
            mark=TRAINED,
            points=tuple((a + b) / 2 for a, b in pairwise(EDGES)),
        ),
        Dots("increase"),
    ),
    would_change=(
        "Larger models that use distant characters more: these read little beyond the last few dozen, which makes it "
        "easy to ignore what is far away. Interpolated or rescaled positions are not tried here."
    ),
    budget={"steps": 600, "batches": 8},
    quick={"steps": 200, "batches": 4},
)  # fmt: skip
