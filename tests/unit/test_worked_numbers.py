"""The numbers worked out by hand in the notes, computed by our functions.

Where a printed number is wrong the test says which, shows that the mathematics gives another, and,
where it can, how the printed one came about.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from heedful.lab.printed_examples import HELP_ME, NOT_ON_YOUR_LIFE, PRINTED_WEIGHTS, SHOW_ME_THE_MONEY
from heedful.layers.attention import attention, attention_weights, fused_attention
from heedful.layers.block import Block
from heedful.layers.embedding import Embedding
from heedful.layers.feed_forward import FeedForward
from heedful.layers.masks import additive, causal
from heedful.layers.multi_head_attention import SelfAttention
from heedful.layers.positions import SinusoidalPositions
from heedful.layers.residual import Residual
from heedful.layers.scores import dot, scaled_dot
from heedful.layers.taps import record


def printed(table: Tensor) -> list[list[float]]:
    """As on paper: two decimals."""
    return [[round(number, 2) + 0.0 for number in row] for row in table.tolist()]


def queries_and_keys(scores: Tensor, d_k: int) -> tuple[Tensor, Tensor]:
    """Queries and keys of width d_k whose products q_i·k_j are the given scores."""
    queries, keys = scores.shape
    query, key = torch.zeros(queries, d_k), torch.zeros(keys, d_k)
    query[:, :keys] = scores
    key[:, :keys] = torch.eye(keys)
    return query, key


# ---- "help me!": two tokens, d_k = 16


def test_help_me_scores_are_divided_by_the_root_of_16() -> None:
    query, key = queries_and_keys(HELP_ME, 16)
    assert dot(query, key).tolist() == [[6, 4], [3, 8]]
    assert scaled_dot(query, key).tolist() == [[1.5, 1.0], [0.75, 2.0]]


def test_help_me_weights_are_62_and_38_then_22_and_78_percent() -> None:
    assert printed(attention_weights(*queries_and_keys(HELP_ME, 16))) == [[0.62, 0.38], [0.22, 0.78]]


@pytest.mark.parametrize("path", ["reference", "fused"])
def test_help_me_attention_is_that_mixture_of_the_values(path: str) -> None:
    """A_1 = 0.62 v_1 + 0.38 v_2, A_2 = 0.22 v_1 + 0.78 v_2."""
    query, key = (x[None, None] for x in queries_and_keys(HELP_ME, 16))
    value = torch.eye(2)[None, None]
    output = (attention if path == "reference" else fused_attention)(query, key, value)
    assert printed(output[0, 0]) == [[0.62, 0.38], [0.22, 0.78]]


# ---- "show me the money": four tokens, d = 4

WORDS = {
    "show": [0.12, 0.63, 0.29, 0.41],
    "me": [0.83, 0.34, 0.04, 0.53],
    "the": [0.39, 0.77, 0.64, 0.09],
    "money": [0.41, 0.08, 0.51, 0.87],
}


def show_me_the_money() -> Tensor:
    table = nn.Embedding.from_pretrained(torch.tensor(list(WORDS.values())))
    embedding = Embedding(4, positions=SinusoidalPositions(4))
    vectors: Tensor = embedding(table, torch.arange(4)[None], torch.arange(4)[None])
    return vectors[0]


def test_position_0_is_0_1_0_1() -> None:
    assert SinusoidalPositions(4)(torch.tensor([[0]])).tolist() == [[[0, 1, 0, 1]]]


def test_position_1_begins_with_84_hundredths_not_with_2() -> None:
    """Erratum 1: the notes print sin(1) = 0.02, which is the sine of one *degree*. Angles are in radians."""
    first = SinusoidalPositions(4)(torch.tensor([[1]]))[0]
    assert printed(first) == [[0.84, 0.54, 0.01, 1.0]]
    assert round(math.sin(math.radians(1)), 2) == 0.02


def test_positions_2_and_3_inherit_that_error_in_the_notes() -> None:
    """Erratum 1, continued: printed are 0.04 and 0.05, the sines of two and three degrees to within rounding."""
    assert printed(SinusoidalPositions(4)(torch.tensor([[2, 3]]))[0]) == [
        [0.91, -0.42, 0.02, 1.0],
        [0.14, -0.99, 0.03, 1.0],
    ]
    assert [math.sin(math.radians(i)) for i in (2, 3)] == pytest.approx([0.04, 0.05], abs=0.006)


def test_show_stands_at_0_so_its_vector_gains_0_1_0_1() -> None:
    assert printed(show_me_the_money()[:1]) == [[0.12, 1.63, 0.29, 1.41]]


def test_money_plus_its_position_is_not_the_sum_the_notes_print() -> None:
    """Erratum 1, in sum (5): [0.46, 1.08, 0.51, 1.87] is printed; in radians the position is another."""
    assert printed(show_me_the_money()[3:]) == [[0.55, -0.91, 0.54, 1.87]]


def test_frequency_falls_with_the_dimension_not_with_the_position() -> None:
    """Erratum 4: "as i gets smaller, the frequency increases" holds for the dimension index j.

    Pair j turns by ω_j = 10000^(−2j/d) from one token to the next, and by as much at every token.
    """
    sine, cosine = SinusoidalPositions(8)(torch.arange(50)[None])[0].double().unflatten(-1, (4, 2)).unbind(-1)
    turns = torch.atan2(sine, cosine).diff(dim=0).remainder(2 * math.pi)  # step × pair
    expected = torch.tensor([10_000 ** (-2 * j / 8) for j in range(4)], dtype=torch.float64)
    torch.testing.assert_close(turns, expected.expand(49, 4), atol=1e-5, rtol=0)


def test_the_table_of_show_me_the_money_is_an_attention_table() -> None:
    """Its rows sum to 1, so the softmax of its logarithms gives the table back."""
    weights = attention_weights(*queries_and_keys(SHOW_ME_THE_MONEY.log(), 4), score=dot)
    torch.testing.assert_close(weights, SHOW_ME_THE_MONEY)


# ---- "<start> not on your life <end>": the look-ahead mask

LOOK_AHEAD = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
"""The notes' B: 0 on and below the diagonal, −inf above."""


def test_masking_the_table_zeroes_its_upper_triangle_and_leaves_rows_that_sum_to_1() -> None:
    """ "on" cannot attend to "your", "life" or "<end>"; "<start>" can attend to itself alone."""
    weights = attention_weights(*queries_and_keys(NOT_ON_YOUR_LIFE, 64), causal())
    assert torch.equal(weights.triu(1), torch.zeros(6, 6))
    assert (weights.tril().flatten()[torch.ones(6, 6).tril().flatten().bool()] > 0).all()
    assert weights[0].tolist() == [1, 0, 0, 0, 0, 0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(6))


def test_the_notes_matrix_b_equals_the_causal_mask() -> None:
    query, key = queries_and_keys(NOT_ON_YOUR_LIFE, 64)
    torch.testing.assert_close(
        attention_weights(query, key, additive(LOOK_AHEAD)), attention_weights(query, key, causal())
    )


def test_without_the_mask_a_token_could_cheat() -> None:
    weights = attention_weights(*queries_and_keys(NOT_ON_YOUR_LIFE, 64))
    assert (weights.triu(1).sum(-1)[:-1] > 0.05).all()


def test_row_not_is_9_and_91_percent_at_the_papers_width_not_13_and_87() -> None:
    """Erratum 2, with d_k = 64."""
    weights = attention_weights(*queries_and_keys(NOT_ON_YOUR_LIFE, 64), causal())
    assert printed(weights)[1] == [0.09, 0.91, 0, 0, 0, 0]
    assert printed(PRINTED_WEIGHTS)[1][:2] == [0.13, 0.87]


def test_the_printed_weights_are_the_softmax_of_the_printed_scores_at_no_scale() -> None:
    """Erratum 2: the best of all scales is still 0.06 off, ten times what rounding explains."""
    scales = torch.logspace(-2, 0.5, 500).tolist()
    query, key = queries_and_keys(NOT_ON_YOUR_LIFE, 6)
    apart = [(attention_weights(s * query, key, causal(), score=dot) - PRINTED_WEIGHTS).abs().max() for s in scales]
    assert min(apart).item() == pytest.approx(0.06, abs=0.005)


# ---- slips of notation that code cannot share


def test_what_a_query_reads_is_a_sum_over_the_values_of_others() -> None:
    """Erratum 3: printed is o_i = Σ_j α_ij v_i, which is v_i itself; it must be v_j. And the softmax
    fraction has a numerator: exp(s_ij) / Σ_k exp(s_ik)."""
    query, key, value = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)
    odds = torch.exp(scaled_dot(query, key))
    weights = odds / odds.sum(-1, keepdim=True)
    output = attention(query, key, value)
    torch.testing.assert_close(output, torch.stack([sum(weights[i, j] * value[j] for j in range(3)) for i in range(3)]))
    as_printed = torch.stack([sum(weights[i, j] * value[i] for j in range(3)) for i in range(3)])
    torch.testing.assert_close(as_printed, value)
    assert not torch.allclose(output, value)


def test_the_feed_forward_output_and_the_block_output_are_two_things() -> None:
    """Erratum 5: one chapter calls both z. Here they have two names, and the residual stands between."""
    block = Block(SelfAttention(4, 1), FeedForward(4, 8), lambda _: Residual(4))
    with record(block, "feed_forward.output", "attention.residual", "feed_forward.residual") as recorded:
        output = block(torch.randn(1, 3, 4))
    assert torch.equal(recorded["feed_forward.residual"], output)
    assert not torch.allclose(recorded["feed_forward.output"], output)
    torch.testing.assert_close(
        output, block.residual[1].norm(recorded["attention.residual"] + recorded["feed_forward.output"])
    )
