"""A cohort: searches with the same number of rows and texts of similar length, whose rows share one cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.generation.continuous.hidden_slots import HiddenSlots
from heedful.generation.continuous.running_search import RunningSearch
from heedful.generation.continuous.slot_kv_cache import SlotKVCache
from heedful.layers.kv_cache import KVCache

CohortKey = tuple[int, int]


def cohort_key(search: RunningSearch) -> CohortKey:
    """Number of rows, and a length class: the rows of a cohort are padded to the longest."""
    return search.width, (search.text.positions.bit_length() + 1) // 2


class Cohort:
    """The running searches of one cohort, in the order of their rows in the cache."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.searches: list[RunningSearch] = []
        self.state: Any = None

    @property
    def last_tokens(self) -> list[int]:
        """The token of each row that the next step reads."""
        return [row[-1] for search in self.searches for row in search.tokens]

    def join(
        self, searches: Sequence[RunningSearch], state: Any, rows: Sequence[int], source_lengths: Tensor | None
    ) -> None:
        """Append searches whose rows continue these rows of a prefilled state."""
        if self.state is None:
            slots: Any = SlotKVCache if isinstance(state, KVCache) else HiddenSlots
            self.state = slots(state, self.width)
        self.state.join(state, torch.tensor(rows, device=state.lengths.device), source_lengths)
        self.searches += searches

    def settle(self) -> list[RunningSearch]:
        """After a step: reorder rows by their parents, then remove and return the searches that are done."""
        done = [search for search in self.searches if search.is_done]
        self._keep([not search.is_done for search in self.searches], [search.parents for search in self.searches])
        return done

    def remove(self, searches: Sequence[RunningSearch]) -> None:
        """Remove some searches between two steps."""
        removed = set(map(id, searches))
        if any(id(search) in removed for search in self.searches):
            kept = [id(search) not in removed for search in self.searches]
            self._keep(kept, [range(self.width)] * len(self.searches))

    def _keep(self, kept: Sequence[bool], parents: Sequence[Sequence[int]]) -> None:
        """Fill gaps with the last searches, so that few rows move."""
        if not any(kept):
            self.searches = []
            return
        order = [index for index, is_kept in enumerate(kept) if is_kept]
        for gap in range(sum(kept)):
            if not kept[gap]:
                order.insert(gap, order.pop())
        rows = [index * self.width + parent for index in order for parent in parents[index]]
        if len(order) < len(self.searches) or rows != list(range(len(rows))):
            self.state.reorder(torch.tensor(rows, dtype=torch.long, device=self.state.lengths.device), self.width)
        self.searches = [self.searches[index] for index in order]
