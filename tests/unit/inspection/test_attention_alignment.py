"""Alignment: from attention weights on tokens to word links, and the selection of the best head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import CheckpointError, UsageError
from heedful.inspection.alignment_head_selection import alignment_error_rates, choose_unit, select_head
from heedful.inspection.attention_alignment import (
    Alignment,
    align,
    cross_attention_weights,
    default_alignment,
    extract_links,
    word_weights,
)
from heedful.text.word_tokens import TokenizedWords

TAP = "decoder.1.cross.weights"


def words(*ids: int) -> TokenizedWords:
    """A text in which every token is a word."""
    return TokenizedWords(tuple(map(str, ids)), ids, tuple(range(index, index + 1) for index in range(len(ids))))


def translator(name: str = "laptop-translator", **settings: object) -> object:
    size = {"width": 16} if name.startswith("recurrent") else {"width": 16, "heads": 2, "layers": 2}
    return heedful.build(name, vocabulary=30, **size, **settings).eval()


@pytest.mark.parametrize("name", ["laptop-translator", "recurrent-translator"])
def test_weights_have_shape_target_by_source_sum_to_one_and_do_not_depend_on_the_batch(name: str) -> None:
    model = translator(name)
    pairs = [(words(7, 8, 9), words(10, 11)), (words(7), words(10, 11, 12, 13)), (words(), words())]
    together = dict(cross_attention_weights(model, pairs))
    assert sorted(together) == [0, 1, 2]
    for index, pair in enumerate(pairs):
        ((_, alone),) = cross_attention_weights(model, [pair])
        for tap, weights in together[index].items():
            assert weights.shape[1:] == (len(pair[1].tokens) + 1, len(pair[0].tokens) + 1)  # END included
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
            np.testing.assert_allclose(weights, alone[tap], atol=1e-5)


def test_source_tokens_are_summed_and_target_tokens_averaged_to_words() -> None:
    source = TokenizedWords(("unhappy", "dogs"), (7, 8, 9), (range(1), range(1), range(1, 2)))
    target = TokenizedWords(("traurige", "Hunde"), (10, 11, 12), (range(1), range(1, 2), range(1, 2)))
    weights = np.array(
        [[0.3, 0.4, 0.2, 0.1], [0.0, 0.0, 0.9, 0.1], [0.1, 0.0, 0.5, 0.4], [0.0, 0.0, 0.0, 1.0]], np.float32
    )
    np.testing.assert_allclose(word_weights(weights, source, target), [[0.7, 0.2, 0.1], [0.05, 0.7, 0.25]], atol=1e-6)
    np.testing.assert_allclose(
        word_weights(weights, source, target, "input"), [[0.0, 0.9, 0.1], [0.05, 0.25, 0.7]], atol=1e-6
    )


def one_hot_attention(order: list[int], head: int, shift: int = 0) -> object:
    """Replace the weights of one head: target token t attends only to source token order[t], `shift` rows later."""

    def patch(weights: torch.Tensor, site: object) -> torch.Tensor:
        patched = weights.clone()
        for target, source in enumerate(order):
            row = torch.nn.functional.one_hot(torch.tensor(source), patched.shape[-1]).float()
            patched[:, head, target + shift] = row
        return patched

    return patch


def test_links_follow_the_head_and_attention_to_end_gives_no_link() -> None:
    model, pairs = translator(), [(words(7, 8, 9), words(10, 11, 12))]
    with heedful.edit(model, {TAP: one_hot_attention([2, 3, 0], head=1)}):
        (result,) = align(model, Alignment(tap=TAP, head=1, row="output"), pairs)
    assert result.links == ((0, 2), (2, 0))
    assert result.pharaoh() == "0-2 2-0"
    assert result.weights.shape == (3, 4)


def test_a_source_word_attended_by_all_targets_is_linked_only_without_a_better_one() -> None:
    weights = np.array([[0.4, 0.1, 0.5, 0.0], [0.1, 0.4, 0.5, 0.0], [0.0, 0.0, 0.9, 0.1]], np.float32)
    assert weights.argmax(-1).tolist() == [2, 2, 2]
    assert extract_links(weights) == ((0, 0), (1, 1), (2, 2))
    assert extract_links(np.array([[0.2, 0.5, 0.3]], np.float32)) == ((1, 0),), "a single word takes its largest weight"


@pytest.mark.parametrize(("shift", "row"), [(0, "output"), (1, "input")])
def test_head_and_row_with_the_reference_links_are_selected(shift: int, row: str) -> None:
    model = translator()
    pairs = [(words(7, 8, 9), words(10, 11, 12))] * 6
    links = [frozenset({(2, 0), (0, 1), (1, 2)})] * 6
    with heedful.edit(model, {TAP: one_hot_attention([2, 0, 1], head=1, shift=shift)}):
        alignment = select_head(model, pairs, links, units=("words", "words"), aligner="the truth")
        rates, _ = alignment_error_rates(model, pairs, links)
    assert (alignment.tap, alignment.head, alignment.row) == (TAP, 1, row)
    assert alignment.error_rate == 0
    assert alignment.pairs == 3
    assert alignment.mean_error_rate > 0
    assert alignment.worst_error_rate >= alignment.mean_error_rate
    assert len(rates) == 2 * 2 * (2 + 1), "two layers, both rows, two heads and their mean"


def test_reported_error_is_measured_on_pairs_not_used_for_selection() -> None:
    """The head is correct only on the pairs used to select it."""
    model = translator()
    pairs = [(words(7, 8, 9), words(10, 11, 12))] * 6
    straight, turned = frozenset({(0, 0), (1, 1), (2, 2)}), frozenset({(2, 0), (0, 1), (1, 2)})
    links = [straight if half == 0 else turned for half in np.random.default_rng(0).permutation(6) % 2]
    with heedful.edit(model, {TAP: one_hot_attention([0, 1, 2], head=0)}):
        assert select_head(model, pairs, links, units=("words", "words"), aligner="the truth").error_rate == 1


def test_model_without_cross_attention_cannot_be_aligned() -> None:
    with pytest.raises(UsageError, match="cannot be aligned"):
        list(cross_attention_weights(translator("recurrent-translator", attention="none"), [(words(7), words(8))]))


def test_default_alignment_is_the_mean_of_the_second_to_last_layer() -> None:
    default = default_alignment(translator())
    assert (default.tap, default.head, default.error_rate) == ("decoder.0.cross.weights", None, None)
    (result,) = align(translator(), default, [(words(7, 8), words(9))])
    assert len(result.weights) == 1
    assert default_alignment(translator("recurrent-translator")).tap == "cross.weights"


def test_alignment_round_trips_and_damage_is_reported() -> None:
    alignment = Alignment(tap=TAP, head=1, row="input", error_rate=0.25, pairs=10, aligner="an aligner")
    file = Path("alignment.json")
    assert Alignment.from_json(alignment.to_file().encode(), file) == alignment
    with pytest.raises(CheckpointError, match=r"alignment\.json is damaged"):
        Alignment.from_json(b'{"tap": 1}', file)


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
def test_unit_is_characters_for_text_without_spaces(texts: list[str], unit: str) -> None:
    assert choose_unit(texts) == unit
