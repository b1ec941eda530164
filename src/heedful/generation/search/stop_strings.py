"""Stop strings and forbidden strings, matched byte by byte whatever the token boundaries.

A stop string may begin in the middle of one token and end in the middle of another, and "cat" is also spelled "c"+"at".
An Aho-Corasick automaton (1975) matches bytes; the transition of every vocabulary token is computed beforehand, so that
a row's state is one number and a decode step is one table look-up.
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
"""Nothing matched; a stop string was generated; a forbidden string was."""


class StringAutomaton:
    """Stop strings and forbidden strings over a vocabulary whose tokens have these bytes."""

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        stop: Sequence[str] = (),
        forbidden: Sequence[str] = (),
        vocabulary: int = 0,
    ) -> None:
        self.stop, self.forbidden = tuple(stop), tuple(forbidden)
        transitions = byte_transitions([text.encode() for text in stop], [text.encode() for text in forbidden])
        tokens = token_transitions(transitions, token_bytes)
        missing = max(0, vocabulary - len(token_bytes))  # an embedding table padded to a round size: no bytes
        unchanged = np.repeat(np.arange(len(transitions))[:, None], missing, axis=1)
        self.table = torch.from_numpy(np.concatenate([tokens, unchanged], axis=1))

    @cached_property
    def forbidden_table(self) -> Bool[Tensor, "states vocabulary"]:
        return self.table == FORBIDDEN

    def forbidden_tokens(self, states: Int[Tensor, " rows"]) -> Bool[Tensor, "rows vocabulary"]:
        """The tokens that would complete a forbidden string."""
        self._move(states.device)
        return self.forbidden_table[states]

    def next_states(self, states: Int[Tensor, "*rows"], tokens: Int[Tensor, "*rows"]) -> Int[Tensor, "*rows"]:
        self._move(states.device)
        return self.table[states, tokens]

    def _move(self, device: torch.device) -> None:
        if self.table.device != device:
            self.table = self.table.to(device)
            self.__dict__.pop("forbidden_table", None)


def byte_transitions(stop: Sequence[bytes], forbidden: Sequence[bytes]) -> NDArray[np.int64]:
    """The next state for every state and byte.

    A state is the longest prefix of any string that the text ends with; STOPPED and FORBIDDEN are never left.
    """
    transitions = [np.full(256, -1) for _ in range(3)]
    outcomes: dict[int, int] = {}
    for outcome, strings in ((STOPPED, stop), (FORBIDDEN, forbidden)):
        for string in strings:
            state = START_STATE
            for byte in string:
                if transitions[state][byte] < 0:
                    transitions[state][byte] = len(transitions)
                    transitions.append(np.full(256, -1))
                state = int(transitions[state][byte])
            outcomes[state] = max(outcome, outcomes.get(state, 0))
    _add_failure_links(transitions, outcomes)
    table = np.stack(transitions)
    for state, outcome in outcomes.items():
        table[table == state] = outcome
    table[STOPPED], table[FORBIDDEN] = STOPPED, FORBIDDEN
    return table


def _add_failure_links(transitions: list[NDArray[np.int64]], outcomes: dict[int, int]) -> None:
    """Fill transitions for bytes that continue no string from the longest shorter suffix (breadth first)."""
    suffix = {START_STATE: START_STATE}
    queue = [START_STATE]
    for state in queue:
        fallback = transitions[suffix[state]]
        for byte in np.flatnonzero(transitions[state] >= 0):
            child = int(transitions[state][byte])
            suffix[child] = START_STATE if state == START_STATE else int(fallback[byte])
            suffix_outcome = outcomes.get(suffix[child], 0)
            if suffix_outcome > outcomes.get(child, 0):
                outcomes[child] = suffix_outcome  # a string inside another, matched first
            queue.append(child)
        missing = transitions[state] < 0
        transitions[state][missing] = START_STATE if state == START_STATE else fallback[missing]


def token_transitions(transitions: NDArray[np.int64], token_bytes: Sequence[bytes]) -> NDArray[np.int64]:
    """The next state for every state and token: byte by byte, for all tokens at once."""
    lengths = np.array([len(token) for token in token_bytes])
    longest = int(lengths.max(initial=0))
    letters = np.frombuffer(b"".join(token.ljust(longest, b"\0") for token in token_bytes), dtype=np.uint8)
    letters = letters.reshape(len(token_bytes), longest)
    states = np.repeat(np.arange(len(transitions))[:, None], len(token_bytes), axis=1)
    for index in range(longest):
        tokens = np.flatnonzero(lengths > index)
        states[:, tokens] = transitions[states[:, tokens], letters[tokens, index]]
    return states
