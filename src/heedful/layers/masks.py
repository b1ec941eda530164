"""Masks are values: *True = may attend*. Small pieces, joined with `&`.

A mask gives every query i its subset S_i of keys (concept A6). "Not after me" stays a word
(`causal`), not an n×n table, for as long as the attention kernel understands the word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import UsageError, require_positive
from heedful.shapes import Bool, Float, Int


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys each query may read.

    allowed  True where a query may attend: (batch ×) (heads ×) queries × keys, any axis of which may be 1
    causal   and no key after the query: S_i = {1..i}
    window   and no key `window` or more positions away
    bias     added to the scores: the notes' matrix B, or a leaning such as ALiBi's
    settled  set by `settle`: nothing is left to work out

    With fewer queries than keys the queries are the *last* ones: that is the case when
    decoding, where earlier keys come from the state.
    """

    allowed: Bool[Tensor, "..."] | None = None
    causal: bool = False
    window: int | None = None
    bias: Float[Tensor, "..."] | None = None
    resolved: bool = False

    def __post_init__(self) -> None:
        require_positive(window=self.window)
        if self.allowed is not None and self.allowed.dtype != torch.bool:
            raise UsageError(
                f"a mask must be boolean (True = may attend), got {self.allowed.dtype}; "
                "turn a 0/−inf matrix into one with additive()"
            )

    def __and__(self, other: Mask) -> Mask:
        windows = [mask.window for mask in (self, other) if mask.window is not None]
        return Mask(
            allowed=_joined(self.allowed, other.allowed, torch.logical_and),
            causal=self.causal or other.causal,
            window=min(windows, default=None),
            bias=_joined(self.bias, other.bias, torch.add),
        )

    def resolve(
        self,
        queries: int,
        keys: int,
        device: torch.device,
        positions: Int[Tensor, "#batch queries"] | None = None,
    ) -> Mask:
        """The same mask in the cheapest form a kernel takes: nothing, plain causal, or one table.

        `positions` says where each query stands among the keys when rows of a batch differ.
        A model settles its mask once, for all layers; settling again is free.
        """
        if self.resolved:
            return self
        self.check(queries, keys)
        causal, window = self.causal, self.window
        if causal and queries == 1 and positions is None:
            causal = False  # the only query is the last position: every key precedes it
        plain = window is None and self.allowed is None and self.bias is None
        if causal and plain and queries == keys and positions is None:
            return self
        if not causal and window is None:
            return Mask(allowed=self.allowed, bias=_closed(self.bias, self.allowed), resolved=True)
        key = torch.arange(keys, device=device)
        query = torch.arange(keys - queries, keys, device=device) if positions is None else positions[:, None]
        distance = query[..., None] - key
        near = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            near = near & (distance.abs() < window)
        allowed = near if self.allowed is None else near & self.allowed
        return Mask(allowed=allowed, bias=_closed(self.bias, allowed), resolved=True)

    @property
    def is_causal_only(self) -> bool:
        return self.causal and self.window is None and self.allowed is None and self.bias is None

    def as_bias(self, dtype: torch.dtype) -> Mask:
        """A settled table as numbers of the scores' own type: what a kernel would else make of it in every layer."""
        if self.bias is not None:
            return Mask(bias=self.bias.to(dtype), resolved=True)
        if self.allowed is None:
            return self
        return Mask(
            bias=torch.zeros_like(self.allowed, dtype=dtype).masked_fill(~self.allowed, -torch.inf), resolved=True
        )

    def dense(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "..."]:
        """The whole table, for reading and for the reference path."""
        settled = self.resolve(queries, keys, device)
        if settled.causal:
            return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()
        everything = torch.ones(queries, keys, dtype=torch.bool, device=device)
        return everything if settled.allowed is None else settled.allowed & everything

    def check(self, *axes: int) -> None:
        """Refuse a table that does not fit scores of these axes: … queries, keys."""
        for name, table in (("mask", self.allowed), ("bias", self.bias)):
            if table is None:
                continue
            sizes = zip(reversed(table.shape), reversed(axes), strict=False)
            if table.dim() < 2 or any(size not in (1, axis) for size, axis in sizes):
                *outer, queries, keys = axes
                room = " × ".join([*map(str, outer), f"{queries} queries", f"{keys} keys"])
                raise UsageError(
                    f"{name} of shape {tuple(table.shape)} does not fit {room}; "
                    "it takes (batch ×) (heads ×) queries × keys, any axis of which may be 1"
                )


UNMASKED = Mask()


def causal() -> Mask:
    """S_i = {1..i}: no position sees a later one, so all positions can be trained at once (T1)."""
    return Mask(causal=True)


def padding(lengths: Int[Tensor, " batch"], keys: int) -> Mask:
    """The first `lengths[b]` keys of each sequence are real, the rest is padding (T3)."""
    real = torch.arange(keys, device=lengths.device) < lengths[:, None]
    return Mask(allowed=real[:, None, None, :])


def window(size: int) -> Mask:
    """Only neighbours nearer than `size` positions. (A table: a kernel that skips what it hides is not used yet.)"""
    return Mask(window=size)


def documents(ids: Int[Tensor, "batch tokens"]) -> Mask:
    """Several documents packed in one row: each token sees only its own document."""
    return Mask(allowed=(ids[:, :, None] == ids[:, None, :])[:, None])


def subsets(allowed: Bool[Tensor, "*axes queries keys"]) -> Mask:
    """Any subset S_i per query, written out."""
    return Mask(allowed=allowed)


def additive(matrix: Float[Tensor, "*axes queries keys"]) -> Mask:
    """From the notes' form B: 0 where a query may attend, −inf where it may not."""
    return Mask(allowed=matrix > -torch.inf, bias=matrix)


def _joined(a: Tensor | None, b: Tensor | None, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    if any(m != n and 1 not in (m, n) for m, n in zip(reversed(a.shape), reversed(b.shape), strict=False)):
        raise UsageError(f"masks of shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit together")
    return join(a, b)


def _closed(bias: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """The bias with −inf where attending is not allowed: the one table a fused kernel takes."""
    if bias is None or allowed is None:
        return bias
    return bias.masked_fill(~allowed, -torch.inf)
