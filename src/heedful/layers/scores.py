"""Attention score functions: how well a query matches a key (A2).

Each maps queries (… × n_q × d_q) and keys (… × n_k × d_k) to scores (… × n_q × n_k). Those that read no content,
`uniform` and the position scores, take queries and keys without features (d_k = 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from heedful.errors import UsageError, nearest, require_positive
from heedful.shapes import Float, Int

ContentScoreName = Literal["dot", "scaled_dot", "bilinear", "additive", "uniform"]
ScoreName = Literal["dot", "scaled_dot", "bilinear", "additive", "uniform", "position", "distance"]
POSITION_SCORES = ("position", "distance")
WITHOUT_CONTENT = ("uniform", *POSITION_SCORES)
"""Scores that need no queries and keys: their attention has values only."""
ScoreScale = float | Literal["1/d_k", "learned"]
Score = Callable[[Tensor, Tensor], Tensor]


def dot(
    query: Float[Tensor, "*axes queries d_k"], key: Float[Tensor, "*axes keys d_k"]
) -> Float[Tensor, "*axes queries keys"]:
    """score(q, k) = q · k        Luong 2015, 3.1 · A2"""
    return query @ key.mT


def scaled_dot(
    query: Float[Tensor, "*axes queries d_k"], key: Float[Tensor, "*axes keys d_k"]
) -> Float[Tensor, "*axes queries keys"]:
    """score(q, k) = q · k / √d_k        Vaswani 2017, eq. 1 · A3

    A sum of d_k products of unit variance has variance d_k. Dividing by √d_k keeps the softmax out of its saturated
    region, where gradients vanish, however wide the heads are.
    """
    return query @ key.mT / math.sqrt(query.shape[-1])


class Bilinear(nn.Module):
    """score(q, k) = qᵀ W k        Luong 2015, 3.1 ("general", multiplicative) · A2

    W is learned, one per head, so queries and keys may differ in width.
    """

    def __init__(self, query_width: int, key_width: int, *, heads: int = 1) -> None:
        super().__init__()
        require_positive(query_width=query_width, key_width=key_width, heads=heads)
        self.weight = nn.Parameter(torch.empty(heads, query_width, key_width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scores of unit variance for inputs of unit variance, as √d_k does for the dot product."""
        _, query_width, key_width = self.weight.shape
        nn.init.normal_(self.weight, std=1 / math.sqrt(query_width * key_width))

    def forward(
        self, query: Float[Tensor, "*axes queries d_q"], key: Float[Tensor, "*axes keys d_k"]
    ) -> Float[Tensor, "*axes queries keys"]:
        return query @ _each_head(self.weight) @ key.mT


class Additive(nn.Module):
    """score(q, k) = vᵀ tanh(W_q q + W_k k)        Bahdanau 2015, A.1.2 · A2

    A small network scores each pair. It needs n_q × n_k × hidden values, which is why products replaced it.
    """

    def __init__(self, query_width: int, key_width: int, *, heads: int = 1) -> None:
        super().__init__()
        require_positive(query_width=query_width, key_width=key_width, heads=heads)
        hidden = key_width
        self.query_weight = nn.Parameter(torch.empty(heads, query_width, hidden))
        self.key_weight = nn.Parameter(torch.empty(heads, key_width, hidden))
        self.vector = nn.Parameter(torch.empty(heads, hidden, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-2]))

    def forward(
        self, query: Float[Tensor, "*axes queries d_q"], key: Float[Tensor, "*axes keys d_k"]
    ) -> Float[Tensor, "*axes queries keys"]:
        q = (query @ _each_head(self.query_weight)).unsqueeze(-2)  # … queries 1 hidden
        k = (key @ _each_head(self.key_weight)).unsqueeze(-3)  # … 1 keys hidden
        return (torch.tanh(q + k) @ _each_head(self.vector).unsqueeze(-3)).squeeze(-1)


def uniform(
    query: Float[Tensor, "*axes queries d_k"], key: Float[Tensor, "*axes keys d_k"]
) -> Float[Tensor, "*axes queries keys"]:
    """score(q, k) = 0: every query takes the mean of the values it may attend to        A2, Q1"""
    return query.new_zeros(*query.shape[:-1], key.shape[-2])


class PositionScore(nn.Module):
    """score_ij = S_ij: a learned number for each pair of positions        Tay 2021, 3.2 ("random synthesizer") · A2

    One table per head, up to a fixed length; what the tokens are makes no difference. Without the softmax the numbers
    are the weights themselves: a separate weight for each pair, as in a feed-forward network over tokens (Q1).
    """

    def __init__(self, max_length: int, *, heads: int = 1) -> None:
        super().__init__()
        require_positive(max_length=max_length, heads=heads)
        self.max_length = max_length
        self.weight = nn.Parameter(torch.empty(heads, *self._table()))
        self.reset_parameters()

    def _table(self) -> tuple[int, ...]:
        return self.max_length, self.max_length

    def reset_parameters(self) -> None:
        """Variance 1/n: with the softmax nearly uniform, without it a sum that keeps the variance of the values."""
        nn.init.normal_(self.weight, std=self.max_length**-0.5)

    def forward(
        self, positions: Int[Tensor, "#batch queries"], keys: int
    ) -> Float[Tensor, "#batch heads queries keys"]:
        """The scores of queries at these positions and the keys at 0, 1 … `keys` − 1."""
        if keys > self.max_length:
            raise UsageError(
                f"a text of {keys} tokens is longer than the table of position scores, {self.max_length}; "
                "shorten it, or train with a larger max_length"
            )
        return self._look_up(positions, torch.arange(keys, device=positions.device)).transpose(0, 1)

    def _look_up(self, query: Tensor, key: Tensor) -> Tensor:
        return self.weight[:, query[..., None], key]  # heads batch queries keys


class DistanceScore(PositionScore):
    """score_ij = s_(i−j): a learned number for each distance, before or after        Raffel 2020, 2.1 · A2, P3"""

    def _table(self) -> tuple[int, ...]:
        return (2 * self.max_length - 1,)

    def _look_up(self, query: Tensor, key: Tensor) -> Tensor:
        return self.weight[:, query[..., None] - key + self.max_length - 1]


class Scaled(nn.Module):
    """score(q, k) = τ · f(q, k) with a fixed factor, or one learned per head        A3, Q4

    1/τ is the softmax's temperature: the larger τ, the sharper the weights.
    """

    def __init__(self, score: Score, factor: float, *, heads: int = 1, learned: bool = False) -> None:
        super().__init__()
        self.score, self.start = score, factor
        self.factor = nn.Parameter(torch.empty(heads, 1, 1)) if learned else factor
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if isinstance(self.factor, nn.Parameter):
            nn.init.constant_(self.factor, self.start)

    def forward(
        self, query: Float[Tensor, "*axes queries d_q"], key: Float[Tensor, "*axes keys d_k"]
    ) -> Float[Tensor, "*axes queries keys"]:
        return self.score(query, key) * self.factor


def _each_head(weight: Float[Tensor, "heads rows columns"]) -> Float[Tensor, "*heads rows columns"]:
    """Drop the head axis of a single head, so that its queries may have any leading axes."""
    return weight[0] if len(weight) == 1 else weight


def make_score(
    name: ScoreName,
    query_width: int,
    key_width: int,
    *,
    heads: int = 1,
    scale: ScoreScale | None = None,
    max_length: int | None = None,
) -> Score:
    """The score function called `name`; a module where it has parameters.

    `scale` multiplies the score, in place of the 1/√d_k of scaled_dot; `max_length` is the size of a position table.
    """
    if name in WITHOUT_CONTENT and scale is not None:
        raise UsageError(f"score '{name}' does not compare queries with keys: leave score_scale out")
    if name in POSITION_SCORES:
        if max_length is None:
            raise UsageError(f"score '{name}' has a table of positions; say how long with max_length")
        return (PositionScore if name == "position" else DistanceScore)(max_length, heads=heads)
    if scale is not None:
        score = _make_content_score("dot" if name == "scaled_dot" else name, query_width, key_width, heads)
        start = 1 / math.sqrt(key_width) if name == "scaled_dot" else 1.0
        return Scaled(score, scale_factor(scale, key_width) or start, heads=heads, learned=scale == "learned")
    return _make_content_score(name, query_width, key_width, heads)


def scale_factor(scale: ScoreScale | None, key_width: int) -> float | None:
    """The fixed factor of a scale setting; None for the score's own factor, and for a learned one."""
    if scale == "1/d_k":
        return 1 / key_width
    return None if scale is None or scale == "learned" else float(scale)


def _make_content_score(name: str, query_width: int, key_width: int, heads: int) -> Score:
    if name == "bilinear":
        return Bilinear(query_width, key_width, heads=heads)
    if name == "additive":
        return Additive(query_width, key_width, heads=heads)
    functions: dict[str, Score] = {"dot": dot, "scaled_dot": scaled_dot, "uniform": uniform}
    if name not in functions:
        raise UsageError(f"unknown score '{name}'; {nearest(name, get_args(ScoreName))}")
    if query_width != key_width:
        raise UsageError(
            f"score '{name}' needs queries and keys of one width, got {query_width} and {key_width}; "
            "use 'bilinear' or 'additive'"
        )
    return functions[name]
