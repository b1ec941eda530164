"""Choose the heads to prune from a census: the least important first, as many as a limit on the loss allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from heedful.data.batching import length_buckets
from heedful.data.progress import ProgressCallback
from heedful.errors import UsageError
from heedful.inspection.census.census_measurement import (
    TEXT_TOKENS,
    CensusSource,
    census_parts,
    pass_lengths,
    score_pass_states,
)
from heedful.inspection.census.census_result import AblateTo, Census
from heedful.inspection.census.output_scores import output_counts
from heedful.inspection.text_pass import TextPass, pass_states
from heedful.interventions.kinds import Ablate
from heedful.interventions.resolve import resolve


def least_important_heads(census: Census, count: int | None = None, *, without: Sequence[str] = ()) -> list[str]:
    """The heads whose removal costs least, the least important first; every attention keeps its best one.

    `count`: how many; None: all but the best of each attention. `without`: parts whose heads are not considered.
    """
    ranked = [part.part for part in reversed(census.ranked(heads_only=True)) if part.layer is not None]
    order = [part for part in ranked if part not in without and _attention(part) not in without]
    require_prunable(census.model, order, count)
    left = Counter(map(_attention, order))
    removable: list[str] = []
    for part in order:
        if left[_attention(part)] > 1:
            left[_attention(part)] -= 1
            removable.append(part)
    return removable[:count]


def prunable_heads(model: Any, without: Sequence[str] = ()) -> list[str]:
    """The heads of all layers, except those of the parts `without`."""
    parts = [name for name, (part, _) in census_parts(model).items() if part.head is not None]
    return [part for part in parts if part not in without and _attention(part) not in without]


def require_prunable(name: str, heads: Sequence[str], count: int | None) -> None:
    """Raise UsageError if pruning `count` of these heads (None: any) would leave an attention without heads."""
    if not heads:
        raise UsageError(f"{name} has no attention heads to prune")
    attentions = len(set(map(_attention, heads)))
    if count is not None and count > len(heads) - attentions:
        raise UsageError(
            f"{count} heads cannot be pruned: {name} has {len(heads)}, and each of its {attentions} attentions keeps "
            f"one, so prune at most {len(heads) - attentions}"
        )


def heads_within(
    source: CensusSource, passes: Sequence[TextPass], heads: Sequence[str], limit: float, to: AblateTo,
    progress: ProgressCallback,
) -> list[str]:  # fmt: skip
    """The longest prefix of `heads` found whose joint removal raises the loss by at most the share `limit`.

    Bisection over the number of heads: each step measures the loss without all of them together.
    """
    allowed = (1 + limit) * joint_loss(source, passes, (), to)
    fits, too_many = 0, len(heads) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if joint_loss(source, passes, heads[:middle], to) <= allowed:
            fits = middle
        else:
            too_many = middle
        progress(1)
    return list(heads[:fits])


@torch.inference_mode()
def joint_loss(source: CensusSource, passes: Sequence[TextPass], heads: Sequence[str], to: AblateTo) -> float:
    """The loss per output without all of these heads together."""
    edits, total = resolve(source, [Ablate(part, to=to) for part in heads]), 0.0
    for bucket in length_buckets(pass_lengths(passes), TEXT_TOKENS):
        batch = [passes[index] for index in bucket.tolist()]
        with edits.applied(source.model):
            states = pass_states(source.model, batch)
        total += float(score_pass_states(source, batch, states).loss.sum())
    return total / float(output_counts(passes).sum())


def _attention(part: str) -> str:
    return part.partition(".head.")[0]
