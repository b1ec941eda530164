"""Wrong arguments of attention raise one clear UsageError, never an error of torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.errors import UsageError
from heedful.layers.attention import attention, attention_weights, fused_attention
from heedful.layers.masks import Mask, causal, padding, window

PATHS = [attention, fused_attention]
ONES = torch.ones(2, 3, 5, 4)
pytestmark = pytest.mark.usefixtures("types_unchecked")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], ONES, ONES), "query must be a torch.Tensor, got a list"),
        ((ONES, None, ONES), "key must be a torch.Tensor, got a NoneType"),
        ((ONES, ONES, None), "value must be a torch.Tensor, got a NoneType"),
        ((ONES, ONES, ONES.long()), r"value must be of a floating-point dtype, got a tensor of torch.int64; .*\.float"),
        ((ONES, ONES.double(), ONES), r"key is of torch.float64, query of torch.float32; convert one .*\.to"),
        ((ONES[0, 0, 0], ONES, ONES), r"query must have the axes .*tokens × width, got shape \(4,\)"),
        ((ONES, ONES[:1], ONES[:1]), r"key of shape \(1, 3, 5, 4\) does not fit query of shape \(2, 3, 5, 4\)"),
        ((ONES, ONES[..., :3], ONES), r"query of shape .* and key of shape \(2, 3, 5, 3\) differ in width"),
        ((ONES, ONES, ONES[:, :, :2]), r"value of shape \(2, 3, 2, 4\) do not fit: .*one value for each key"),
        ((ONES, ONES, ONES, torch.ones(5, 5).bool()), r"mask must be a Mask, got a tensor of torch.bool; use .*Mask\("),
        ((ONES, ONES, ONES.to("meta")), "value is on meta, query on cpu; move one of them"),
        ((ONES, ONES, ONES, Mask(bias=torch.ones(5, 5, device="meta"))), "the mask is on meta, query on cpu"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    path: Callable[..., Tensor], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        path(*arguments)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("dot", "score must be a function of queries and keys, .*got 'dot'"),
        (lambda query, key: query.sum(), r"one number for each query and key, \(2, 3, 5, 5\); got shape \(\)"),
        (lambda query, key: query, r"one number for each query and key, \(2, 3, 5, 5\); got shape \(2, 3, 5, 4\)"),
        (lambda query, key: None, "score must return a tensor of floating-point numbers, got a NoneType"),
    ],
)
def test_scores_that_do_not_fit_are_refused(score: Any, message: str) -> None:
    for path in (attention, attention_weights):
        with pytest.raises(UsageError, match=message):
            path(*[ONES] * (3 if path is attention else 2), score=score)  # type: ignore[operator]


def test_fused_attention_takes_four_axes_and_groups_of_heads() -> None:
    with pytest.raises(UsageError, match=r"batch × heads × tokens × width, got shape \(3, 5, 4\)"):
        fused_attention(ONES[0], ONES[0], ONES[0])
    with pytest.raises(UsageError, match="the query heads a multiple of the key and value heads"):
        fused_attention(ONES, ONES[:, :2], ONES[:, :2])
    with pytest.raises(UsageError, match="dropout must be between 0 and 1, got 2"):
        fused_attention(ONES, ONES, ONES, dropout=2)


def test_random_invalid_calls_never_raise_an_error_of_torch() -> None:
    """Shapes, dtypes and masks drawn at random, most of them wrong."""
    draw = random.Random(0)
    outcomes = [outcome(draw) for _ in range(400)]
    assert sum(outcomes) > 20, "some calls fit"
    assert len(outcomes) - sum(outcomes) > 200, "most do not"


def outcome(draw: random.Random) -> bool:
    """Whether a random call returned; any error but a UsageError is raised."""
    sizes = [draw.choice([1, 2]) for _ in range(draw.choice([2, 3, 4, 4, 4]))]
    dtypes = [torch.float32] * 8 + [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]

    def tensor() -> Any:
        shape = [size if draw.random() < 0.9 else draw.choice([0, 1, 2, 3]) for size in sizes]
        value = torch.ones(shape[draw.random() < 0.05 :]).to(draw.choice(dtypes if draw.random() < 0.5 else dtypes[:1]))
        return value.tolist() if draw.random() < 0.02 else value

    mask = draw.choice([None, None, causal(), window(1), padding(torch.tensor([1, 2]), 2), torch.ones(2, 2), "causal"])
    path = draw.choice([attention, fused_attention, attention_weights])
    tensors = [tensor() for _ in range(2 if path is attention_weights else 3)]
    try:
        path(*tensors, mask)  # type: ignore[operator]
    except UsageError:
        return False
    return True
