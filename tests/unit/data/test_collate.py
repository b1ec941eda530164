"""Padding of token-id sequences."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.collate import pad_sequences
from heedful.text.special_tokens import END, PAD, START


@given(sequences=st.lists(st.lists(st.integers(6, 99), max_size=5), min_size=1, max_size=6))
def test_rows_are_the_sequences_followed_by_padding(sequences: list[list[int]]) -> None:
    tokens, lengths = pad_sequences(sequences)
    assert tokens.dtype == lengths.dtype == torch.int64
    assert tokens.shape == (len(sequences), max(1, *map(len, sequences)))
    for row, length, sequence in zip(tokens.tolist(), lengths.tolist(), sequences, strict=True):
        assert row == sequence + [PAD] * (len(row) - length)


def test_start_and_end_are_added_and_counted() -> None:
    tokens, lengths = pad_sequences([np.array([7, 8], np.uint16), np.array([9], np.uint16)], start=START, end=END)
    assert tokens.tolist() == [[START, 7, 8, END], [START, 9, END, PAD]]
    assert lengths.tolist() == [4, 3]
