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
    generator, sentences = np.random.default_rng(0), []
    for number in range(DOCUMENTS):
        lengths = generator.integers(3, 9, size=10)
        sentences += [[6 + number] * length for length in lengths]
        sentences[-1] += [SEPARATOR]
    return Sequences.from_lists(sentences)


def batches(text: Sequences | None = None, **settings: int) -> NextSentenceBatches:
    arguments = {"context": 24, "tokens": 24 * 8, "seed": 1, "share": 0.1, **settings}
    made = masked_batches(text or corpus(), TOKENIZER, next_sentence=True, **arguments)  # type: ignore[arg-type]
    assert isinstance(made, NextSentenceBatches)
    return made


def parts(row: list[int], segments: list[int]) -> tuple[list[int], list[int]]:
    first = [token for token, segment in zip(row, segments, strict=True) if segment == 0]
    second = [token for token, segment in zip(row, segments, strict=True) if segment == 1]
    assert (first[0], first[-1], second[-1]) == (START, SEPARATOR, SEPARATOR)
    return first[1:-1], second[:-1]


def test_rows_are_full_and_half_of_the_second_texts_are_random() -> None:
    train, random, rows = batches(), 0, 0
    for epoch in range(20):
        for indices in train.plan(epoch):
            batch = train.batch(epoch, indices)
            assert batch.tokens.shape[1] in (24, 12), "full windows, or halves"
            assert batch.lengths is None
            assert batch.segments is not None
            assert batch.next_sentence_labels is not None
            original = torch.where(batch.labels == PAD, batch.tokens.gather(1, batch.positions), batch.labels)
            unmasked = batch.tokens.scatter(1, batch.positions, original)
            for row, segments, follows in zip(
                unmasked.tolist(), batch.segments.tolist(), batch.next_sentence_labels.tolist(), strict=True
            ):
                first, second = parts(row, segments)
                same = [token for token in first if token != SEPARATOR][-1] == second[0]
                assert same == (follows == 0)
                random, rows = random + follows, rows + 1
    assert random / rows == pytest.approx(0.5, abs=0.05)


def test_windows_are_split_at_sentence_boundaries() -> None:
    train = batches(context=60, tokens=60 * 8)
    boundaries = set(train.boundaries.tolist())
    assert boundaries == set(corpus().starts[:-1].tolist()) - set(train.documents.tolist())
    generator = np.random.default_rng(0)
    starts = train.plan(0)[0]
    splits = train._split(starts, train.text_tokens, generator)
    assert set(splits.tolist()) <= boundaries
    seconds, random = train._second_texts(splits, train.text_tokens, generator)
    assert random.any()
    assert set(seconds[random].tolist()) <= boundaries
    assert (seconds[~random] == splits[~random]).all()


def test_batches_depend_on_seed_and_epoch_alone() -> None:
    first, same = batches(), batches()
    for indices in reversed(first.plan(2)):
        one, other = first.batch(2, indices), same.batch(2, indices)
        for name in ("tokens", "positions", "labels", "segments", "next_sentence_labels"):
            assert torch.equal(getattr(one, name), getattr(other, name))


def test_single_document_raises_data_error() -> None:
    with pytest.raises(DataError, match=r"1 document of 41 tokens.*blank line"):
        batches(Sequences.from_lists([[7] * 20, [8] * 20 + [SEPARATOR]]))
