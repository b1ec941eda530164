"""Gradient × input and integrated gradients, of an output's log-probability with respect to word vectors.

The input x is the embeddings of the words' tokens before positions are added; special tokens keep theirs. The score of
a token is the sum over its vector, that of a word the sum over its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.data.batching import map_length_buckets
from heedful.inspection.attribution.explained_output import (
    BATCH_TOKENS,
    ExplainedOutput,
    ExplainSource,
    Scores,
    log_probabilities,
)
from heedful.inspection.text_pass import run_passes
from heedful.layers.taps import TapSite, edit

STEPS = 32
"""Points of the path at which integrated gradients evaluate the gradient."""


@dataclass(frozen=True)
class _PathPoint:
    """An output with its words' vectors at x′ + α (x − x′), and the weight of its gradient in the sum."""

    output: ExplainedOutput
    alpha: float
    weight: float = 1.0


def gradient_times_input(source: ExplainSource, outputs: Sequence[ExplainedOutput]) -> list[Scores]:
    """a_j = Σ_d x_jd · ∂ log p / ∂x_jd        Shrikumar 2016"""
    return _gradient_products(source, [_PathPoint(output, 1.0) for output in outputs], blank=False)


def integrated_gradients(source: ExplainSource, outputs: Sequence[ExplainedOutput], steps: int = STEPS) -> list[Scores]:
    """a_j = Σ_d (x_jd − x′_jd) ∫₀¹ ∂ log p(x′ + α (x − x′)) / ∂x_jd dα        Sundararajan 2017, eq. 1

    By Gauss–Legendre quadrature. The baseline x′ has the vector of a blank token in the place of every word. A zero
    vector is unsuitable: a first LayerNorm undoes any scale, so only the start of the path would change anything.
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    path = [
        _PathPoint(output, float(1 + node) / 2, float(weight) / 2)
        for output in outputs
        for node, weight in zip(nodes, weights, strict=True)
    ]
    products = _gradient_products(source, path, blank=True)
    return [np.sum(products[start : start + steps], axis=0) for start in range(0, len(products), steps)]


@torch.inference_mode()
def completeness_gaps(
    source: ExplainSource, outputs: Sequence[ExplainedOutput], attributions: Sequence[Scores]
) -> list[float]:
    """|Σ_j a_j − (log p(x) − log p(x′))|, which is 0 for an exact integral        Sundararajan 2017, proposition 1"""
    ends = [
        _scores_and_vectors(source, [_PathPoint(output, alpha) for output in outputs], blank=True)[0].tolist()
        for alpha in (1.0, 0.0)
    ]
    return [abs(float(rows.sum()) - (full - blank)) for rows, full, blank in zip(attributions, *ends, strict=True)]


def _gradient_products(source: ExplainSource, path: Sequence[_PathPoint], *, blank: bool) -> list[Scores]:
    """w (x − x′) · ∇ log p at each point, for each word; all outputs and points in batches."""

    def run(indices: list[int]) -> list[Scores]:
        points = [path[index] for index in indices]
        with torch.enable_grad(), _differentiable(source.model):
            sums, (difference, vectors) = _scores_and_vectors(source, points, blank=blank)
            (gradient,) = torch.autograd.grad(sums.sum(), vectors)
        tokens = (difference * gradient).sum(-1).double().cpu().numpy()
        shares = [point.output.word_shares for point in points]
        return [p.weight * (row[: len(share)] @ share) for p, row, share in zip(points, tokens, shares, strict=True)]

    passes = [point.output.text_pass for point in path]
    sizes = [[len(text_pass.inputs) for text_pass in passes], [len(text_pass.output_row) for text_pass in passes]]
    return map_length_buckets(run, sizes, BATCH_TOKENS)


def _scores_and_vectors(
    source: ExplainSource, points: Sequence[_PathPoint], *, blank: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """log p of each point's output, x − x′ of its input, and the vectors at that point; x′ is 0 unless `blank`."""
    seen: list[tuple[Tensor, Tensor]] = []
    passes = [point.output.text_pass for point in points]
    is_word, alpha = _path_factors(points)

    def move(value: Tensor, site: TapSite) -> Tensor:
        inputs = value.detach()
        other = source.model.table.weight[source.blank_token].detach() if blank else torch.zeros_like(inputs[0, 0])
        difference = (inputs - other) * is_word.to(inputs)
        vectors = inputs - (1 - alpha.to(inputs)) * difference
        seen.append((difference, vectors.requires_grad_() if torch.is_grad_enabled() else vectors))
        return seen[-1][1]

    tap = "embedding.tokens" if passes[0].target is None else "source.tokens"
    with edit(source.model, {tap: move}):
        logits = run_passes(source.model, passes)
    sums = [log_probabilities(source, *pair).sum() for pair in zip(passes, logits, strict=True)]
    return torch.stack(sums), seen[0]


def _path_factors(points: Sequence[_PathPoint]) -> tuple[Tensor, Tensor]:
    """Masks of a padded batch for the tokens of words that an output depends on, and each row's α."""
    shares = [point.output.word_shares for point in points]
    is_word = torch.zeros(len(points), max(map(len, shares)), 1)
    for row, share in zip(is_word, shares, strict=True):
        row[: len(share), 0] = torch.from_numpy(share.any(1))
    return is_word, torch.tensor([point.alpha for point in points])[:, None, None]


@contextmanager
def _differentiable(model: Any) -> Iterator[None]:
    """Disable cuDNN for recurrent networks, which it differentiates in training mode only."""
    if not model.config.family.startswith("recurrent") or model.device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=False):
        yield
