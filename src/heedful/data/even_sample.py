"""An evenly spaced sample of a stream whose length is not known in advance."""

from __future__ import annotations

from typing import Generic, TypeVar

from heedful.data.batching import evenly_spaced

Item = TypeVar("Item")


class EvenSample(Generic[Item]):
    """Keeps up to `limit` items spread over a whole stream: corpora are often sorted, so the first are not typical.

    It keeps every `stride`-th item, and whenever there are twice too many drops every other one and doubles the stride.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.stride, self.count = limit, 1, 0
        self._kept: list[Item] = []

    def add(self, item: Item) -> None:
        if self.count % self.stride == 0:
            self._kept.append(item)
            if len(self._kept) == 2 * self.limit:
                self._kept, self.stride = self._kept[::2], 2 * self.stride
        self.count += 1

    @property
    def items(self) -> list[Item]:
        """The sample, in the order of the stream."""
        return [self._kept[index] for index in evenly_spaced(len(self._kept), self.limit)]
