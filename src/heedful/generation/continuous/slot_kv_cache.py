"""A KV cache whose rows join and leave at any decode step, each with its own position."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.generation.continuous.slot_tensor import SlotTensor, moved_rows
from heedful.layers.kv_cache import KVCache, LayerKVCache
from heedful.layers.masks import Mask
from heedful.shapes import Float, Int


class SlotLayer(LayerKVCache):
    """One attention layer's keys and values: a view of the slots in use."""

    parent: SlotKVCache

    def __init__(self, parent: SlotKVCache, index: int) -> None:
        super().__init__(parent)
        self.index = index

    def append(
        self, key: Float[Tensor, "batch groups 1 d_k"], value: Float[Tensor, "batch groups 1 d_v"]
    ) -> tuple[Float[Tensor, "batch groups keys d_k"], Float[Tensor, "batch groups keys d_v"]]:
        """Write each row's new key and value at its own position; return all up to the longest row."""
        parent, rows, end = self.parent, len(key), self.parent.longest + 1
        for slots, new in zip(parent.slots, (key, value), strict=True):
            if parent.equal_lengths:
                slots.layers[self.index][:rows, end - 1] = new[:, :, 0]
            else:
                slots.layers[self.index][parent.row_indices, parent.lengths] = new[:, :, 0]
        keys, values = (slots.read(self.index, rows, end) for slots in parent.slots)
        return keys, values

    def contiguous_memory(self) -> tuple[Tensor, Tensor]:
        """The encoded sources without a copy: attention reads rows with gaps between them as quickly."""
        assert self.memory is not None
        return self.memory


class SlotKVCache(KVCache):
    """The KV cache of texts with `rows_per_source` rows each, in slots that are reused when a text leaves.

    The rows in use come first; the last text moves into the slot of one that leaves. `like` is a prefilled cache of
    the same model.
    """

    def __init__(self, like: KVCache, rows_per_source: int) -> None:
        super().__init__(0, len(like.layers), device=like.lengths.device)
        self.rows_per_source = rows_per_source
        self.layers = [SlotLayer(self, index) for index in range(len(like.layers))]
        keys, values = [layer.keys for layer in like.layers], [layer.values for layer in like.layers]
        self.slots = [SlotTensor([part for part in parts if part is not None]) for parts in (keys, values)]
        memory = [layer.memory for layer in like.layers if layer.memory is not None]
        self.memory_slots = [SlotTensor(parts) for parts in zip(*memory, strict=True)]
        self.source_lengths = torch.zeros(0, dtype=torch.long, device=self.lengths.device)
        self.row_indices = self.source_lengths

    def join(self, cache: KVCache, rows: Int[Tensor, " new"], source_lengths: Int[Tensor, " sources"] | None) -> None:
        """Append rows of a prefilled cache, all of one length: `rows_per_source` consecutive ones for each source."""
        before, length = len(self.lengths), cache.longest
        for slots in self.slots:
            slots.reserve(before + len(rows), length + 1)
        for index, layer in enumerate(cache.layers):
            for slots, part in zip(self.slots, (layer.keys, layer.values), strict=True):
                assert part is not None
                slots.write(index, before, part[rows, :, :length])
        if source_lengths is not None:
            self._join_memory(cache, rows[:: self.rows_per_source] // cache.rows_per_source, source_lengths)
        self._set_lengths(torch.cat([self.lengths, torch.full_like(rows, length)]))

    def _join_memory(self, cache: KVCache, sources: Tensor, lengths: Tensor) -> None:
        before, after = len(self.source_lengths), len(self.source_lengths) + len(sources)
        lengths = lengths[sources]
        longest = int(lengths.max())
        for slots in self.memory_slots:
            slots.reserve(after, longest)
        for index, layer in enumerate(cache.layers):
            assert layer.memory is not None
            for slots, part in zip(self.memory_slots, layer.memory, strict=True):
                slots.write(index, before, part[sources, :, :longest])
        self._set_sources(torch.cat([self.source_lengths, lengths]))

    def reorder(self, rows: Int[Tensor, " chosen"], rows_per_source: int = 1) -> None:
        """Keep these rows in this order; `rows_per_source` does not change."""
        if moved := moved_rows(rows):
            for slots in self.slots:
                slots.move(*moved, self.longest)
        if self.memory_slots:
            sources = rows[:: self.rows_per_source] // self.rows_per_source
            moved = moved_rows(sources)
            if moved or len(sources) < len(self.source_lengths):
                for slots in self.memory_slots if moved else ():
                    assert moved is not None
                    slots.move(*moved, int(self.source_lengths.max()))
                self._set_sources(self.source_lengths[sources])
        self._set_lengths(self.lengths[rows])

    def advance(self, tokens: int, lengths: Int[Tensor, " batch"] | None = None) -> None:
        """Count one appended token in every row, and reserve space for the next."""
        super().advance(tokens, lengths)
        for slots in self.slots:
            slots.reserve(len(self.lengths), self.longest + 1)

    def _set_lengths(self, lengths: Tensor) -> None:
        self.lengths, self.row_indices = lengths, torch.arange(len(lengths), device=lengths.device)
        self.longest = int(lengths.max()) if len(lengths) else 0
        self.equal_lengths = bool((lengths == self.longest).all())
        for slots in self.slots:
            slots.reserve(len(lengths), self.longest + 1)

    def _set_sources(self, lengths: Tensor) -> None:
        """Give the layers a view of the remaining encoded sources, padded to the longest of them."""
        self.source_lengths, self.memory_mask = lengths, None
        longest = int(lengths.max()) if len(lengths) else 0
        for index, layer in enumerate(self.layers):
            keys, values = (slots.read(index, len(lengths), longest) for slots in self.memory_slots)
            layer.memory = keys, values
        beyond = torch.arange(longest, device=lengths.device) >= lengths[:, None]
        if bool(beyond.any()):
            bias = torch.zeros(beyond.shape, dtype=self.memory_slots[0].layers[0].dtype, device=lengths.device)
            self.memory_mask = Mask(bias=bias.masked_fill_(beyond, -torch.inf)[:, None, None], resolved=True)
