"""W x + b for a few rows on a CPU, from a copy of the weights laid out for it.

A product of few rows is over as soon as the weights have passed by, and MKL, which serves `linear`, fetches them in an
order that suits many rows: it read 8 GB a second where a plain sum read 48. For a single row, let columns instead of
rows lie side by side (15 GB/s); for several, oneDNN has an order of its own (32 rows in less than half MKL's time).
Figures are of an AMD EPYC on which others were at work, too; width 256, vocabulary 8,000. For a large model oneDNN's
order is the better one for a single row, too: GPT-2 124M passed by at 26 GB/s, 18 turned and 14 as it was (2 threads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.shapes import Float

PACK_AFTER_STEPS = 4
"""Steps after which copies are made: they take as long as some six steps would lose without."""
LARGE_MODEL = 1 << 23
"""Weights from which a single row is served like several: they come from memory, not from a cache."""
MAX_PACKED_WEIGHTS = 1 << 28
"""Weights beyond which there is no copy: a gigabyte."""


class CpuLinear:
    """One matrix of a model, and its bias if it has one."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.transposed: Tensor | None = None
        self.packed: Tensor | None = None

    def __call__(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        packed, turned = self.packed, self.transposed
        if packed is not None:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, self.bias, "none", [], "")
            return product
        if turned is not None:
            return torch.mm(x, turned) if self.bias is None else torch.addmm(self.bias, x, turned)
        return F.linear(x, self.weight, self.bias)

    def transpose(self) -> None:
        """For single rows, unless there are more columns than rows: then each is long enough to be read quickly."""
        rows, columns = self.weight.shape
        self.transposed = self.weight.t().contiguous() if rows >= columns else None

    def pack(self) -> None:
        """For several rows; a single one is served, too."""
        self.packed, self.transposed = torch.ops.mkldnn._reorder_linear_weight(self.weight), None


class PackedWeights:
    """When a model's matrices are copied, which depends on what is asked of it: after a few steps it will pay.

    Unless they are `kept` for the next request, only several rows are worth it. There is one copy at a time, and the
    one for several rows stays.
    """

    def __init__(self, products: Sequence[CpuLinear], *, kept: bool) -> None:
        self.products, self.kept = products, kept
        self.single = self.several = 0
        self.for_several = False
        self.made_from: int | None = None
        weights = [product.weight for product in products]
        number = sum(weight.numel() for weight in weights)
        self.possible = number <= MAX_PACKED_WEIGHTS and all(weight.dtype == torch.float32 for weight in weights)
        self.alike = kept and number >= LARGE_MODEL

    def count_step(self, rows: int) -> None:
        """One more step is to be taken, of so many rows."""
        if rows > 1 or (self.alike and has_packed_linear()):
            self.several += 1
            if self.several >= PACK_AFTER_STEPS and not self.for_several and self.possible and has_packed_linear():
                self.for_several = True
                self._make(CpuLinear.pack)
        else:
            self.single += 1
            if self.single >= PACK_AFTER_STEPS and self.made_from is None and self.possible and self.kept:
                self._make(CpuLinear.transpose)

    def is_outdated(self) -> bool:
        """Whether the weights have changed since."""
        return self.made_from is not None and self.made_from != self._changes()

    def _make(self, lay_out: Callable[[CpuLinear], None]) -> None:
        for product in self.products:
            lay_out(product)
        self.made_from = self._changes()

    def _changes(self) -> int:
        return weight_version(product.weight for product in self.products)


def weight_version(weights: Iterable[Tensor]) -> int:
    """How often these have been changed: torch counts."""
    return sum(0 if weight.is_inference() else weight._version for weight in weights)


@cache
def has_packed_linear() -> bool:
    """Whether this build of torch has oneDNN's products, and they are right."""
    try:
        with torch.inference_mode():
            product, x = CpuLinear(torch.arange(48.0).view(6, 8), None), torch.ones(2, 8)
            plain = product(x)
            product.pack()
            return torch.allclose(product(x), plain)
    except (AttributeError, RuntimeError):
        return False
