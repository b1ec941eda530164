"""The likeliest token of each row and its log-probability, in one kernel: a GPU reads the logits once.

It equals `log_softmax` and a maximum; a test compares them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heedful.shapes import Float, Int
from heedful.text.special_tokens import NEVER_GENERATED

LOG2_E = tl.constexpr(1.4426950408889634)
LANES, EACH = 1024, 4


def argmax_logprob(logits: Float[Tensor, "rows vocabulary"]) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Of tokens equally likely, the one with the lowest number."""
    rows, vocabulary = logits.shape
    tokens = torch.empty(rows, dtype=torch.long, device=logits.device)
    likely = torch.empty(rows, dtype=torch.float32, device=logits.device)
    first = len(NEVER_GENERATED)  # they have the first ids
    _best[(rows,)](logits, tokens, likely, logits.stride(0), first, vocabulary, lanes=LANES, each=EACH, num_warps=32)
    return tokens, likely


# One row: log Σ exp is kept up to date in every lane while the logits go by (Milakov & Gimelshein 2018).
# Without annotations: the compiler would read them as code.
@triton.jit
def _best(logits, tokens, likely, stride, start, vocabulary, lanes: tl.constexpr, each: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * stride
    block = tl.arange(0, lanes)[:, None] * each + tl.arange(0, each)[None, :]
    most = tl.full([lanes], -1e30, tl.float32)  # finite: a lane without logits stays a number
    total = tl.zeros([lanes], tl.float32)
    which = tl.zeros([lanes], tl.int32)
    for first in range(0, vocabulary, lanes * each):
        place = first + block
        here = (place < vocabulary) & (place >= start)
        z = tl.load(at + place, mask=here, other=float("-inf")).to(tl.float32) * LOG2_E
        highest = tl.max(z, 1)
        more = tl.maximum(most, highest)
        total = total * tl.exp2(most - more) + tl.sum(tl.exp2(z - more[:, None]), 1)
        found = tl.min(tl.where(z == highest[:, None], place, vocabulary), 1)
        which = tl.where(highest > most, found, which)
        most = more
    peak = tl.max(most, 0)
    tl.store(tokens + row, tl.min(tl.where(most == peak, which, vocabulary), 0).to(tl.int64))
    tl.store(likely + row, -tl.log2(tl.sum(total * tl.exp2(most - peak), 0)) / LOG2_E)
