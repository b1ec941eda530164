"""Keep NaN and infinities of masked keys and values out of attention (A6).

An attention weight of 0 is not enough: 0 · NaN is NaN, in the output and in the gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.layers.masks import Mask
from heedful.shapes import Bool, Float


def isolate_nonfinite(
    query: Float[Tensor, "*axes queries _"],
    key: Float[Tensor, "*_ keys d_k"],
    value: Float[Tensor, "*_ keys d_v"],
    mask: Mask,
) -> tuple[Tensor, Tensor, Bool[Tensor, "..."] | None]:
    """Keys and values with zeros instead of NaN and infinities, and which queries may attend to one (None: none may).

    What those queries read is NaN; every other query, and its gradient, is as if the numbers had been zeros.
    """
    if not masks_keys(mask) or not may_be_nonfinite(key, value):
        return key, value, None
    nonfinite = ~(key.isfinite().all(-1) & value.isfinite().all(-1))
    if nonfinite.shape[:-1] != query.shape[:-2]:  # several query heads share one of the keys and values
        nonfinite = nonfinite.repeat_interleave(query.shape[1] // nonfinite.shape[1], 1)
    reached = _attends_to(nonfinite, mask, query.shape[-2])
    key, value = (torch.nan_to_num(part, nan=0.0, posinf=0.0, neginf=0.0) for part in (key, value))
    return key, value, reached


def masks_keys(mask: Mask) -> bool:
    """Whether the mask may keep a query from attending to a key."""
    return mask.causal or mask.exclude_self or mask.allowed is not None or mask.bias is not None


def may_be_nonfinite(*tensors: Tensor) -> bool:
    """Whether any element may be NaN or infinite: a single one makes the sum non-finite.

    Reading the sum would make a GPU wait, so there the answer is True; tensors without contents (a dry run's, or those
    of a graph being compiled) are assumed to be finite.
    """
    if torch.compiler.is_compiling() or any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
        return False
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return True
    with torch.no_grad():
        return not all(tensor.sum().isfinite() for tensor in tensors)


def _attends_to(nonfinite: Bool[Tensor, "*axes keys"], mask: Mask, queries: int) -> Bool[Tensor, "*axes queries 1"]:
    """Whether each query may attend to any of these keys."""
    keys = nonfinite.shape[-1]
    allowed = mask.as_table(queries, keys, nonfinite.device)
    table = allowed.allowed if allowed.bias is None else allowed.bias > -torch.inf
    near = nonfinite[..., None, :]
    return (near if table is None else near & table).any(-1, keepdim=True)
