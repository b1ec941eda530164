"""The tree of a beam search holds the search that `translate` makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import heedful
from heedful.errors import UsageError
from heedful.inference.beam_tree import BeamTree, beam_tree
from heedful.loading import wrap_model


def path(tree: BeamTree) -> list[int]:
    return [node.token for node in tree.nodes if node.won]


@pytest.mark.parametrize("family", ["laptop-translator", "recurrent-translator"])
@pytest.mark.parametrize("beam", [1, 3])
def test_the_marked_path_is_the_translation(
    make_trained: Callable[..., Any], texts: list[str], family: str, beam: int
) -> None:
    trained = make_trained(family)
    for text in texts[:5]:
        tree = beam_tree(trained, text, beam=beam, max_length=12)
        assert tree.answer == trained.translate(text, beam=beam, max_length=12, engine="torch", interventions=[])
        assert trained.tokenizers[-1].decode([path(tree)])[0] == tree.answer


def test_totals_add_up_along_every_branch(make_trained: Callable[..., Any], texts: list[str]) -> None:
    tree = beam_tree(make_trained("laptop-translator"), texts[0], beam=3, max_length=8)
    for node in tree.nodes:
        before = 0.0 if node.parent is None else tree.nodes[node.parent].total
        assert node.total == pytest.approx(before + node.log_probability, abs=1e-4)
        assert node.parent is None or tree.nodes[node.parent].fate == "kept"


def test_no_step_keeps_more_than_the_beam(make_trained: Callable[..., Any], texts: list[str]) -> None:
    tree = beam_tree(make_trained("laptop-translator"), texts[1], beam=2, max_length=8)
    for step in range(8):
        assert sum(node.step == step and node.fate == "kept" for node in tree.nodes) <= 2


def test_a_model_that_generates_no_text_has_no_beam_tree(make_tokenizer: Callable[..., Any]) -> None:
    encoder = heedful.build("laptop-reader", vocabulary=300, width=16, heads=2, layers=1)
    with pytest.raises(UsageError, match="does not search"):
        beam_tree(wrap_model(encoder, (make_tokenizer(),)), "a text")
