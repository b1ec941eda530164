"""W x + b for a few rows on a CPU, from a copy of the weights in a layout optimized for few rows.

A product of few rows takes as long as reading the weights, and MKL, which computes `linear`, reads them in an order
suited to many rows: at 8 GB/s, where a plain sum reads 48. For a single row a transposed copy is read at 15 GB/s; for
several rows oneDNN's packed layout takes less than half of MKL's time (32 rows). Measured on a busy AMD EPYC, width
256, vocabulary 8,000. For a large model the packed layout is also the best for one row: GPT-2 124M is read at 26 GB/s,
a transposed copy at 18, the original at 14 (2 threads).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.shapes import Float

PACK_AFTER_STEPS = 4
"""Steps after which weights are copied: making a copy takes as long as it saves in about six steps."""
LARGE_MODEL = 1 << 23
"""Number of weights from which single rows also use the packed layout: they no longer fit in the CPU's cache."""
MAX_PACKED_WEIGHTS = 1 << 28
"""Maximum number of weights copied: a gigabyte."""


class CpuLinear:
    """A linear layer whose weights are original, transposed, or packed by oneDNN."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.transposed: Tensor | None = None
        self.packed: Tensor | None = None

    def __call__(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        packed, transposed = self.packed, self.transposed
        if packed is not None:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, self.bias, "none", [], "")
            return product
        if transposed is not None:
            return torch.mm(x, transposed) if self.bias is None else torch.addmm(self.bias, x, transposed)
        return F.linear(x, self.weight, self.bias)

    def transpose(self) -> None:
        """Copy for single rows, unless there are more columns than rows: long rows are fast without a copy."""
        rows, columns = self.weight.shape
        self.transposed = self.weight.t().contiguous() if rows >= columns else None

    def pack(self) -> None:
        """Copy for several rows."""
        self.packed, self.transposed = torch.ops.mkldnn._reorder_linear_weight(self.weight), None


class PackedWeights:
    """Copies a model's weights to a faster layout once enough steps were taken for the copy to pay off.

    For steps of one row, a copy is made only if it is kept for the next request (`keep`). A layer has one copy at a
    time; once packed for several rows, it is not replaced.
    """

    def __init__(self, linears: Sequence[CpuLinear], *, keep: bool) -> None:
        self.linears, self.keep = linears, keep
        self.single_row_steps = self.multi_row_steps = 0
        self.packed = False
        self.copied_version: int | None = None
        weights = [linear.weight for linear in linears]
        number = sum(weight.numel() for weight in weights)
        self.possible = number <= MAX_PACKED_WEIGHTS and all(weight.dtype == torch.float32 for weight in weights)
        self.pack_single_rows = keep and number >= LARGE_MODEL

    def count_step(self, rows: int) -> None:
        """Count a decode step of `rows` rows, and copy the weights when it pays off."""
        if rows > 1 or (self.pack_single_rows and has_packed_linear()):
            self.multi_row_steps += 1
            due = self.multi_row_steps >= PACK_AFTER_STEPS and not self.packed
            if due and self.possible and has_packed_linear():
                self.packed = True
                self._copy(CpuLinear.pack)
        else:
            self.single_row_steps += 1
            due = self.single_row_steps >= PACK_AFTER_STEPS and self.copied_version is None
            if due and self.possible and self.keep:
                self._copy(CpuLinear.transpose)

    def is_outdated(self) -> bool:
        """Whether the weights have changed since they were copied."""
        return self.copied_version is not None and self.copied_version != self._version()

    def _copy(self, convert: Callable[[CpuLinear], None]) -> None:
        for linear in self.linears:
            convert(linear)
        self.copied_version = self._version()

    def _version(self) -> int:
        """A number that grows whenever torch sees one of the weights change in place."""
        return sum(0 if linear.weight.is_inference() else linear.weight._version for linear in self.linears)


@cache
def has_packed_linear() -> bool:
    """Whether this build of torch has oneDNN's packed linear and it computes correctly."""
    try:
        with torch.inference_mode():
            linear, x = CpuLinear(torch.arange(48.0).view(6, 8), None), torch.ones(2, 8)
            expected = linear(x)
            linear.pack()
            return torch.allclose(linear(x), expected)
    except (AttributeError, RuntimeError):
        return False
