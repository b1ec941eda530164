"""A growable tensor of rows: rows are appended, moved in place and dropped, and memory grows by doubling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.shapes import Float, Int


class SlotTensor:
    """Values of every layer, row and position, with spare capacity.

    The layout of a layer is rows × positions × heads × width: the used positions of a row are contiguous, so that a row
    is moved in one copy (base-sized beam of 128 rows: 1.1 ms where heads × positions took 3.2). Layers may have
    different numbers of heads.
    """

    def __init__(self, like: Sequence[Float[Tensor, "rows heads positions width"]]) -> None:
        self.layers = [part.new_zeros(0, 0, part.shape[1], part.shape[3]) for part in like]

    def reserve(self, rows: int, positions: int) -> None:
        """Grow to at least this many rows and positions."""
        rows_before, positions_before = self.layers[0].shape[:2]
        if rows <= rows_before and positions <= positions_before:
            return
        rows = rows_before if rows <= rows_before else max(rows, 2 * rows_before)
        positions = positions_before if positions <= positions_before else max(positions, 2 * positions_before)
        for index, layer in enumerate(self.layers):
            self.layers[index] = grown = layer.new_zeros(rows, positions, *layer.shape[2:])
            grown[:rows_before, :positions_before] = layer

    def write(self, layer: int, first_row: int, values: Float[Tensor, "rows heads positions width"]) -> None:
        """Write the first positions of new rows."""
        self.layers[layer][first_row : first_row + len(values), : values.shape[2]] = values.transpose(1, 2)

    def read(self, layer: int, rows: int, positions: int) -> Float[Tensor, "rows heads positions width"]:
        """A view of the first positions of the first rows."""
        return self.layers[layer][:rows, :positions].transpose(1, 2)

    def move(self, into: Int[Tensor, " moved"], rows: Int[Tensor, " moved"], positions: int) -> None:
        """Copy the first positions of some rows into others, in one operation."""
        for layer in self.layers:
            used = layer[:, :positions]
            used.index_copy_(0, into, used.index_select(0, rows))


def moved_rows(rows: Int[Tensor, " kept"]) -> tuple[Int[Tensor, " moved"], Int[Tensor, " moved"]] | None:
    """Where `rows` differs from 0, 1, 2 …: the target indices and the rows moved there; None if nothing moves."""
    into = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
    return (into, rows[into]) if len(into) else None
