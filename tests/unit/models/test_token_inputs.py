"""Models called with invalid token ids raise one clear UsageError, never an error of torch."""

from __future__ import annotations

from typing import Any

import jaxtyping
import pytest
import torch

import heedful
from heedful.errors import UsageError
from heedful.models.model_config import WordVectorsConfig

SIZE: dict[str, Any] = {"vocabulary": 9, "width": 16, "layers": 1}
IDS = torch.ones(2, 4, dtype=torch.long)


@pytest.fixture(autouse=True)
def _types_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(params=["laptop-writer", "laptop-reader", "recurrent_decoder"])
def model(request: pytest.FixtureRequest) -> Any:
    if request.param == "recurrent_decoder":
        return heedful.build(heedful.RecurrentConfig(family="recurrent_decoder", **SIZE))
    return heedful.build(request.param, heads=2, **SIZE)


@pytest.fixture(params=["laptop-translator", "recurrent_encoder_decoder"])
def translator(request: pytest.FixtureRequest) -> Any:
    if request.param == "recurrent_encoder_decoder":
        return heedful.build(heedful.RecurrentConfig(family="recurrent_encoder_decoder", **SIZE))
    return heedful.build(request.param, heads=2, **SIZE)


WRONG = {
    "a list": ([[1, 2]], r"must be a tensor of token ids, got a list; make one with torch\.tensor"),
    "nothing": (None, "must be a tensor of token ids, got a NoneType"),
    "floats": (IDS.float(), r"must be token ids, integers, got torch\.float32; convert them with \.long\(\)"),
    "booleans": (IDS.bool(), r"must be token ids, integers, got torch\.bool"),
    "one text": (IDS[0], r"must have the axes batch × tokens, got shape \(4,\); add the batch axis"),
    "three axes": (IDS[None], r"must have the axes batch × tokens, got shape \(1, 2, 4\)$"),
    "another device": (IDS.to("meta"), "is on meta, the model on cpu; move one of them"),
    "an id too large": (IDS * 9, "token id 9 is outside the vocabulary of 9 "),
    "a negative id": (-IDS, "token id -1 is outside the vocabulary of 9 "),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_tokens_that_are_not_a_batch_of_ids_are_refused(model: Any, wrong: str) -> None:
    tokens, message = WRONG[wrong]
    with pytest.raises(UsageError, match=message):
        model(tokens)


@pytest.mark.parametrize("wrong", WRONG)
def test_sources_and_targets_that_are_not_batches_of_ids_are_refused(translator: Any, wrong: str) -> None:
    tokens, message = WRONG[wrong]
    with pytest.raises(UsageError, match=message):
        translator(tokens, IDS)
    with pytest.raises(UsageError, match=message):
        translator(IDS, tokens)


def test_sources_and_targets_come_in_pairs(translator: Any) -> None:
    with pytest.raises(UsageError, match="source has 2 sequences, target 1; each source needs one target"):
        translator(IDS, IDS[:1])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([4, 2], "lengths must be a tensor of integers, one for each of the 2 sequences; got a list"),
        (torch.ones(3, dtype=torch.long), r"one for each of the 2 sequences; got torch\.int64 of shape \(3,\)"),
        (torch.ones(2), r"got torch\.float32 of shape \(2,\)"),
    ],
)
def test_lengths_are_one_number_for_each_sequence(translator: Any, lengths: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        translator(IDS, IDS, lengths)


def test_words_of_word_vectors_are_ids_of_the_table() -> None:
    vectors = heedful.build(WordVectorsConfig(family="word_vectors", vocabulary=9, width=4))
    with pytest.raises(UsageError, match="words must be token ids, integers, got"):
        vectors(IDS.float())
    with pytest.raises(UsageError, match="word id 9 is outside the vocabulary of 9"):
        vectors(IDS * 9)


def test_segments_are_one_number_for_each_token() -> None:
    model = heedful.build("laptop-reader", heads=2, segments=2, **SIZE)
    with pytest.raises(UsageError, match=r"segments must be integers, one for each of 2 × 4 tokens; got .* \(2, 3\)"):
        model(IDS, segments=IDS[:, :3])


@pytest.mark.gpu
def test_ids_outside_the_table_leave_a_gpu_usable(model: Any) -> None:
    """A kernel that reads beyond a table would make every later call of the process fail."""
    on_gpu, ids = model.cuda().eval(), IDS.cuda()
    for wrong in (ids * 9, -ids):
        with pytest.raises(UsageError, match="is outside the vocabulary of 9"):
            on_gpu(wrong)
    assert on_gpu(ids).isfinite().all()
