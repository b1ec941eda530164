"""Logits to surprise and slope in one kernel, in their own place: on a GPU the widest numbers of a step are read and
written as seldom as can be.

It equals `surprise_and_slope`, which says what it means; a test compares them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heedful.shapes import Float, Int
from heedful.text.special_tokens import PAD

LOG2_E = tl.constexpr(1.4426950408889634)
WIDEST = 8192
"""Logits of a row taken at a time: so many that few rows are under way, and are still at hand the second time."""
EACH = 8
"""Of these, neighbours that one lane takes: what can be loaded at once."""


def cross_entropy_inplace(
    logits: Float[Tensor, "rows columns"], labels: Int[Tensor, "rows 1"], smoothing: float, words: int, *, learn: bool
) -> tuple[Float[Tensor, "rows 1"], Float[Tensor, "rows columns"]]:
    """The surprise of each row; where something is to be learned, the logits have become their slope.

    Columns beyond the `words` only fill up: they are not read, and their slope is 0.
    """
    rows, columns = logits.shape
    surprise = torch.empty(rows, 1, dtype=torch.float32, device=logits.device)
    block = min(WIDEST, max(32 * EACH, triton.next_power_of_2(columns)))
    _row[(rows,)](
        logits, labels, surprise, logits.stride(0), words, columns, smoothing, PAD,
        lanes=block // EACH, each=EACH, smooth=smoothing > 0, learn=learn, num_warps=block // EACH // 32,
    )  # fmt: skip
    return surprise, logits


# One row, twice over: log Σ exp, kept up to date in every lane (Milakov & Gimelshein 2018); then the slope, of every
# word as if it were not the label, and last the label's. Two blocks are under way at a time, and what is written makes
# room for what is still to be read. Without annotations: the compiler would read them as code.
@triton.jit
def _row(
    logits, labels, surprise, stride, words, columns, smoothing, pad,
    lanes: tl.constexpr, each: tl.constexpr, smooth: tl.constexpr, learn: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * stride
    label = tl.load(labels + row)
    real = label != pad
    wanted = tl.load(at + label).to(tl.float32) * LOG2_E
    block = tl.arange(0, lanes)[:, None] * each + tl.arange(0, each)[None, :]
    most = tl.full([lanes], -1e30, tl.float32)  # finite: a lane without logits stays a number
    total = tl.zeros([lanes], tl.float32)
    every = tl.zeros([lanes], tl.float32)
    for first in tl.range(0, words, lanes * each, loop_unroll_factor=2):
        here = first + block < words
        z = tl.load(at + first + block, mask=here, other=float("-inf")).to(tl.float32)
        more = tl.maximum(most, tl.max(z, 1) * LOG2_E)
        total = total * tl.exp2(most - more) + tl.sum(tl.exp2(z * LOG2_E - more[:, None]), 1)
        most = more
        if smooth:
            every += tl.sum(tl.where(here, z, 0.0), 1) * LOG2_E
    peak = tl.max(most, 0)
    log_total = peak + tl.log2(tl.sum(total * tl.exp2(most - peak), 0))
    found = log_total - (1 - smoothing) * wanted
    if smooth:
        found -= smoothing * tl.sum(every, 0) / words
    tl.store(surprise + row, tl.where(real, found, 0.0) / LOG2_E)
    if learn:
        share = tl.where(real, smoothing / words, 0.0)
        log_total = tl.where(real, log_total, float("inf"))
        for first in tl.range(0, columns, lanes * each, loop_unroll_factor=2):
            here = first + block < words
            z = tl.load(at + first + block, mask=here, other=float("-inf")).to(tl.float32)
            slope = tl.exp2(z * LOG2_E - log_total)
            if smooth:
                slope = tl.where(here, slope - share, 0.0)
            inside = first + block < columns
            tl.store(at + first + block, slope.to(logits.dtype.element_ty), inside, eviction_policy="evict_first")
        tl.debug_barrier()
        slope = tl.where(real, tl.exp2(wanted - log_total) - share - (1 - smoothing), 0.0)
        tl.store(at + label, slope.to(logits.dtype.element_ty))
