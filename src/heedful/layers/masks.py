"""Attention masks as values: *True = may attend*, combined with `&`.

A mask gives every query i its subset S_i of keys (concept A6). A causal mask stays a flag, not an n×n table, wherever
the attention kernel accepts one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from heedful.errors import UsageError, require_positive
from heedful.shapes import Bool, Float, Int

FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MIN_LOCAL_KEYS = 256
"""Below this a window is a table: one kernel for the whole text is faster than blocks."""


@dataclass(frozen=True, eq=False)
class Mask:
    """The keys each query may attend to.

    allowed  True where a query may attend: (batch ×) (heads ×) queries × keys, any axis of which may be 1
    causal   no key after the query: S_i = {1..i}
    window   no key `window` or more positions away; in a long text, distant keys are never computed
    exclude_self  no key at the query's own position (A10)
    bias     added to the attention scores: 0 or −∞, or a preference such as ALiBi's
    resolved set by `resolve`: nothing is left to compute

    With fewer queries than keys the queries are the *last* positions, as when decoding with a KV cache.
    """

    allowed: Bool[Tensor, "..."] | None = None
    causal: bool = False
    window: int | None = None
    exclude_self: bool = False
    bias: Float[Tensor, "..."] | None = None
    resolved: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and (isinstance(self.window, bool) or not isinstance(self.window, int)):
            raise UsageError(f"window must be a whole number of positions, got {self.window!r}")
        require_positive(window=self.window)
        if self.allowed is not None and not _is_tensor(self.allowed, torch.bool):
            raise UsageError(
                f"a mask must be boolean (True = may attend), got {_dtype(self.allowed)}; "
                "turn a 0/−inf matrix into one with additive()"
            )
        if self.bias is not None and not _is_tensor(self.bias, *FLOATING):
            raise UsageError(f"a bias must be a floating-point tensor, got {_kind(self.bias)}")

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise UsageError(
                f"a mask is combined with a Mask, got {_kind(other)}; turn a tensor into one with subsets()"
            )
        windows = [mask.window for mask in (self, other) if mask.window is not None]
        return Mask(
            allowed=_combine(self.allowed, other.allowed, torch.logical_and),
            causal=self.causal or other.causal,
            window=min(windows, default=None),
            exclude_self=self.exclude_self or other.exclude_self,
            bias=_combine(self.bias, other.bias, torch.add),
        )

    def resolve(
        self, queries: int, keys: int, device: torch.device, positions: Int[Tensor, "#batch queries"] | None = None
    ) -> Mask:
        """The same mask in the cheapest form attention takes: none, plain causal, a window in blocks, or one table.

        `positions`: the position of each query among the keys, where the rows of a batch differ.
        A model resolves its mask once, for all layers; resolving again is free.
        """
        if self.resolved:
            return self
        self.check(queries, keys)
        if positions is None and (self.is_local(keys) or (self.is_causal_only and queries == keys != 1)):
            return self
        return self.as_table(queries, keys, device, positions)

    def as_table(
        self, queries: int, keys: int, device: torch.device, positions: Int[Tensor, "#batch queries"] | None = None
    ) -> Mask:
        """The resolved mask without `causal`, `window` and `exclude_self`: all are part of its table."""
        if self.resolved:
            return self
        self.check(queries, keys)
        causal = self.causal
        if causal and queries == 1 and positions is None:
            causal = False  # the only query is the last position: every key precedes it
        if not causal and self.window is None and not self.exclude_self:
            return Mask(allowed=self.allowed, bias=_masked_bias(self.bias, self.allowed), resolved=True)
        query = torch.arange(keys - queries, keys, device=device) if positions is None else positions[:, None]
        near = self.near(query, torch.arange(keys, device=device))
        allowed = near if self.allowed is None else near & self.allowed
        return Mask(allowed=allowed, bias=_masked_bias(self.bias, allowed), resolved=True)

    def near(
        self, query: Int[Tensor, "*axes queries"], key: Int[Tensor, " keys"]
    ) -> Bool[Tensor, "*axes queries keys"]:
        """Whether `causal`, `window` and `exclude_self` let queries at these positions attend to keys at those."""
        distance = query[..., None] - key
        near = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        near = near & (distance != 0) if self.exclude_self else near
        return near if self.window is None else near & (distance.abs() < self.window)

    def block(self, queries: slice, keys: slice, near: Bool[Tensor, "queries keys"]) -> Mask:
        """The resolved mask of a block of queries and keys; `near`: the pairs that `causal`, `window` … allow."""
        allowed = near if self.allowed is None else near & _block(self.allowed, queries, keys)
        bias = None if self.bias is None else _block(self.bias, queries, keys)
        return Mask(allowed=allowed, bias=_masked_bias(bias, allowed), resolved=True)

    def is_local(self, keys: int) -> bool:
        """Whether attention is computed in blocks, because the window is much shorter than the text.

        Not under torch.compile, which would compile the blocks anew for every length.
        """
        if self.window is None or torch.compiler.is_compiling():
            return False
        return keys >= MIN_LOCAL_KEYS and 2 * self.window <= keys

    def with_allowed(self, allowed: Bool[Tensor, "..."]) -> Mask:
        """The resolved mask with another table of allowed keys; the values of a bias stay.

        Where the bias was masked (−∞), the mirrored pair's is used: it has the same distance, so the same ALiBi bias.
        """
        bias = self.bias
        if bias is not None:
            mirrored = bias.mT if bias.shape[-1] == bias.shape[-2] else torch.zeros_like(bias)
            bias = torch.where(bias > -torch.inf, bias, mirrored).masked_fill(~allowed, -torch.inf)
        return Mask(allowed=allowed, bias=bias, resolved=True)

    def repeat(self, rows: int) -> Mask:
        """The same mask for `rows` consecutive rows of each row of the batch."""
        tables = (self.allowed, self.bias)
        allowed, bias = (
            table.repeat_interleave(rows, 0) if table is not None and table.dim() == 4 and len(table) > 1 else table
            for table in tables
        )
        return replace(self, allowed=allowed, bias=bias)

    @property
    def is_causal_only(self) -> bool:
        flags = self.window is None and not self.exclude_self
        return self.causal and flags and self.allowed is None and self.bias is None

    def as_bias(self, dtype: torch.dtype) -> Mask:
        """The resolved table as numbers of the scores' dtype, converted once instead of in every layer."""
        if self.bias is not None:
            return Mask(bias=self.bias.to(dtype), resolved=True)
        if self.allowed is None:
            return self
        return Mask(
            bias=torch.zeros_like(self.allowed, dtype=dtype).masked_fill(~self.allowed, -torch.inf), resolved=True
        )

    def dense(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "..."]:
        """The full boolean table, for display and for the reference path."""
        allowed = self.as_table(queries, keys, device).allowed
        table = torch.ones(queries, keys, dtype=torch.bool, device=device)
        return table if allowed is None else allowed & table

    def check(self, *axes: int) -> None:
        """Raise `UsageError` if a table does not fit scores of these axes: … queries, keys."""
        for name, table in (("mask", self.allowed), ("bias", self.bias)):
            if table is None:
                continue
            sizes = zip(reversed(table.shape), reversed(axes), strict=False)
            if table.dim() < 2 or any(size not in (1, axis) for size, axis in sizes):
                *outer, queries, keys = axes
                expected = " × ".join([*map(str, outer), f"{queries} queries", f"{keys} keys"])
                raise UsageError(
                    f"{name} of shape {tuple(table.shape)} does not fit {expected}; "
                    "it takes (batch ×) (heads ×) queries × keys, any axis of which may be 1"
                )


UNMASKED = Mask()


def causal() -> Mask:
    """S_i = {1..i}: no position attends to a later one, so all positions can be trained at once (T1)."""
    return Mask(causal=True)


def padding(lengths: Int[Tensor, " batch"], keys: int) -> Mask:
    """The first `lengths[b]` keys of each sequence are real, the rest is padding (T3)."""
    if not isinstance(lengths, Tensor) or lengths.dim() != 1:
        raise UsageError(f"lengths must be a tensor with one number for each sequence, got {_kind(lengths)}")
    real = torch.arange(keys, device=lengths.device) < lengths[:, None]
    return Mask(allowed=real[:, None, None, :])


def window(size: int) -> Mask:
    """Only neighbors nearer than `size` positions        Beltagy 2020, 3.1"""
    return Mask(window=size)


def exclude_self() -> Mask:
    """S_i = [n] without i: a query leaves itself out of the keys        A10"""
    return Mask(exclude_self=True)


def documents(ids: Int[Tensor, "batch tokens"]) -> Mask:
    """Several documents packed in one row: each token attends to its own document only."""
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise UsageError(f"document ids must be a tensor of batch × tokens, got {_kind(ids)}")
    return Mask(allowed=(ids[:, :, None] == ids[:, None, :])[:, None])


def subsets(allowed: Bool[Tensor, "*axes queries keys"]) -> Mask:
    """Any subset S_i of keys per query, as a boolean table."""
    return Mask(allowed=allowed)


def additive(matrix: Float[Tensor, "*axes queries keys"]) -> Mask:
    """From an additive matrix B: 0 where a query may attend, −inf where it may not."""
    if not _is_tensor(matrix, *FLOATING):
        raise UsageError(f"an additive matrix is a floating-point tensor, got {_kind(matrix)}")
    return Mask(allowed=matrix > -torch.inf, bias=matrix)


def _is_tensor(value: Any, *dtypes: torch.dtype) -> bool:
    return isinstance(value, Tensor) and value.dtype in dtypes


def _dtype(value: Any) -> str:
    """The dtype of a tensor, or the type of anything else, for an error."""
    return str(value.dtype) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _kind(value: Any) -> str:
    """The dtype and shape of a tensor, or the type of anything else, for an error."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else _dtype(value)


def _combine(a: Tensor | None, b: Tensor | None, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    if any(m != n and 1 not in (m, n) for m, n in zip(reversed(a.shape), reversed(b.shape), strict=False)):
        raise UsageError(f"masks of shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit together")
    return combine(a, b)


def _block(table: Tensor, queries: slice, keys: slice) -> Tensor:
    """Rows and columns of a table; an axis of size 1 stands for all of them."""
    rows = table if table.shape[-2] == 1 else table[..., queries, :]
    return rows if rows.shape[-1] == 1 else rows[..., keys]


def _masked_bias(bias: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """The bias with −inf where attending is not allowed: the single table a fused kernel takes."""
    if bias is None or allowed is None:
        return bias
    return bias.masked_fill(~allowed, -torch.inf)
