"""Positions (P1–P3): sines in radians, learned tables, rotations, and slopes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heedful.errors import UsageError
from heedful.layers.positions import LearnedPositions, SinusoidalPositions, alibi, alibi_slopes, rotate, rotation

examples = settings(deadline=None, max_examples=40, derandomize=True)
even = st.integers(1, 16).map(lambda half: 2 * half)
places = st.integers(0, 500)


def at(*positions: int) -> Tensor:
    return torch.tensor([positions])


@examples
@given(width=even, position=places)
def test_a_sinusoid_is_the_paper_equation_in_radians(width: int, position: int) -> None:
    """PE[i, 2j] = sin(i / 10000^(2j/d)), PE[i, 2j+1] = cos(i / 10000^(2j/d))."""
    vector = SinusoidalPositions(width)(at(position))[0, 0]
    for j in range(width // 2):
        angle = position / 10_000 ** (2 * j / width)
        assert vector[2 * j].item() == pytest.approx(math.sin(angle), abs=1e-4)
        assert vector[2 * j + 1].item() == pytest.approx(math.cos(angle), abs=1e-4)


def test_angles_are_radians_not_degrees() -> None:
    assert SinusoidalPositions(4)(at(1))[0, 0, 0].item() == pytest.approx(0.84, abs=0.005)


@examples
@given(width=even, position=st.integers(0, 10**6))
def test_sinusoids_are_bounded_and_of_equal_norm(width: int, position: int) -> None:
    """However far: there is no table to run past. sin² + cos² = 1 in each of the d/2 pairs."""
    vector = SinusoidalPositions(width)(at(position))[0, 0].double()
    assert vector.abs().max() <= 1
    assert vector.square().sum().item() == pytest.approx(width / 2, rel=1e-5)


@examples
@given(width=even, position=places, offset=st.integers(-500, 500))
def test_a_shift_of_a_sinusoid_is_a_rotation_fixed_by_the_offset(width: int, position: int, offset: int) -> None:
    """P1: PE[i+δ] = M_δ PE[i], where M_δ turns pair j by δ·ω_j and does not know i."""
    here, there = SinusoidalPositions(width)(at(position, position + offset))[0]
    turns = [offset * 10_000 ** (-2 * j / width) for j in range(width // 2)]
    pairs = [torch.tensor([[math.cos(t), math.sin(t)], [-math.sin(t), math.cos(t)]]) for t in turns]
    torch.testing.assert_close(torch.block_diag(*pairs) @ here, there, atol=3e-4, rtol=0)


def test_every_position_has_a_vector_of_its_own() -> None:
    vectors = SinusoidalPositions(16)(torch.arange(2000)[None])[0]
    apart = torch.cdist(vectors, vectors) + 10 * torch.eye(2000)
    assert apart.min() > 0.01


def test_frequency_falls_with_the_dimension_not_with_the_position() -> None:
    """The first pair turns fastest: it moves most from one token to the next, wherever that is."""
    steps = SinusoidalPositions(16)(torch.arange(100)[None])[0].diff(dim=0)
    lengths = steps.unflatten(-1, (8, 2)).norm(dim=-1)  # step × pair
    assert (lengths[:, :-1] > lengths[:, 1:]).all()
    torch.testing.assert_close(lengths[:1].expand_as(lengths), lengths, atol=1e-5, rtol=0)


@examples
@given(width=even, position=places)
def test_halves_hold_the_same_numbers_as_interleaved_with_all_sines_first(width: int, position: int) -> None:
    interleaved, halves = (
        SinusoidalPositions(width, layout=layout)(at(position))[0, 0] for layout in ("interleaved", "halves")
    )
    assert torch.equal(halves, torch.cat([interleaved[0::2], interleaved[1::2]]))


def test_another_base_spreads_the_frequencies_differently() -> None:
    vector = SinusoidalPositions(4, base=100.0)(at(7))[0, 0]
    expected = [math.sin(7), math.cos(7), math.sin(0.7), math.cos(0.7)]
    assert vector.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("make", [lambda x: SinusoidalPositions(7)(x), lambda x: rotation(x, 7)])
def test_an_odd_width_is_refused_because_sines_and_cosines_come_in_pairs(make: object) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match="width 7 is odd; use 6 or 8"):
        make(at(0, 1))


def test_positions_that_differ_by_row_are_each_looked_up() -> None:
    positions = torch.tensor([[0, 1, 2], [5, 6, 0]])
    for scheme in (SinusoidalPositions(6), LearnedPositions(8, 6)):
        vectors = scheme(positions)
        assert vectors.shape == (2, 3, 6)
        assert torch.equal(vectors[0, 0], vectors[1, 2])
        assert not torch.equal(vectors[0, 1], vectors[1, 1])


def test_sinusoids_have_nothing_to_learn_and_a_learned_table_one_vector_per_position() -> None:
    assert not list(SinusoidalPositions(6).parameters())
    table = LearnedPositions(5, 6)
    assert [tuple(weight.shape) for weight in table.parameters()] == [(5, 6)]
    assert torch.equal(table(torch.arange(5)[None])[0], table.table.weight)
    table(at(1, 3)).sum().backward()
    assert table.table.weight.grad is not None
    assert table.table.weight.grad.sum(-1).tolist() == [0, 6, 0, 6, 0]


@pytest.mark.parametrize("position", [5, 100, -1])
def test_a_position_past_a_learned_table_is_a_clear_error(position: int) -> None:
    with pytest.raises(UsageError, match=rf"position {position} is outside the learned table of 5 \(0 to 4\)"):
        LearnedPositions(5, 6)(at(0, position))


@pytest.mark.parametrize("size", [0, -1])
def test_tables_of_size_zero_are_refused(size: int) -> None:
    with pytest.raises(UsageError, match=f"max_length must be positive, got {size}"):
        LearnedPositions(size, 6)
    with pytest.raises(UsageError, match=f"width must be positive, got {size}"):
        SinusoidalPositions(size)


def turned(x: Tensor, position: int) -> Tensor:
    """A single query or key, rotated as at `position`."""
    return rotate(x[None, None, None], rotation(at(position), x.shape[-1]))[0, 0, 0]


@examples
@given(width=even, i=places, j=places, shift=places, seed=st.integers(0, 999))
def test_rotary_scores_depend_on_the_distance_alone(width: int, i: int, j: int, shift: int, seed: int) -> None:
    """P3: ⟨R_i q, R_j k⟩ = ⟨R_{i+s} q, R_{j+s} k⟩ for any shift s."""
    q, k = torch.randn(2, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    here, there = turned(q, i) @ turned(k, j), turned(q, i + shift) @ turned(k, j + shift)
    assert here.item() == pytest.approx(there.item(), abs=2e-4 * float(q.norm() * k.norm() + 1))


@examples
@given(width=even, position=places, seed=st.integers(0, 999))
def test_rotation_preserves_norms(width: int, position: int, seed: int) -> None:
    x = torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(turned(x, position).norm(), x.norm(), rtol=1e-5, atol=0)


def test_rotation_rotates_each_pair_by_its_own_angle() -> None:
    """As complex numbers: (x_j + i·x_{j+d/2}) · e^{iθ_j}."""
    x = torch.randn(6, dtype=torch.float64)
    angles = torch.tensor([9 * 10_000 ** (-2 * j / 6) for j in range(3)], dtype=torch.float64)
    expected = torch.complex(x[:3], x[3:]) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(turned(x, 9), torch.cat([expected.real, expected.imag]), atol=1e-5, rtol=0)
    assert torch.equal(turned(x, 0), x)


def test_rotary_scores_do_change_with_the_distance() -> None:
    q, k = torch.randn(2, 8)
    assert not torch.allclose(turned(q, 3) @ turned(k, 0), turned(q, 4) @ turned(k, 0))


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (8, [2**-h for h in range(1, 9)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [*(2**-h for h in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_alibi_slopes_are_those_of_its_paper(heads: int, slopes: list[float]) -> None:
    assert alibi_slopes(heads).tolist() == pytest.approx(slopes)


@examples
@given(st.integers(1, 40))
def test_alibi_slopes_are_all_different_and_between_0_and_1(heads: int) -> None:
    slopes = alibi_slopes(heads).tolist()
    assert len(slopes) == len(set(slopes)) == heads
    assert all(0 < slope < 1 for slope in slopes)


def test_alibi_bias_falls_with_distance_by_each_head_s_slope() -> None:
    """B_hij = −m_h |i − j|, for queries that need not start at 0 nor stand alike in every row."""
    queries = torch.tensor([[2, 3], [0, 1]])
    bias = alibi(queries, 4, 3)
    assert bias.shape == (2, 3, 2, 4)
    for row, head, i, j in torch.cartesian_prod(*map(torch.arange, bias.shape)).tolist():
        distance = abs(int(queries[row, i]) - j)
        assert bias[row, head, i, j].item() == pytest.approx(-alibi_slopes(3)[head].item() * distance)
