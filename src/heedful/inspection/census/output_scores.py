"""The loss and the number of correct outputs of each text, from the logits of its pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.inspection.text_pass import TextPass, output_states
from heedful.shapes import Float

Values = npt.NDArray[np.float64]
CACHED_ROWS = 128


class OutputScores(NamedTuple):
    """Sums over the outputs of each text."""

    loss: Values
    """−Σ log P(label), in nats."""
    correct: Values
    """Outputs whose most probable label is the right one."""


def output_counts(passes: Sequence[TextPass], classes: int | None = None) -> Values:
    """The number of outputs of each text. `classes`: the number of classes of a multi-label classifier."""
    return np.array([len(text_pass.outputs) if classes is None else classes for text_pass in passes], float)


def score_outputs(
    passes: Sequence[TextPass], logits: Sequence[Float[Tensor, "outputs labels"]], *, independent: bool = False
) -> OutputScores:
    """Score passes that share a batch. `independent`: each class is a yes/no decision (multi-label)."""
    if independent:
        return _independent_labels(passes, torch.cat(list(logits)).float())
    counts = [len(text_pass.outputs) for text_pass in passes]
    labels = torch.tensor([output.label for text in passes for output in text.outputs], device=logits[0].device)
    if len({row.shape[1] for row in logits}) > 1:  # answer spans: the labels are the tokens of each text
        widest = max(row.shape[1] for row in logits)
        logits = [F.pad(row, (0, widest - row.shape[1]), value=-torch.inf) for row in logits]
    rows = torch.cat(list(logits)).float()
    losses = F.cross_entropy(rows, labels, reduction="none")
    return OutputScores(_sums(losses, counts), _sums(rows.argmax(1) == labels, counts))


def score_next_tokens(
    model: Any, passes: Sequence[TextPass], states: Float[Tensor, "batch tokens width"]
) -> OutputScores:
    """Score passes that predict tokens, from the states that the head reads.

    On a CPU, scoring few tokens at a time keeps their logits in the cache: half the time for a large vocabulary.
    """
    labels = torch.tensor([output.label for text_pass in passes for output in text_pass.outputs], device=states.device)
    size = max(1, len(labels) if states.is_cuda else CACHED_ROWS)
    losses, correct = [], []
    parts = (torch.split(tensor, size) for tensor in (output_states(states, passes), labels))
    for rows, targets in zip(*parts, strict=True):
        logits = model.apply_head("next_token", rows[None])[0].float()
        losses.append(F.cross_entropy(logits, targets, reduction="none"))
        correct.append(logits.argmax(1) == targets)
    counts = [len(text_pass.outputs) for text_pass in passes]
    return OutputScores(_sums(torch.cat(losses), counts), _sums(torch.cat(correct), counts))


def _independent_labels(passes: Sequence[TextPass], logits: Tensor) -> OutputScores:
    labels = torch.zeros_like(logits)
    for row, text_pass in zip(labels, passes, strict=True):
        row[[output.label for output in text_pass.outputs]] = 1
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    counts = [logits.shape[1]] * len(passes)
    return OutputScores(_sums(losses.flatten(), counts), _sums(((logits > 0) == (labels > 0)).flatten(), counts))


def _sums(values: Tensor, counts: Sequence[int]) -> Values:
    """The sum of each text's consecutive values."""
    ends = np.cumsum(np.array(counts))
    total = np.concatenate([[0.0], values.double().cumsum(0).cpu().numpy()])
    sums: Values = total[ends] - total[ends - np.array(counts)]
    return sums
