"""Q9: do feed-forward networks contain order? A window of vectors concatenated, summed, or with positions added."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heedful.lab.plotting import Dots
from heedful.lab.study import Claim, Measure, Measured, Study, Trial, grid
from heedful.lab.toy_tasks import TEST_SEED, CharacterTask, WhichFirstTask, running_text
from heedful.layers.feed_forward import FeedForward
from heedful.layers.positions import SinusoidalPositions

WINDOW, WIDTH, HIDDEN = 8, 32, 256
CONCATENATED, SUMMED, POSITIONS, EACH = (
    "concatenated",
    "summed",
    "positions added, summed",
    "positions added, net, summed",
)


class WindowNet(nn.Module):
    """A feed-forward network over the vectors of a window, combined in one of four ways        Q9

    Σ_i (x_i + p_i) = Σ_i x_i + const: positions that are added before a plain sum say nothing about the order. With a
    network between them, Σ_i f(x_i + p_i), they do.
    """

    def __init__(self, combine: str, vocabulary: int, outputs: int) -> None:
        super().__init__()
        self.combine = combine
        self.table, self.positions = nn.Embedding(vocabulary, WIDTH), SinusoidalPositions(WIDTH)
        self.each = FeedForward(WIDTH, HIDDEN // 2) if combine == EACH else nn.Identity()
        self.hidden = nn.Linear(WIDTH * (WINDOW if combine == CONCATENATED else 1), HIDDEN)
        self.output = nn.Linear(HIDDEN, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        if self.combine in (POSITIONS, EACH):
            x = x + self.positions(torch.arange(WINDOW, device=tokens.device)[None])
        x = self.each(x)
        x = x.flatten(1) if self.combine == CONCATENATED else x.sum(1)
        result: Tensor = self.output(F.relu(self.hidden(x)))
        return result


def first_batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows with two marked symbols, and which of them is first."""
    task, number = WhichFirstTask(shortest=WINDOW, longest=WINDOW), 0
    while True:
        batch = task.draw(np.random.default_rng([seed, number]), 128)
        number += 1
        yield batch.tokens, batch.labels


def text_batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of text, and the character after each; held out with the seed of test data."""
    task = CharacterTask(context=WINDOW, rows=128)
    batches, epoch = task.batches(seed, held_out=seed == TEST_SEED), 0
    while True:
        for indices in batches.plan(epoch):
            batch = batches.batch(epoch, indices)
            if batch.tokens.shape[1] == WINDOW:
                yield batch.tokens, batch.labels[:, -1]
        epoch += 1


def train(model: nn.Module, batches: Callable[[int], Iterator[tuple[Tensor, Tensor]]], trial: Trial) -> Tensor:
    """Train on windows; return logits and labels of held-out ones as (accuracy, loss)."""
    model.to(trial.device)
    optimizer, stream = torch.optim.Adam(model.parameters(), lr=3e-3), batches(trial.seed)
    for _ in range(trial.budget["steps"]):
        tokens, labels = (tensor.to(trial.device) for tensor in next(stream))
        loss = F.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    held_out = batches(TEST_SEED)
    with torch.inference_mode():
        pairs = [tuple(tensor.to(trial.device) for tensor in next(held_out)) for _ in range(8)]
        logits, labels = torch.cat([model(tokens) for tokens, _ in pairs]), torch.cat([label for _, label in pairs])
        return torch.stack([(logits.argmax(1) == labels).float().mean(), F.cross_entropy(logits, labels)])


def measure(trial: Trial) -> dict[str, Measured]:
    vocabulary = CharacterTask().model_settings["vocabulary"]
    first = train(WindowNet(trial.text("vectors"), 16, 2), first_batches, trial)
    text = train(WindowNet(trial.text("vectors"), vocabulary, vocabulary), text_batches, trial)
    return {"first": float(first[0]), "text": float(text[1])}


STUDY = Study(
    name="windows",
    question="Do feed-forward networks contain order?",
    concept="Q9",
    setup=lambda: (
        f"A feed-forward network with {HIDDEN} hidden ReLUs reads a window of {WINDOW} vectors: side by side, their "
        "sum, the sum after sinusoidal positions were added to each, or the sum of a small network of each with "
        "its position. It learns which of two marked symbols comes first (accuracy; guessing gives 50%), and to "
        f"predict the character after {WINDOW} characters of {running_text()[1]}."
    ),
    variants=grid(vectors=(CONCATENATED, SUMMED, POSITIONS, EACH)),
    measure=measure,
    measures=(
        Measure("first", "which first", "percent", in_words="the share of right answers to which symbol came first"),
        Measure("text", "next character (nats)"),
    ),
    predictions=(
        Claim(
            "a network over concatenated vectors knows which symbol came first",
            lambda r: r.is_above("first", {"vectors": CONCATENATED}, 0.95),
        ),
        Claim(
            "positions that are added before a plain sum do not help, because they add a constant",
            lambda r: r.is_below("first", {"vectors": POSITIONS}, 0.6),
        ),
        Claim(
            "with a small network between the positions and the sum the order is known again",
            lambda r: r.is_above("first", {"vectors": EACH}, 0.9),
        ),
    ),
    wording={
        "vectors": {
            CONCATENATED: "with concatenated vectors", SUMMED: "with summed vectors",
            POSITIONS: "with positions added before the sum", EACH: "with a network before the sum",
        }
    },
    panels=(Dots("first"), Dots("text")),
    would_change=(
        "A window whose length varies: concatenation then has no fixed place for the last word. The text is predicted "
        "from eight characters only, of which the last few matter most."
    ),
    budget={"steps": 2000},
    quick={"steps": 400},
)  # fmt: skip
