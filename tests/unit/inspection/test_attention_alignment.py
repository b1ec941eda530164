"""Alignment: from a head's weights on tokens to links between words, and which head to trust."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import CheckpointError, UsageError
from heedful.inspection.attention_alignment import (
    ALIGNMENT_FILE,
    Alignment,
    align,
    cross_attention_weights,
    extract_links,
    default_alignment,
    word_weights,
)
from heedful.inspection.head_selection import select_head, choose_unit, alignment_error_rates
from heedful.text.word_tokens import TokenizedWords

TAP = "decoder.1.cross.weights"


def words(*ids: int) -> TokenizedWords:
    """A text whose every token is a word."""
    return TokenizedWords(tuple(map(str, ids)), ids, tuple(range(place, place + 1) for place in range(len(ids))))


def translator(name: str = "laptop-translator", **settings: object) -> object:
    size = {"width": 16} if name.startswith("recurrent") else {"width": 16, "heads": 2, "layers": 2}
    return heedful.build(name, vocabulary=30, **size, **settings).eval()


@pytest.mark.parametrize("name", ["laptop-translator", "recurrent-translator"])
def test_rows_are_target_tokens_columns_source_tokens_each_a_distribution_whatever_the_batch(name: str) -> None:
    model = translator(name)
    pairs = [(words(7, 8, 9), words(10, 11)), (words(7), words(10, 11, 12, 13)), (words(), words())]
    together = dict(cross_attention_weights(model, pairs))
    assert sorted(together) == [0, 1, 2]
    for index, pair in enumerate(pairs):
        ((_, alone),) = cross_attention_weights(model, [pair])
        for tap, weights in together[index].items():
            assert weights.shape[1:] == (len(pair[1].tokens) + 1, len(pair[0].tokens) + 1)  # and where each ends
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
            np.testing.assert_allclose(weights, alone[tap], atol=1e-5)


def test_a_word_has_the_weight_of_its_tokens_and_reads_as_they_do_on_average() -> None:
    source = TokenizedWords(("unhappy", "dogs"), (7, 8, 9), (range(1), range(1), range(1, 2)))
    target = TokenizedWords(("traurige", "Hunde"), (10, 11, 12), (range(1), range(1, 2), range(1, 2)))
    weights = np.array(
        [[0.3, 0.4, 0.2, 0.1], [0.0, 0.0, 0.9, 0.1], [0.1, 0.0, 0.5, 0.4], [0.0, 0.0, 0.0, 1.0]], np.float32
    )
    np.testing.assert_allclose(word_weights(weights, source, target), [[0.7, 0.2, 0.1], [0.05, 0.7, 0.25]], atol=1e-6)
    np.testing.assert_allclose(
        word_weights(weights, source, target, "reads"), [[0.0, 0.9, 0.1], [0.05, 0.25, 0.7]], atol=1e-6
    )


def looking(order: list[int], head: int, late: int = 0) -> object:
    """Weights under which one head looks from each target token straight at a source token, `late` rows later."""

    def put(weights: torch.Tensor) -> torch.Tensor:
        made = weights.clone()
        for target, source in enumerate(order):
            made[:, head, target + late] = torch.nn.functional.one_hot(torch.tensor(source), made.shape[-1]).float()
        return made

    return put


def test_links_are_where_a_head_looks_and_looking_at_the_end_is_none() -> None:
    model, pairs = translator(), [(words(7, 8, 9), words(10, 11, 12))]
    with heedful.replace(model, {TAP: looking([2, 3, 0], head=1)}):
        (reading,) = align(model, Alignment(tap=TAP, head=1, row="writes"), pairs)
    assert reading.links == ((0, 2), (2, 0))
    assert reading.pharaoh() == "0-2 2-0"
    assert reading.weights.shape == (3, 4)


def test_a_source_word_that_every_word_glances_at_is_the_origin_of_none_that_has_another() -> None:
    weights = np.array([[0.4, 0.1, 0.5, 0.0], [0.1, 0.4, 0.5, 0.0], [0.0, 0.0, 0.9, 0.1]], np.float32)
    assert weights.argmax(-1).tolist() == [2, 2, 2]
    assert extract_links(weights) == ((0, 0), (1, 1), (2, 2))
    assert extract_links(np.array([[0.2, 0.5, 0.3]], np.float32)) == ((1, 0),), "one word alone takes what it reads most"


@pytest.mark.parametrize(("late", "row"), [(0, "writes"), (1, "reads")])
def test_the_head_that_gives_the_true_links_is_chosen_and_so_is_its_row(late: int, row: str) -> None:
    model = translator()
    pairs = [(words(7, 8, 9), words(10, 11, 12))] * 6
    links = [frozenset({(2, 0), (0, 1), (1, 2)})] * 6
    with heedful.replace(model, {TAP: looking([2, 0, 1], head=1, late=late)}):
        found = select_head(model, pairs, links, units=("words", "words"), aligner="the truth")
        rates, _ = alignment_error_rates(model, pairs, links)
    assert (found.tap, found.head, found.row) == (TAP, 1, row)
    assert found.error_rate == 0
    assert found.pairs == 3
    assert found.mean_error_rate > 0
    assert found.worst_error_rate >= found.mean_error_rate
    assert len(rates) == 2 * 2 * (2 + 1), "two layers, both rows, two heads and their mean"


def test_the_error_of_the_choice_is_measured_on_pairs_that_had_no_say_in_it() -> None:
    """The head is right about the pairs it is chosen by only: that must not be what is reported."""
    model = translator()
    pairs = [(words(7, 8, 9), words(10, 11, 12))] * 6
    straight, turned = frozenset({(0, 0), (1, 1), (2, 2)}), frozenset({(2, 0), (0, 1), (1, 2)})
    links = [straight if half == 0 else turned for half in np.random.default_rng(0).permutation(6) % 2]
    with heedful.replace(model, {TAP: looking([0, 1, 2], head=0)}):
        assert select_head(model, pairs, links, units=("words", "words"), aligner="the truth").error_rate == 1


def test_a_model_that_does_not_attend_has_nothing_to_align_by() -> None:
    with pytest.raises(UsageError, match="nothing to align by"):
        list(cross_attention_weights(translator("recurrent-translator", attention="none"), [(words(7), words(8))]))


def test_a_model_nobody_measured_is_read_by_its_last_layer_but_one() -> None:
    usual = default_alignment(translator())
    assert (usual.tap, usual.head, usual.error_rate) == ("decoder.0.cross.weights", None, None)
    (reading,) = align(translator(), usual, [(words(7, 8), words(9))])
    assert len(reading.weights) == 1
    assert default_alignment(translator("recurrent-translator")).tap == "cross.weights"


def test_what_was_found_comes_back_from_the_folder_and_damage_is_named(tmp_path: Path) -> None:
    assert Alignment.read_json(tmp_path / ALIGNMENT_FILE) is None
    found = Alignment(tap=TAP, head=1, row="reads", error_rate=0.25, pairs=10, aligner="an aligner")
    (tmp_path / ALIGNMENT_FILE).write_text(found.model_dump_json())
    assert Alignment.read_json(tmp_path / ALIGNMENT_FILE) == found
    (tmp_path / ALIGNMENT_FILE).write_text('{"tap": 1}')
    with pytest.raises(CheckpointError, match=r"alignment\.json is damaged"):
        Alignment.read_json(tmp_path / ALIGNMENT_FILE)


@pytest.mark.parametrize(
    ("texts", "unit"),
    [
        (["A dog runs.", "Save", "Two dogs run."], "words"),
        (["東京は日本の首都です。", "京都 は"], "characters"),
        (["ฉันรักภาษาไทย", "และฉันกำลังเรียน"], "characters"),
        (["2015-07-01", "2013-12-10"], "characters"),
        (["안녕하세요 세계 여러분", "한국어는 재미있다"], "words"),
    ],
)
def test_text_without_blanks_is_counted_in_characters(texts: list[str], unit: str) -> None:
    assert choose_unit(texts) == unit
