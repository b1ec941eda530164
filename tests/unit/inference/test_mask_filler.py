"""Gaps filled: the likeliest words first, each text as it would be alone, whatever the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import heedful
from heedful.errors import UsageError
from heedful.inference.mask_filler import MaskFiller
from heedful.text.special_tokens import MASK, SEPARATOR, SPECIAL_TOKENS, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

TEXT = ["The grass was green, and the sky was blue. Red wine, white bread: all well."] * 3


def filler(kind: str = "byte_bpe", top: int = 5, **settings: Any) -> MaskFiller:
    tokenizer = Tokenizer.train(TEXT, TokenizerConfig(kind=kind, vocabulary=600))
    shape = {"width": 16, "layers": 1, "heads": 2, "max_length": 32, "vocabulary": len(tokenizer) + 2}
    model = heedful.build("laptop-reader", **shape, **settings).eval()
    return MaskFiller(model, tokenizer, top=top)


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "wordpiece", "words"])
def test_a_gap_stands_for_a_word_and_the_space_before_it(kind: str) -> None:
    found = filler(kind)
    whole = found.tokenizer.encode(["The grass was green, and"])[0]
    (gone,) = found.tokenizer.encode([" green"], at_start=False)[0][:1]
    at = whole.index(gone)
    if found.tokenizer.encode([" green"], at_start=False)[0] == [gone]:
        expected = [START, *whole[:at], MASK, *whole[at + 1 :], SEPARATOR]
        assert found.ids("The grass was [MASK], and") == expected
        assert found.ids("The grass was <mask>, and") == expected


def test_guesses_are_the_models_probabilities_in_order_without_special_tokens() -> None:
    found = filler(top=200)
    (answer,) = found.fill(["The grass was [MASK]."])
    (guesses,) = answer.guesses
    ids = torch.tensor([found.ids("The grass was [MASK].")])
    place = ids[0].tolist().index(MASK)
    logits = found.model.apply_head("masked_token", found.model(ids))[0, place]
    chances = logits.softmax(-1)[len(SPECIAL_TOKENS) : len(found.tokenizer)].sort(descending=True).values
    torch.testing.assert_close(torch.tensor([chance for _, chance in guesses]), chances[:200])
    assert not {word for word, _ in guesses} & {*SPECIAL_TOKENS}
    assert sum(chance for _, chance in guesses) < 1


def test_a_text_is_filled_in_company_as_it_is_alone_and_blank_lines_stay() -> None:
    found = filler()
    texts = ["[MASK] grass", "", "The sky was [MASK], and the [MASK] was green. All [MASK].", "was [MASK]"]
    together = found.fill(texts)
    assert [len(answer.guesses) for answer in together] == [1, 0, 3, 1]
    assert together[1].filled == ""
    for text, answer in zip(texts, together, strict=True):
        (alone,) = found.fill([text])
        assert alone.filled == answer.filled
        for ours, theirs in zip(alone.guesses, answer.guesses, strict=True):
            assert [word for word, _ in ours] == [word for word, _ in theirs]
            assert [chance for _, chance in ours] == pytest.approx([chance for _, chance in theirs], rel=1e-4)


def test_the_filled_text_has_the_first_word_of_each_gap() -> None:
    found = filler()
    (green,) = found.tokenizer.encode([" green"])[0]
    with torch.no_grad():
        found.model.heads["masked_token"].tokens.bias[green] = 1e3
    (answer,) = found.fill(["The [MASK] was [MASK]."])
    assert answer.filled == "The green was green."
    assert answer.to_json()["guesses"][1][0] == {"word": "green", "probability": pytest.approx(1.0)}


def test_what_cannot_be_filled_is_told() -> None:
    found = filler()
    with pytest.raises(UsageError, match=r"no \[MASK\] to fill in 'The grass'"):
        found.fill(["The grass"])
    with pytest.raises(UsageError, match=r"tokens is longer than the 32 this model reads"):
        found.fill(["The grass " * 40 + "[MASK]"])
    with pytest.raises(UsageError, match="top must lie between 1 and"):
        filler(top=0)
