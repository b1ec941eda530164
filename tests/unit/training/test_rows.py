"""AdaGrad by rows: sparse and dense gradients come to the same, and what is not touched stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heedful.training.rows import RowAdaGrad


def table(values: torch.Tensor) -> tuple[nn.Parameter, RowAdaGrad]:
    weight = nn.Parameter(values.clone())
    return weight, RowAdaGrad([weight], lr=0.1)


def sparse(rows: list[int], values: torch.Tensor, size: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, (size, values.shape[1]), check_invariants=True)


def test_a_sparse_gradient_moves_what_the_same_dense_one_would() -> None:
    start = torch.randn(5, 3)
    (one, first), (other, second) = table(start), table(start)
    for _ in range(3):
        values = torch.randn(4, 3)
        one.grad = sparse([1, 3, 1, 4], values, 5)  # row 1 twice: what it gets is added up
        other.grad = one.grad.to_dense()
        first.step()
        second.step()
    torch.testing.assert_close(one, other)
    assert torch.equal(one[[0, 2]], start[[0, 2]])


def test_the_scale_of_gradients_does_not_matter() -> None:
    start = torch.randn(4, 3)
    (one, first), (other, second) = table(start), table(start)
    for _ in range(3):
        one.grad = torch.randn(4, 3)
        other.grad = 1000 * one.grad
        first.step()
        second.step()
    torch.testing.assert_close(one, other)


def test_the_first_step_of_a_row_is_as_long_as_the_rate_says() -> None:
    weight, optimizer = table(torch.zeros(2, 4))
    weight.grad = torch.tensor([[3.0, -3.0, 3.0, -3.0], [0.0, 0.0, 0.0, 0.0]])
    optimizer.step()
    assert weight[0].tolist() == pytest.approx([-0.1, 0.1, -0.1, 0.1])
    assert torch.equal(weight[1], torch.zeros(4))


def test_a_gradient_that_is_no_number_changes_neither_weights_nor_state() -> None:
    weight, optimizer = table(torch.randn(3, 2))
    weight.grad = torch.randn(3, 2)
    optimizer.step()
    before, squares = weight.detach().clone(), optimizer.state[weight]["squares"].clone()
    weight.grad = sparse([0, 2], torch.full((2, 2), torch.nan), 3)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert torch.equal(weight, before)
    assert torch.equal(optimizer.state[weight]["squares"], squares)
