"""W x + b for a few rows on a CPU: from the weights as they lie, or from a copy laid out for its vector units.

A product of few rows is over as soon as the weights have passed by. MKL, which serves `linear`, lays them out afresh
every time; oneDNN reads a copy that was laid out once, in less than half the time on an AMD EPYC (32 rows, width 256).
A single row gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.shapes import Float

SOON = 4
"""Steps of several rows after which a copy is made: it takes as long as some six of them would lose."""
MOST = 1 << 28
"""Weights beyond which there is no copy: a gigabyte."""


class Product:
    """One matrix of a model, and its bias if it has one."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.packed: Tensor | None = None

    def __call__(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        if self.packed is None:
            return F.linear(x, self.weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return product

    def pack(self) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight)


def packed_pays(steps: int, products: Sequence[Product]) -> bool:
    """Whether now is the time for copies: once, and only of float32 weights that are not too many."""
    if steps != SOON or products[0].packed is not None or not has_packed():
        return False
    weights = [product.weight for product in products]
    return all(weight.dtype == torch.float32 for weight in weights) and sum(w.numel() for w in weights) <= MOST


@cache
def has_packed() -> bool:
    """Whether this build of torch has such products, and they are right."""
    try:
        with torch.inference_mode():
            weight, x = torch.arange(48.0).view(6, 8), torch.ones(2, 8)
            product = Product(weight, None)
            product.pack()
            return torch.allclose(product(x), x @ weight.T)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
