"""Attention weights times the lengths of the values they select: a large weight on a short value moves little."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from heedful.errors import UsageError
from heedful.inspection.look_recording import attention_map
from heedful.inspection.look_result import AttentionMap
from heedful.inspection.text_pass import TextPass, run_passes
from heedful.layers.taps import record, tap_names


def value_weighted_attention(model: Any, text_pass: TextPass) -> dict[str, AttentionMap]:
    """Every attention of a pass by its part, as weight × ‖value‖ divided by the sum of its row."""
    names = list(tap_names(model))
    parts = [name.removesuffix(".weights") for name in names if name.endswith(".weights")]
    parts = [part for part in parts if f"{part}.values" in names]
    if not parts:
        raise UsageError("the attention of this model has no value vectors of its own")
    taps = [f"{part}.{tap}" for part in parts for tap in ("weights", "values")]
    with torch.inference_mode(), record(model, *taps) as recorded:
        run_passes(model, [text_pass])
    return {
        part: attention_map(part, _scaled_rows(recorded[f"{part}.weights"], recorded[f"{part}.values"]), text_pass)
        for part in parts
    }


def _scaled_rows(weights: torch.Tensor, values: torch.Tensor) -> Any:
    """Heads × rows × columns of the first text: weights times the norms of the values, rows scaled to sum to 1."""
    norms = values[0].float().norm(dim=-1)
    shared = weights.shape[1] // len(norms)  # key and value heads may serve several query heads
    scaled = weights[0].float() * norms.repeat_interleave(shared, 0)[:, None]
    rows = scaled / scaled.sum(-1, keepdim=True).clamp_min(torch.finfo(scaled.dtype).tiny)
    return np.asarray(rows.cpu().numpy(), dtype=np.float32)
