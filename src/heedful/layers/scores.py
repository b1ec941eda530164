"""Attention score functions: how well a query matches a key (A2).

Each maps queries (… × n_q × d_q) and keys (… × n_k × d_k) to scores (… × n_q × n_k).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from heedful.errors import UsageError, nearest, require_positive
from heedful.shapes import Float

ScoreName = Literal["dot", "scaled_dot", "bilinear", "additive"]
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


def _each_head(weight: Float[Tensor, "heads rows columns"]) -> Float[Tensor, "*heads rows columns"]:
    """Drop the head axis of a single head, so that its queries may have any leading axes."""
    return weight[0] if len(weight) == 1 else weight


def make_score(name: ScoreName, query_width: int, key_width: int, *, heads: int = 1) -> Score:
    """The score function called `name`; a module where it has parameters."""
    if name == "bilinear":
        return Bilinear(query_width, key_width, heads=heads)
    if name == "additive":
        return Additive(query_width, key_width, heads=heads)
    products: dict[str, Score] = {"dot": dot, "scaled_dot": scaled_dot}
    if name not in products:
        raise UsageError(f"unknown score '{name}'; {nearest(name, [*products, 'bilinear', 'additive'])}")
    if query_width != key_width:
        raise UsageError(
            f"score '{name}' needs queries and keys of one width, got {query_width} and {key_width}; "
            "use 'bilinear' or 'additive'"
        )
    return products[name]
