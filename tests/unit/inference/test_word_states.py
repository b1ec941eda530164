"""One vector for each occurrence of a word, from models of every family (E4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful import Ablate, UsageError
from heedful.inference.text_embedding import hidden_states
from heedful.loading import wrap_model
from heedful.models.model_config import WordVectorsConfig
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_kinds import TokenizerConfig

TEXTS = ["a bank, a river bank.", "the bank lent money", "money"]
PRESETS = ("laptop-translator", "laptop-writer", "laptop-reader", "recurrent-translator", "recurrent-writer")
every_family = pytest.mark.parametrize("preset", PRESETS)
Build = Callable[[str], Any]


@pytest.fixture(scope="module")
def build() -> Build:
    tokenizer = Tokenizer.train(TEXTS * 5, TokenizerConfig(kind="byte_bpe", vocabulary=275))

    def build(preset: str) -> Any:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"width": 32} if preset.startswith("recurrent") else {"width": 32, "heads": 4}
        return wrap_model(heedful.build(preset, vocabulary=len(tokenizer), layers=3, **sizes).eval(), (tokenizer,))

    return build


@every_family
def test_the_same_word_in_two_sentences_has_two_vectors(build: Build, preset: str) -> None:
    model = build(preset)
    first, second, third = model.word_states(TEXTS)
    assert [(word.text, word.start, word.end) for word in first.words] == [
        ("a", 0, 1), ("bank,", 2, 7), ("a", 8, 9), ("river", 10, 15), ("bank.", 16, 21),
    ]  # fmt: skip
    vectors = [first.words[1].vector, first.words[4].vector, second.words[1].vector]
    for row, column in ((0, 1), (0, 2), (1, 2)):
        assert not np.allclose(vectors[row], vectors[column], atol=1e-3)
    np.testing.assert_allclose(model.word_states(TEXTS[2]).words[0].vector, third.words[0].vector, atol=1e-5)
    (changed,) = model.word_states([TEXTS[0]], interventions=[Ablate("*.0.*" if "recurrent" in preset else "*.0")])
    assert not np.allclose(changed.words[1].vector, vectors[0], atol=1e-4)


@every_family
def test_a_vector_is_the_mean_state_of_the_word_s_tokens_without_its_punctuation(build: Build, preset: str) -> None:
    model = build(preset)
    row = model.tokenizer.spans(TEXTS[0])
    ids = model.input_row(TEXTS[0]).ids if "translator" in preset else None
    if preset == "laptop-reader":
        ids = model.template.wrap([span.token for span in row])
    tokens = torch.tensor([ids or [span.token for span in row]])
    with torch.no_grad():
        states = hidden_states(model.model, tokens, torch.tensor([tokens.shape[1]]))[0]
    offset = int(preset == "laptop-reader")
    inside = [index + offset for index, span in enumerate(row) if span.start < 6 and span.end > 2]
    np.testing.assert_allclose(model.word_states(TEXTS[0]).words[1].vector, states[inside].mean(0), atol=1e-5)


@every_family
def test_layers_are_counted_from_zero_and_the_last_is_minus_one(build: Build, preset: str) -> None:
    model = build(preset)
    at = {layer: model.word_states(TEXTS[1], layer=layer).words[1].vector for layer in (0, 1, 2, -1, -2, -3)}
    for layer in range(3):
        np.testing.assert_array_equal(at[layer], at[layer - 3])
    assert not np.allclose(at[0], at[1], atol=1e-3)
    for layer in (3, -4):
        with pytest.raises(UsageError, match="the layers of this model are 0 to 2, or -1 for the last"):
            model.word_states("money", layer=layer)


def test_word_vectors_are_those_of_the_type_and_unknown_words_are_left_out() -> None:
    tokenizer = Tokenizer.train(["bank river money"] * 3, TokenizerConfig(kind="bare_words", vocabulary=20))
    config = WordVectorsConfig(family="word_vectors", vocabulary=len(tokenizer), width=8)
    model = wrap_model(heedful.build(config), (tokenizer,))
    first, second = model.word_states(["bank, river", "money zebra bank"])
    np.testing.assert_array_equal(first.words[0].vector, second.words[1].vector)
    assert [word.text for word in second.words] == ["money", "bank"]
    assert second.warnings == (
        "1 of 3 words are not in the vocabulary or beyond this model's longest input",
    )  # fmt: skip
    with pytest.raises(UsageError, match="none: leave layer out"):
        model.word_states("bank", layer=0)


def test_words_beyond_the_longest_input_are_left_out_with_a_warning(build: Build) -> None:
    model = build("laptop-writer")
    short = heedful.build(
        "laptop-writer", vocabulary=len(model.tokenizer), layers=1, width=32, heads=4, positions="learned", max_length=8
    )
    states = wrap_model(short.eval(), model.tokenizers).word_states("the bank lent the river money")
    assert 0 < len(states.words) < 6
    assert "beyond this model's longest input" in states.warnings[0]
    assert model.word_states("").words == ()
