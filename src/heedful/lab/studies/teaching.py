"""T1: what does teacher forcing do, and what happens without the look-ahead mask?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from heedful.data.pair_dataset import PairBatch
from heedful.lab.fitting import fit
from heedful.lab.model_checks import check_model
from heedful.lab.plotting import Dots, Lines
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.lab.toy_tasks import ReorderTask
from heedful.objectives.seq2seq_loss import Seq2SeqLoss
from heedful.text.special_tokens import START

FORCED, FREE, CHEATING = "teacher forcing", "own tokens", "no look-ahead mask"


@torch.no_grad()
def write(model: Any, batch: PairBatch) -> Tensor:
    """Greedy search without stopping: as many tokens as the labels have; each pass reads all that was written."""
    tokens = torch.full_like(batch.labels[:, :1], START)
    for _ in range(batch.labels.shape[1]):
        following = model(batch.source, tokens, batch.source_lengths)[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, following], 1)
    return tokens[:, 1:]


@dataclass(frozen=True)
class OwnTokensLoss(Seq2SeqLoss):
    """−Σ_t log P(y_t | ŷ_1 … ŷ_{t−1}, source): the decoder reads what it wrote itself, not the target        T1"""

    def loss(self, model: Any, batch: PairBatch) -> Tensor:
        written = write(model, batch)
        read = torch.cat([batch.target[:, :1], written[:, :-1]], 1)
        return super().loss(model, replace(batch, target=read))


@dataclass(frozen=True)
class OwnTokensTask(ReorderTask):
    """The same task, trained on the model's own tokens."""

    @property
    def objective(self) -> Seq2SeqLoss:  # type: ignore[override]
        return OwnTokensLoss()


def measure(trial: Trial) -> dict[str, Measured]:
    kind = OwnTokensTask if trial["training"] == FREE else ReorderTask
    task = kind("reverse", shortest=4, longest=6)
    settings = {"decoder_causal": trial["training"] != CHEATING}
    fitted = fit(task, trial, steps=trial.budget["steps"], model=settings)
    batch = task.test_batch(rows=64)
    leaks = any(check.name == "look-ahead" and (check.difference or 0) > 1e-3 for check in check_model(fitted.model))
    every = max(1, trial.budget["steps"] // 20)
    return {
        "loss": fitted.final_loss(),
        "written": float((write(fitted.model, batch) == batch.labels).all(1).float().mean()),
        "milliseconds": 1e3 * fitted.seconds / trial.budget["steps"],
        "leak": float(leaks),
        "losses": [sum(fitted.losses[i : i + every]) / every for i in range(0, 20 * every, every)],
    }


STUDY = Study(
    name="teaching",
    question="What do teacher forcing and the look-ahead mask do?",
    concept="T1",
    setup=(
        "An encoder-decoder (one block each) learns to reverse random symbols of length 4 to 6, in three ways: the "
        "decoder reads the shifted target (teacher forcing); it reads the tokens that it wrote itself, which takes one "
        "pass a token; it reads the shifted target without a look-ahead mask, so that every position sees its label. "
        "Training loss of the last 20 steps, and what greedy search writes: exact match at length 6. Leak: whether "
        "`heedful lab check` finds that predictions depend on later tokens."
    ),
    variants=grid(training=(FORCED, FREE, CHEATING)),
    measure=measure,
    measures=(
        Measure("loss", "training loss (nats)", digits=3, in_words="the training loss in nats"),
        Measure("written", "written correctly", "percent", in_words="the share of sequences written without an error"),
        Measure("milliseconds", "ms a step", digits=1, in_words="the time of a step in milliseconds", timed=True),
        Measure("leak", "leak found", "percent"),
    ),
    curves=(Measure("losses", "training loss (nats)", digits=3),),
    predictions=(
        Claim(
            "without the look-ahead mask the training loss is lower than with teacher forcing, while less than half of "
            "what the model writes is right",
            lambda r: r.is_more("loss", {"training": FORCED}, {"training": CHEATING})
            & r.is_below("written", {"training": CHEATING}, 0.5),
        ),
        Claim(
            "training on its own tokens takes at least twice as long a step as teacher forcing",
            lambda r: r.is_more(
                "milliseconds", {"training": FREE}, {"training": FORCED},
                by=r.estimate("milliseconds", {"training": FORCED}).mean,
            ),
        ),
        Claim(
            "with the same number of steps a model that is trained on its own tokens writes worse than one trained "
            "with teacher forcing",
            lambda r: r.is_more("written", {"training": FORCED}, {"training": FREE}),
        ),
    ),
    wording={
        "training": {
            FORCED: "with teacher forcing", FREE: "on its own tokens", CHEATING: "without the look-ahead mask",
        }
    },
    panels=(Dots("written"), Dots("milliseconds"), Lines("losses", x_title="twentieth of the training")),
    would_change=(
        "Tasks in which an early error makes the rest of the target meaningless or long: there, learning to go on "
        "after one's own errors (scheduled sampling) may pay. In this task every token can be found from the "
        "source."
    ),
    budget={"steps": 800},
    quick={"steps": 200},
)  # fmt: skip
