"""Axis names of tensor shapes, used in every annotation.

    batch       sequences                       tokens      positions in a sequence (n)
    heads       attention heads (H)             groups      key/value heads, when queries share them
    queries     positions that attend (n_q)     keys        positions attended to (n_k)
    width       model width (d)                 d_k, d_v    query/key and value width of one head
    hidden      feed-forward width (m)          vocabulary  token types (V)

A leading `#` lets an axis be 1 and broadcast; `*axes` stands for any number of leading axes; `_` for any length.
Shapes are checked while the test suite runs and cost nothing otherwise: annotations stay strings, and jaxtyping need
not be installed to use heedful.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ModuleNotFoundError:
        Bool = Float = Int = Any

__all__ = ["Bool", "Float", "Int"]
