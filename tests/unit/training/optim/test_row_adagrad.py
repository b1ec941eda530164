"""Row-wise AdaGrad: sparse and dense gradients are equivalent, untouched rows do not change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heedful.training.optim.row_adagrad import RowAdaGrad


def table(values: torch.Tensor) -> tuple[nn.Parameter, RowAdaGrad]:
    weight = nn.Parameter(values.clone())
    return weight, RowAdaGrad([weight], lr=0.1)


def sparse(rows: list[int], values: torch.Tensor, size: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, (size, values.shape[1]), check_invariants=True)


def test_a_sparse_gradient_gives_the_update_of_the_same_dense_one() -> None:
    start = torch.randn(5, 3)
    (sparse_table, first), (dense_table, second) = table(start), table(start)
    for _ in range(3):
        values = torch.randn(4, 3)
        sparse_table.grad = sparse([1, 3, 1, 4], values, 5)  # row 1 twice: its values are summed
        dense_table.grad = sparse_table.grad.to_dense()
        first.step()
        second.step()
    torch.testing.assert_close(sparse_table, dense_table)
    assert torch.equal(sparse_table[[0, 2]], start[[0, 2]])


def test_step_size_falls_with_the_accumulated_gradients_of_a_row_only() -> None:
    weight, optimizer = table(torch.zeros(3, 4))
    once, again = torch.tensor([[3.0, -3.0, 3.0, -3.0]]), torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    for step in range(16):
        before = weight.detach().clone()
        weight.grad = torch.cat([once, again if step == 15 else 0 * again, 0 * again])
        optimizer.step()
    changes = (weight - before).abs().mean(1).tolist()
    assert changes[0] == pytest.approx(0.1 * 3 / (16 * 9) ** 0.3)
    assert changes[1] == pytest.approx(0.1), "the first step of a row has the learning rate as its size"
    assert torch.equal(weight[2], torch.zeros(4))


def test_a_non_finite_gradient_changes_neither_weights_nor_state() -> None:
    weight, optimizer = table(torch.randn(3, 2))
    weight.grad = torch.randn(3, 2)
    optimizer.step()
    before, squares = weight.detach().clone(), optimizer.state[weight]["squares"].clone()
    weight.grad = sparse([0, 2], torch.full((2, 2), torch.nan), 3)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert torch.equal(weight, before)
    assert torch.equal(optimizer.state[weight]["squares"], squares)
