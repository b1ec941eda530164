"""Attention: one equation, two paths."""

from __future__ import annotations

import torch

from heedful.layers.attention import attention, fused_attention
from heedful.layers.masks import causal


def test_fused_equals_reference() -> None:
    query, key, value = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(attention(query, key, value, causal()), fused_attention(query, key, value, causal()))
