"""Text embeddings: the mean of any family's hidden states, independent of the batch."""

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


def make_model(name: str, tokenizer: Tokenizer, **changes: Any) -> TrainedModel:
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
def test_the_batch_does_not_change_vectors_of_any_family(name: str, tokenizer: Tokenizer) -> None:
    model = make_model(name, tokenizer)
    batched = model.embed(TEXTS)
    assert batched.shape == (len(TEXTS), 16)
    assert np.isfinite(batched).all()
    for text, vector in zip(TEXTS, batched, strict=True):
        np.testing.assert_allclose(model.embed(text), vector, rtol=1e-4, atol=1e-5)


def test_the_embedding_is_the_mean_of_the_encoder_states(tokenizer: Tokenizer) -> None:
    model = make_model("laptop-translator", tokenizer)
    (ids,) = tokenizer.encode(TEXTS[:1])
    with torch.no_grad():
        states = model.model.encode(torch.tensor([[*ids, END]])).states[0]
    np.testing.assert_allclose(model.embed(TEXTS[0]), states.mean(0).numpy(), rtol=1e-4, atol=1e-5)


def test_word_vectors_are_averaged_over_the_known_words(table: TrainedModel, tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode(["the dog"])
    expected = table.model.table.weight[ids].mean(0).detach().numpy()
    np.testing.assert_allclose(table.embed("the dog"), expected, rtol=1e-5)
    np.testing.assert_allclose(table.embed("the zebra dog"), expected, rtol=1e-5)
    (unknown,) = table.iter_embed(["zebra"])
    assert not unknown.vector.any()
    assert unknown.warnings == ("no word is in the vocabulary: the vector is zero",)


def test_a_text_beyond_the_maximum_length_is_truncated_with_a_warning(tokenizer: Tokenizer) -> None:
    model = make_model("laptop-reader", tokenizer, positions="learned", max_length=8)
    long, short = model.iter_embed(["the cat sat on the mat on the mat", "the cat sat on the mat"])
    assert long.warnings == ("truncated to the first 6 of 9 tokens, this model's maximum",)
    assert short.warnings == ()
    np.testing.assert_allclose(long.vector, short.vector, rtol=1e-5, atol=1e-6)


def test_normalized_vectors_have_length_1_and_zero_stays_zero(table: TrainedModel) -> None:
    lengths = np.linalg.norm(table.embed(["the dog", "zebra"], normalize=True), axis=1)
    assert lengths.tolist() == pytest.approx([1, 0])


def test_none_in_a_stream_flushes(table: TrainedModel) -> None:
    taken = []

    def stream() -> Any:
        for text in ("the dog", None, "a mat"):
            taken.append(text)
            yield text

    results = table.iter_embed(stream())
    assert next(results).text == "the dog"
    assert taken == ["the dog", None]


def test_cosine_similarity_is_in_minus_1_to_1_and_0_with_a_zero_vector() -> None:
    vectors = np.array([[2, 0], [0, 3], [-1, 0], [0, 0]], np.float32)
    assert cosine_similarities(vectors, np.array([1, 0], np.float32)).tolist() == [1, 0, -1, 0]


def test_no_texts_give_no_rows_and_a_missing_tokenizer_is_an_error(table: TrainedModel) -> None:
    assert table.embed([]).shape == (0, 16)
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        wrap_model(table.model).embed("a text")
