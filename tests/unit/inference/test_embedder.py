"""Sentence vectors: the mean of the states of any family, the same in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import UsageError
from heedful.inference.text_embedding import cosine_similarities
from heedful.inference.trained_model import TrainedModel
from heedful.loading import wrap_model
from heedful.models.model_config import WordVectorsConfig
from heedful.text.special_tokens import END
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TEXTS = ["a cat sat on the mat", "the dog", "a mat", "a dog sat on a cat that sat on the mat", ""]
FAMILIES = ["laptop-reader", "laptop-translator", "laptop-writer", "recurrent-translator", "recurrent-writer"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 3, TokenizerConfig(kind="words", vocabulary=100))


def trained(name: str, tokenizer: Tokenizer, **changes: Any) -> TrainedModel:
    size: dict[str, Any] = {"vocabulary": len(tokenizer), "width": 16, **changes}
    if name.startswith("laptop"):
        size |= {"heads": 2, "layers": 1}
    return wrap_model(heedful.build(name, **size).eval(), (tokenizer,))


@pytest.fixture(scope="module")
def table(tokenizer: Tokenizer) -> TrainedModel:
    return wrap_model(
        heedful.build(WordVectorsConfig(family="word_vectors", vocabulary=len(tokenizer), width=16)), (tokenizer,)
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_company_changes_no_vector_whatever_the_family(name: str, tokenizer: Tokenizer) -> None:
    model = trained(name, tokenizer)
    together = model.embed(TEXTS)
    assert together.shape == (len(TEXTS), 16)
    assert np.isfinite(together).all()
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(model.embed(text), vector, rtol=1e-4, atol=1e-5)


def test_it_is_the_mean_of_the_encoders_states(tokenizer: Tokenizer) -> None:
    model = trained("laptop-translator", tokenizer)
    (ids,) = tokenizer.encode(TEXTS[:1])
    with torch.no_grad():
        states = model.model.encode(torch.tensor([[*ids, END]])).states[0]
    np.testing.assert_allclose(model.embed(TEXTS[0]), states.mean(0).numpy(), rtol=1e-4, atol=1e-5)


def test_word_vectors_of_a_text_are_averaged_and_unknown_words_have_no_part(
    table: TrainedModel, tokenizer: Tokenizer
) -> None:
    (ids,) = tokenizer.encode(["the dog"])
    expected = table.model.table.weight[ids].mean(0).detach().numpy()
    np.testing.assert_allclose(table.embed("the dog"), expected, rtol=1e-5)
    np.testing.assert_allclose(table.embed("the zebra dog"), expected, rtol=1e-5)
    (nothing,) = table.iter_embed(["zebra"])
    assert not nothing.vector.any()
    assert nothing.warnings == ("none of its words is known: the vector is zeros",)


def test_a_text_longer_than_the_model_reads_is_cut_off_with_a_warning(tokenizer: Tokenizer) -> None:
    model = trained("laptop-reader", tokenizer, positions="learned", max_length=8)
    long, short = model.iter_embed(["the cat sat on the mat on the mat", "the cat sat on the mat"])
    assert long.warnings == ("cut off after 6 of 9 tokens: the model reads no more",)
    assert short.warnings == ()
    np.testing.assert_allclose(long.vector, short.vector, rtol=1e-5, atol=1e-6)


def test_normalised_vectors_have_length_1_and_zeros_stay(table: TrainedModel) -> None:
    lengths = np.linalg.norm(table.embed(["the dog", "zebra"], normalise=True), axis=1)
    assert lengths.tolist() == pytest.approx([1, 0])


def test_a_stream_gives_what_it_has_when_no_more_is_waiting(table: TrainedModel) -> None:
    asked = []

    def stream() -> Any:
        for text in ("the dog", None, "a mat"):
            asked.append(text)
            yield text

    found = table.iter_embed(stream())
    assert next(found).text == "the dog"
    assert asked == ["the dog", None]


def test_cosines_are_between_minus_1_and_1_and_0_with_zeros() -> None:
    vectors = np.array([[2, 0], [0, 3], [-1, 0], [0, 0]], np.float32)
    assert cosine_similarities(vectors, np.array([1, 0], np.float32)).tolist() == [1, 0, -1, 0]


def test_no_texts_give_no_rows_and_a_model_without_a_tokenizer_is_refused(table: TrainedModel) -> None:
    assert table.embed([]).shape == (0, 16)
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        wrap_model(table.model).embed("a text")
