"""Texts to look out for while tokens are written, however the tokens spell them.

A stop text may begin in the middle of one token and end in the middle of another, and "cat" is also written "c"+"at".
So the texts are looked for byte by byte, by one automaton (Aho & Corasick 1975); what each token of the vocabulary
does to it is worked out beforehand. While writing, a row is one number, and a step is one look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.shapes import Bool, Int

START_STATE, STOPPED, FORBIDDEN = range(3)
"""Nothing met yet; a stop text was written; a forbidden text would be."""


class StringAutomaton:
    """Stop texts and forbidden texts, over a vocabulary whose tokens are spelt with these bytes."""

    def __init__(
        self,
        spellings: Sequence[bytes],
        *,
        stop: Sequence[str] = (),
        forbidden: Sequence[str] = (),
        vocabulary: int = 0,
    ) -> None:
        self.stop, self.forbidden = tuple(stop), tuple(forbidden)
        self.forbidding = bool(forbidden)
        steps = byte_transitions([text.encode() for text in self.stop], [text.encode() for text in self.forbidden])
        found = token_transitions(steps, spellings)
        unspelt = max(0, vocabulary - len(spellings))  # a table padded to a round size: those tokens spell nothing
        rest = np.repeat(np.arange(len(steps))[:, None], unspelt, axis=1)
        self.table = torch.from_numpy(np.concatenate([found, rest], axis=1))

    @cached_property
    def forbidden_table(self) -> Bool[Tensor, "places vocabulary"]:
        return self.table == FORBIDDEN

    def forbidden_tokens(self, where: Int[Tensor, " rows"]) -> Bool[Tensor, "rows vocabulary"]:
        """The tokens that would write a forbidden text."""
        self._move(where.device)
        return self.forbidden_table[where]

    def next_states(self, where: Int[Tensor, "*rows"], tokens: Int[Tensor, "*rows"]) -> Int[Tensor, "*rows"]:
        """Where a row stands after one more token."""
        self._move(where.device)
        return self.table[where, tokens]

    def _move(self, device: torch.device) -> None:
        if self.table.device != device:
            self.table = self.table.to(device)
            self.__dict__.pop("breaking", None)


def byte_transitions(stop: Sequence[bytes], forbidden: Sequence[bytes]) -> NDArray[np.int64]:
    """The next state for every state and byte. A state is the longest beginning of any text that what was written
    ends in; STOPPED and BROKEN are never left."""
    steps = [np.full(256, -1) for _ in range(3)]
    meant: dict[int, int] = {}
    for outcome, texts in ((STOPPED, stop), (FORBIDDEN, forbidden)):
        for text in texts:
            state = START_STATE
            for byte in text:
                if steps[state][byte] < 0:
                    steps[state][byte] = len(steps)
                    steps.append(np.full(256, -1))
                state = int(steps[state][byte])
            meant[state] = max(outcome, meant.get(state, 0))
    _complete(steps, meant)
    table = np.stack(steps)
    for state, outcome in meant.items():
        table[table == state] = outcome
    table[STOPPED], table[FORBIDDEN] = STOPPED, FORBIDDEN
    return table


def _complete(steps: list[NDArray[np.int64]], meant: dict[int, int]) -> None:
    """Where no beginning goes on with a byte, go on from the longest shorter one; breadth first, so it is complete."""
    shorter = {START_STATE: START_STATE}
    queue = [START_STATE]
    for state in queue:
        fallback = steps[shorter[state]]
        for byte in np.flatnonzero(steps[state] >= 0):
            child = int(steps[state][byte])
            shorter[child] = START_STATE if state == START_STATE else int(fallback[byte])
            meant_shorter = meant.get(shorter[child], 0)
            if meant_shorter > meant.get(child, 0):
                meant[child] = meant_shorter  # a text inside another, met first
            queue.append(child)
        missing = steps[state] < 0
        steps[state][missing] = START_STATE if state == START_STATE else fallback[missing]


def token_transitions(steps: NDArray[np.int64], spellings: Sequence[bytes]) -> NDArray[np.int64]:
    """The next state for every state and token: its bytes, one after another, for all tokens at once."""
    lengths = np.array([len(spelling) for spelling in spellings])
    longest = int(lengths.max(initial=0))
    letters = np.frombuffer(b"".join(spelling.ljust(longest, b"\0") for spelling in spellings), dtype=np.uint8)
    letters = letters.reshape(len(spellings), longest)
    places = np.repeat(np.arange(len(steps))[:, None], len(spellings), axis=1)
    for at in range(longest):
        going = np.flatnonzero(lengths > at)
        places[:, going] = steps[places[:, going], letters[going, at]]
    return places
