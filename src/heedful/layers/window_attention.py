"""Sliding-window attention in blocks: time and memory linear in the length of the text (A6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from heedful.layers.masks import Mask
from heedful.shapes import Float

CPU_BLOCK, GPU_BLOCK = 128, 512
"""Minimum queries per block: short blocks compute fewer unused scores, long ones need fewer kernel launches."""


def window_attention(
    attend: Callable[[Tensor, Tensor, Tensor, Mask], Tensor],
    query: Float[Tensor, "batch heads queries d_k"],
    key: Float[Tensor, "batch groups keys d_k"],
    value: Float[Tensor, "batch groups keys d_v"],
    mask: Mask,
) -> Float[Tensor, "batch heads queries d_v"]:
    """`attend` for each block of queries, to the keys that its windows reach        Beltagy 2020, 3.1 · A6

    Fewer queries than keys are the last positions, as everywhere.
    """
    ranges = block_ranges(query.shape[2], key.shape[2], mask, GPU_BLOCK if query.is_cuda else CPU_BLOCK)
    rows, columns = [row for row, _ in ranges], [column for _, column in ranges]
    pieces = zip(_slices(query, rows), _slices(key, columns), _slices(value, columns), strict=True)
    masks = _block_masks(mask, ranges, query, key.shape[2])
    blocks = (attend(*piece, part) for piece, part in zip(pieces, masks, strict=True))
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return torch.cat(list(blocks), dim=2)
    output = query.new_empty(*query.shape[:3], value.shape[3])  # half the memory of concatenating
    for row, block in zip(rows, blocks, strict=True):
        output[:, :, row] = block
    return output


def _block_masks(mask: Mask, ranges: list[tuple[slice, slice]], query: Tensor, keys: int) -> Iterator[Mask]:
    """The resolved mask of each block. All blocks but the first and last have the same window, made once."""
    windows: dict[tuple[int, int, int], tuple[Tensor, Mask]] = {}
    for row, column in ranges:
        first = keys - query.shape[2] + row.start - column.start  # position of the first query among these keys
        size = first, row.stop - row.start, column.stop - column.start
        if size not in windows:
            position = torch.arange(first, first + size[1], device=query.device)
            near = mask.near(position, torch.arange(size[2], device=query.device))
            windows[size] = near, Mask(allowed=near, resolved=True).as_bias(query.dtype)
        near, bias = windows[size]
        is_plain_window = mask.allowed is None and mask.bias is None and first >= 0
        yield bias if is_plain_window else mask.block(row, column, near)


def block_ranges(queries: int, keys: int, mask: Mask, size: int) -> list[tuple[slice, slice]]:
    """Blocks of queries, each with the range of keys that any of its queries may attend to."""
    assert mask.window is not None
    size = max(size, mask.window // 2)  # gradients of keys are held once for every block they belong to
    blocks = []
    for start in range(0, queries, size):
        end = min(start + size, queries)
        first, last = keys - queries + start, keys - queries + end - 1  # their positions among the keys
        low = max(0, first - mask.window + 1)
        high = min(keys, last + (1 if mask.causal else mask.window))
        blocks.append((slice(start, end), slice(low, max(low, high))))
    return blocks


def _slices(x: Tensor, ranges: list[slice]) -> tuple[Tensor, ...]:
    slices: tuple[Tensor, ...] = OverlappingSlices.apply(x, ranges)  # type: ignore[no-untyped-call]
    return slices


class OverlappingSlices(torch.autograd.Function):
    """Slices along the token axis, whose gradients are added into one tensor.

    Autograd's own backward pass of a slice fills a tensor of the whole length for each, which would be quadratic again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranges: list[slice]) -> tuple[Tensor, ...]:
        ctx.shape, ctx.ranges = x.shape, ranges
        return tuple(x[:, :, span] for span in ranges)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].new_zeros(ctx.shape)
        for span, gradient in zip(ctx.ranges, gradients, strict=True):
            total[:, :, span] += gradient
        return total, None
