"""Next-sentence batches: half of the second texts follow, half are from another document."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heedful.data.next_sentence import NextSentenceBatches, masked_batches
from heedful.data.token_store import Sequences
from heedful.errors import DataError
from heedful.text.special_tokens import PAD, SEPARATOR, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TOKENIZER = Tokenizer.train(["abcdefghijklmnopqrstuvwxyzABCDEF"], TokenizerConfig(kind="characters", vocabulary=60))
DOCUMENTS = 20


def corpus() -> Sequences:
    """Documents of ten sentences, each document of one letter: where a text comes from can be seen."""
    draw, sentences = np.random.default_rng(0), []
    for number in range(DOCUMENTS):
        lengths = draw.integers(3, 9, size=10)
        sentences += [[6 + number] * length for length in lengths]
        sentences[-1] += [SEPARATOR]
    return Sequences.from_lists(sentences)


def batches(text: Sequences | None = None, **settings: int) -> NextSentenceBatches:
    given = {"context": 24, "tokens": 24 * 8, "seed": 1, "share": 0.1, **settings}
    found = masked_batches(text or corpus(), TOKENIZER, next_sentence=True, **given)  # type: ignore[arg-type]
    assert isinstance(found, NextSentenceBatches)
    return found


def parts(row: list[int], segments: list[int]) -> tuple[list[int], list[int]]:
    first = [token for token, segment in zip(row, segments, strict=True) if segment == 0]
    second = [token for token, segment in zip(row, segments, strict=True) if segment == 1]
    assert (first[0], first[-1], second[-1]) == (START, SEPARATOR, SEPARATOR)
    return first[1:-1], second[:-1]


def test_rows_are_full_and_half_of_the_second_texts_are_random() -> None:
    given, elsewhere, rows = batches(), 0, 0
    for epoch in range(20):
        for indices in given.plan(epoch):
            batch = given.batch(epoch, indices)
            assert batch.tokens.shape[1] in (24, 12), "whole windows, or halves"
            assert batch.lengths is None
            assert batch.segments is not None
            assert batch.next_sentence_labels is not None
            stood = torch.where(batch.labels == PAD, batch.tokens.gather(1, batch.positions), batch.labels)
            whole = batch.tokens.scatter(1, batch.positions, stood)
            for row, segments, follows in zip(
                whole.tolist(), batch.segments.tolist(), batch.next_sentence_labels.tolist(), strict=True
            ):
                first, second = parts(row, segments)
                same = [token for token in first if token != SEPARATOR][-1] == second[0]
                assert same == (follows == 0)
                elsewhere, rows = elsewhere + follows, rows + 1
    assert elsewhere / rows == pytest.approx(0.5, abs=0.05)


def test_windows_are_split_at_sentence_boundaries() -> None:
    given = batches(context=60, tokens=60 * 8)
    borders = set(given.boundaries.tolist())
    assert borders == set(corpus().starts[:-1].tolist()) - set(given.documents.tolist())
    draw = np.random.default_rng(0)
    starts = given.plan(0)[0]
    cuts = given._split(starts, given.text_tokens, draw)
    assert set(cuts.tolist()) <= borders
    seconds, elsewhere = given._second_texts(cuts, given.text_tokens, draw)
    assert elsewhere.any()
    assert set(seconds[elsewhere].tolist()) <= borders
    assert (seconds[~elsewhere] == cuts[~elsewhere]).all()


def test_batches_depend_on_seed_and_epoch_alone() -> None:
    first, same = batches(), batches()
    for indices in reversed(first.plan(2)):
        ours, theirs = first.batch(2, indices), same.batch(2, indices)
        for name in ("tokens", "positions", "labels", "segments", "next_sentence_labels"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))


def test_single_document_raises_data_error() -> None:
    with pytest.raises(DataError, match=r"1 document\(s\) of 41 tokens.*blank line"):
        batches(Sequences.from_lists([[7] * 20, [8] * 20 + [SEPARATOR]]))
