"""One text, or two, as the single sequence that a model reads (T5).

    encoder    START a SEPARATOR                 START a SEPARATOR b SEPARATOR        Devlin 2019, 3
    decoder    a END                             a SEPARATOR b END                    after Radford 2018, 3.3

A decoder has read everything only at the end, so that its last token stands for the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from heedful.text.special import END, SEPARATOR, START

Ids = npt.NDArray[np.int64]


class Frame(NamedTuple):
    """The special tokens before, after and between texts."""

    before: tuple[int, ...]
    between: int
    after: int

    def added(self, texts: int) -> int:
        """Tokens that a row of so many texts has besides their own."""
        return len(self.before) + texts

    def around(self, texts: Sequence[Sequence[int] | Ids]) -> tuple[Ids, Ids]:
        """The ids of a row, and for each which text it belongs to (0 or 1): SEPARATOR belongs to the text before it."""
        parts: list[Ids] = [np.asarray(self.before, np.int64)]
        segments: list[Ids] = [np.zeros(len(self.before), np.int64)]
        for number, text in enumerate(texts):
            last = self.after if number == len(texts) - 1 else self.between
            parts.append(np.append(np.asarray(text, np.int64), last))
            segments.append(np.full(len(text) + 1, number, np.int64))
        return np.concatenate(parts), np.concatenate(segments)


def frame_for(family: str) -> Frame:
    """How a model of this family is given texts."""
    return Frame((START,), SEPARATOR, SEPARATOR) if family == "encoder" else Frame((), SEPARATOR, END)


def room(max_length: int, texts: int) -> int:
    """Tokens of text that fit, whatever the family: START and an end to each text need places, too."""
    return max(texts, max_length - 1 - texts)


def shortened(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens of each text fit into `room` together: the longer one gives way first."""
    kept = list(lengths)
    while sum(kept) > room:
        longest = max(range(len(kept)), key=lambda place: kept[place])
        others = max((length for place, length in enumerate(kept) if place != longest), default=0)
        too_many = sum(kept) - room
        kept[longest] -= max(1, min(too_many, kept[longest] - others))
    return kept
