"""Check the tensors given to attention: one clear error instead of one from deep inside a kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.layers.masks import FLOATING, Mask


def check_attention_inputs(query: Any, key: Any, *values: Any, mask: Any = None, heads: bool = False) -> None:
    """Raise UsageError unless queries, keys, values (if there are any) and mask are tensors that fit together.

    `heads`: they have exactly the axes batch × heads × tokens × width, and several query heads may share one of the
    keys and values. Only shapes and types are read, never contents.
    """
    tensors = dict(zip(("query", "key", "value"), (query, key, *values), strict=False))
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, query, heads)
    for name, tensor in list(tensors.items())[1:]:
        if not _leading_axes_fit(query, tensor, heads):
            raise UsageError(
                f"{name} of shape {_shape(tensor)} does not fit query of shape {_shape(query)}: the axes before the "
                f"last two must be equal{', or the query heads a multiple of the key and value heads' * heads}"
            )
    for value in values:
        if key.shape[-2] != value.shape[-2] or (heads and key.shape[1] != value.shape[1]):
            raise UsageError(
                f"key of shape {_shape(key)} and value of shape {_shape(value)} do not fit: there is one value for "
                "each key"
            )
    if mask is not None and not isinstance(mask, Mask):
        raise UsageError(
            f"mask must be a Mask, got {_kind(mask)}; use heedful.Mask(allowed=…) with a boolean tensor, "
            "True = may attend"
        )
    for table in () if mask is None else (mask.allowed, mask.bias):
        if table is not None and table.device != query.device:
            raise UsageError(f"the mask is on {table.device}, query on {query.device}; move the mask there with .to()")


def check_scores(scores: Any, query: Tensor, key: Tensor) -> None:
    """Raise UsageError unless a score function returned one number for each query and key."""
    expected = (*query.shape[:-1], key.shape[-2])
    if not isinstance(scores, Tensor) or scores.dtype not in FLOATING:
        raise UsageError(f"score must return a tensor of floating-point numbers, got {_kind(scores)}")
    if scores.dim() != len(expected) or any(
        size not in (1, axis) for size, axis in zip(scores.shape, expected, strict=True)
    ):
        raise UsageError(f"score must return one number for each query and key, {expected}; got shape {_shape(scores)}")


def check_equal_widths(query: Tensor, key: Tensor) -> None:
    """Raise UsageError unless queries and keys can be multiplied."""
    if query.shape[-1] != key.shape[-1]:
        raise UsageError(
            f"query of shape {_shape(query)} and key of shape {_shape(key)} differ in width (the last axis); "
            "a dot product needs equal widths"
        )


def _check_tensor(name: str, tensor: Any, query: Tensor, heads: bool) -> None:
    if not isinstance(tensor, Tensor):
        raise UsageError(f"{name} must be a torch.Tensor, got {_kind(tensor)}")
    if tensor.dtype not in FLOATING:
        raise UsageError(f"{name} must be of a floating-point dtype, got {_kind(tensor)}; convert it with .float()")
    axes = "batch × heads × tokens × width" if heads else "… × tokens × width"
    if tensor.dim() != 4 if heads else tensor.dim() < 2:
        raise UsageError(f"{name} must have the axes {axes}, got shape {_shape(tensor)}")
    if tensor.device != query.device:
        raise UsageError(f"{name} is on {tensor.device}, query on {query.device}; move one of them with .to()")
    if tensor.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
        raise UsageError(f"{name} is of {tensor.dtype}, query of {query.dtype}; convert one of them with .to()")


def _leading_axes_fit(query: Tensor, other: Tensor, heads: bool) -> bool:
    if heads:
        return query.shape[0] == other.shape[0] and other.shape[1] > 0 and query.shape[1] % other.shape[1] == 0
    return query.shape[:-2] == other.shape[:-2]


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _kind(value: Any) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
