"""Shapes are types, and while the tests run every call of heedful is checked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import isasyncgenfunction, iscoroutinefunction
from types import FunctionType
from typing import Any

import jaxtyping
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from torch import Tensor

import heedful
import shapechecks
from heedful.layers.masks import Mask
from heedful.shapes import Float, Int


def product(a: Float[Tensor, "rows inner"], b: Float[Tensor, "inner columns"]) -> Float[Tensor, "rows columns"]:
    return a @ b


def backwards(a: Float[Tensor, "rows columns"]) -> Float[Tensor, "columns rows"]:
    return a


def inside_out(a: Float[Tensor, "rows columns"]) -> Int[Tensor, " rows"]:
    return product(a.T, a).argmax(0)[: len(a)]  # there, rows and columns are others


def half(number: int) -> int:
    return number // 2 if number % 2 == 0 else number / 2  # type: ignore[return-value]


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "axes that differ": (product, (torch.ones(2, 3), torch.ones(4, 5))),
    "an axis too many": (product, (torch.ones(1, 2, 3), torch.ones(3, 5))),
    "whole numbers": (product, (torch.ones(2, 3, dtype=torch.long), torch.ones(3, 5))),
    "no tensor": (product, ([[1.0]], torch.ones(1, 5))),
    "a result of another shape": (backwards, (torch.ones(2, 3),)),
    "no number": (half, ("4",)),
    "a result of another type": (half, (3,)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_its_annotation_is_refused(name: str) -> None:
    function, arguments = REFUSED[name]
    with pytest.raises(BeartypeCallHintViolation):
        shapechecks.checked(function)(*arguments)


def test_what_fits_passes_and_an_axis_is_as_long_as_each_call_has_it() -> None:
    right = shapechecks.checked(product)
    assert right(torch.ones(2, 3), torch.ones(3, 5)).shape == (2, 5)
    assert right(torch.ones(7, 1), torch.ones(1, 1)).shape == (7, 1)
    assert shapechecks.checked(backwards)(torch.ones(3, 3)).shape == (3, 3)
    assert shapechecks.checked(inside_out)(torch.ones(2, 3)).shape == (2,)
    assert shapechecks.checked(half)(4) == 2


def test_outside_the_test_suite_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    assert shapechecks.checked(backwards)(torch.ones(2, 3)).shape == (2, 3)
    assert shapechecks.checked(half)(3) == 1.5


def test_functions_methods_and_data_classes_of_heedful_are_checked() -> None:
    with pytest.raises(BeartypeCallHintViolation):
        heedful.attention(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4), torch.ones(1, 1, 5, 4))
    model = heedful.build("laptop-writer", vocabulary=9, width=16, heads=2, layers=1)
    with pytest.raises(BeartypeCallHintViolation):
        model(torch.ones(1, 3))
    with pytest.raises(BeartypeCallHintViolation):
        Mask(window="wide")  # type: ignore[arg-type]


def test_not_one_function_of_heedful_is_left_out() -> None:
    modules = {name: module for name, module in sys.modules.items() if name.startswith("heedful.")}
    checked_functions = {
        f"{name}.{each.__qualname__}": each
        for name, module in modules.items()
        for each in vars(module).values()
        if isinstance(each, FunctionType)
        and each.__module__ == name
        and not (iscoroutinefunction(each) or isasyncgenfunction(each))  # a wrapper would run before they do
    }
    assert len(checked_functions) > 50
    assert [name for name, each in checked_functions.items() if not hasattr(each, "__wrapped__")] == []
