"""Shapes are types, and while the tests run calls of heedful are checked."""

from __future__ import annotations

import sys
from collections.abc import Callable
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


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "axes that differ": (product, (torch.ones(2, 3), torch.ones(4, 5))),
    "an axis too many": (product, (torch.ones(1, 2, 3), torch.ones(3, 5))),
    "whole numbers": (product, (torch.ones(2, 3, dtype=torch.long), torch.ones(3, 5))),
    "no tensor": (product, ([[1.0]], torch.ones(1, 5))),
    "a result of another shape": (backwards, (torch.ones(2, 3),)),
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


def test_outside_the_test_suite_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    assert shapechecks.checked(backwards)(torch.ones(2, 3)).shape == (2, 3)


def test_shapes_are_checked_anew_where_those_of_an_argument_change() -> None:
    right = shapechecks.checked(product)
    for _ in range(2):
        assert right(torch.ones(2, 3), torch.ones(3, 5)).shape == (2, 5)
        with pytest.raises(BeartypeCallHintViolation):
            right(torch.ones(2, 3), torch.ones(4, 5))


def test_functions_methods_and_data_classes_of_heedful_are_checked() -> None:
    with pytest.raises(BeartypeCallHintViolation):
        heedful.attention(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4), torch.ones(1, 1, 5, 4))
    model = heedful.build("laptop-writer", vocabulary=9, width=16, heads=2, layers=1)
    with pytest.raises(BeartypeCallHintViolation):
        model(torch.ones(1, 3))
    with pytest.raises(BeartypeCallHintViolation):
        Mask(window="wide")  # type: ignore[arg-type]


def test_no_function_of_heedful_with_shapes_in_its_signature_is_left_out() -> None:
    modules = {name: module for name, module in sys.modules.items() if name.startswith("heedful.")}
    functions = [
        each
        for name, module in modules.items()
        for each in vars(module).values()
        if isinstance(each, FunctionType) and each.__module__ == name
    ]
    with_shapes = [
        each for each in functions if any(map(shapechecks.names_axes, shapechecks.resolved_annotations(each).values()))
    ]
    assert len(with_shapes) > 50
    assert [each.__qualname__ for each in with_shapes if not hasattr(each, "__wrapped__")] == []
