"""Which source tokens made this target token: read off cross-attention (A9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.layers.taps import record
from heedful.shapes import Float
from heedful.text.special import END, START


class Head(NamedTuple):
    """A place to look: a tap's name and a head in it."""

    tap: str
    head: int


@torch.inference_mode()
def cross_weights(
    model: Any, source: Sequence[int], target: Sequence[int]
) -> dict[str, Float[Tensor, "heads target source"]]:
    """Every layer's cross-attention over one pair: a row for each target token, END last.

    The row that *produced* a token is the one before it is read, so rows are shifted by teacher forcing itself.
    """
    device = model.table.weight.device
    with record(model, "*cross.weights") as seen:
        model(torch.tensor([[*source, END]], device=device), torch.tensor([[START, *target]], device=device))
    return {name: weights[0] for name, weights in seen.items()}


def best_head(scores: dict[Head, float]) -> tuple[Head, float]:
    """The head that scored highest."""
    head = max(scores, key=lambda place: scores[place])
    return head, scores[head]


def weight_on_spans(
    model: Any,
    pairs: Sequence[tuple[Sequence[int], Sequence[int], Sequence[tuple[range, range]]]],
) -> dict[Head, float]:
    """For each head, the mean weight that target positions put on the source positions they came from.

    `pairs` holds source ids, target ids and, as ranges of positions, which target span comes from which source span.
    """
    totals: dict[Head, float] = {}
    rows = sum(len(target_span) for _, _, links in pairs for target_span, _ in links)
    for source, target, links in pairs:
        for name, weights in cross_weights(model, source, target).items():
            for target_span, source_span in links:
                found = weights[:, list(target_span)][:, :, list(source_span)].sum((1, 2))
                for head, weight in enumerate(found.tolist()):
                    totals[Head(name, head)] = totals.get(Head(name, head), 0.0) + weight / rows
    return totals
