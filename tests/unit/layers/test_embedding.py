"""Token embedding and positions (E1, P3)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from heedful.errors import UsageError
from heedful.layers.embedding import Embedding, embedding_lookup
from heedful.layers.norms import make_norm
from heedful.layers.positions import LearnedPositions, SinusoidalPositions
from heedful.layers.taps import record


@pytest.fixture
def table() -> nn.Embedding:
    return nn.Embedding(10, 6)


TOKENS = torch.tensor([[1, 4, 9, 4], [0, 2, 2, 7]])
PLACES = torch.arange(4)[None]


def test_a_token_is_one_row_of_the_table(table: nn.Embedding) -> None:
    vectors = Embedding(6)(table, TOKENS, PLACES)
    for row, tokens in zip(vectors, TOKENS.tolist(), strict=True):
        assert torch.equal(row, torch.stack([table.weight[token] for token in tokens]))


def test_scaled_vectors_are_larger_by_the_root_of_the_width(table: nn.Embedding) -> None:
    """Paper 3.4: √d · E."""
    scaled = Embedding(6, scale=True)(table, TOKENS, PLACES)
    torch.testing.assert_close(scaled, math.sqrt(6) * table(TOKENS))


@pytest.mark.parametrize("positions", [SinusoidalPositions(6), LearnedPositions(8, 6)], ids=["sinusoidal", "learned"])
def test_positions_are_added_after_the_scaling(
    table: nn.Embedding, positions: SinusoidalPositions | LearnedPositions
) -> None:
    vectors = Embedding(6, positions=positions, scale=True)(table, TOKENS, PLACES)
    torch.testing.assert_close(vectors, math.sqrt(6) * table(TOKENS) + positions(PLACES))


def test_one_token_at_two_positions_differs_by_the_position_encodings(table: nn.Embedding) -> None:
    vectors = Embedding(6, positions=SinusoidalPositions(6))(table, TOKENS, PLACES)
    where = SinusoidalPositions(6)(PLACES)[0]
    torch.testing.assert_close(vectors[0, 3] - vectors[0, 1], where[3] - where[1])


def test_concatenated_positions_follow_the_token_vector(table: nn.Embedding) -> None:
    """P3: token and position occupy separate features."""
    vectors = Embedding(6, positions=SinusoidalPositions(4), combine="concatenate")(table, TOKENS, PLACES)
    assert vectors.shape == (2, 4, 10)
    assert torch.equal(vectors[..., :6], table(TOKENS))
    assert torch.equal(vectors[..., 6:], SinusoidalPositions(4)(PLACES).expand(2, 4, 4))


def test_rows_may_have_different_positions(table: nn.Embedding) -> None:
    places = torch.tensor([[0, 1, 2, 3], [5, 6, 7, 8]])
    for combine in ("add", "concatenate"):
        vectors = Embedding(6, positions=SinusoidalPositions(6), combine=combine)(table, TOKENS, places)
        alone = Embedding(6, positions=SinusoidalPositions(6), combine=combine)(table, TOKENS[1:], places[1:])
        torch.testing.assert_close(vectors[1:], alone)


def test_segment_vectors_are_added(table: nn.Embedding) -> None:
    embedding = Embedding(6, segments=2)
    which = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    assert embedding.segments is not None
    torch.testing.assert_close(embedding(table, TOKENS, PLACES, which), table(TOKENS) + embedding.segments(which))


def test_segments_default_to_the_first(table: nn.Embedding) -> None:
    embedding = Embedding(6, segments=2)
    first = torch.zeros_like(TOKENS)
    torch.testing.assert_close(embedding(table, TOKENS, PLACES), embedding(table, TOKENS, PLACES, first))


def test_segments_for_a_model_without_them_are_refused(table: nn.Embedding) -> None:
    with pytest.raises(UsageError, match="no segment vectors; build it with segments=2"):
        Embedding(6)(table, TOKENS, PLACES, torch.zeros_like(TOKENS))


def test_the_norm_comes_last(table: nn.Embedding) -> None:
    norm = make_norm("layer", 6)
    embedding = Embedding(6, positions=SinusoidalPositions(6), segments=2, norm=norm)
    assert embedding.segments is not None
    expected = norm(table(TOKENS) + embedding.segments.weight[0] + SinusoidalPositions(6)(PLACES))
    torch.testing.assert_close(embedding(table, TOKENS, PLACES), expected)


def test_dropout_applies_to_the_sum_in_training_only(table: nn.Embedding) -> None:
    """Paper 5.4: on token and position together."""
    embedding = Embedding(6, positions=SinusoidalPositions(6), dropout=0.5)
    plain = Embedding(6, positions=SinusoidalPositions(6))(table, TOKENS, PLACES)
    dropped = embedding(table, TOKENS, PLACES)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])
    torch.testing.assert_close(embedding.eval()(table, TOKENS, PLACES), plain)


def test_positions_follow_the_precision_of_the_table() -> None:
    table = nn.Embedding(10, 6, dtype=torch.bfloat16)
    assert Embedding(6, positions=SinusoidalPositions(6))(table, TOKENS, PLACES).dtype == torch.bfloat16


def test_taps_record_token_vectors_and_the_embedding(table: nn.Embedding) -> None:
    embedding = Embedding(6, positions=SinusoidalPositions(6), scale=True)
    with record(nn.ModuleDict({"source": embedding}), "source", "source.tokens") as recorded:
        result = embedding(table, TOKENS, PLACES)
    assert torch.equal(recorded["source.tokens"], table(TOKENS))
    assert torch.equal(recorded["source"], result)


@pytest.mark.parametrize("wrong", [10, 999, -1, -10])
def test_a_token_outside_the_vocabulary_is_named(table: nn.Embedding, wrong: int) -> None:
    tokens = TOKENS.clone()
    tokens[1, 2] = wrong
    with pytest.raises(UsageError, match=rf"token id {wrong} is outside the vocabulary of 10 \(0 to 9\)") as error:
        Embedding(6)(table, tokens, PLACES)
    assert not isinstance(error.value, IndexError)


def test_the_first_wrong_token_is_the_one_named(table: nn.Embedding) -> None:
    with pytest.raises(UsageError, match="token id 12 is"):
        embedding_lookup(table, torch.tensor([[3, 12, -5]]))


def test_a_segment_id_outside_its_table_is_named(table: nn.Embedding) -> None:
    with pytest.raises(UsageError, match="segment id 2 is outside"):
        Embedding(6, segments=2)(table, TOKENS, PLACES, torch.full_like(TOKENS, 2))


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_no_tokens_give_no_vectors(table: nn.Embedding, shape: tuple[int, int]) -> None:
    tokens: Tensor = torch.zeros(shape, dtype=torch.long)
    vectors = Embedding(6, positions=SinusoidalPositions(6))(table, tokens, torch.arange(shape[1])[None])
    assert vectors.shape == (*shape, 6)
