"""MaskFiller: probabilities are the model's, results do not depend on the batch, whatever the vocabulary."""

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


def make_filler(kind: str = "byte_bpe", **settings: Any) -> MaskFiller:
    tokenizer = Tokenizer.train(TEXT, TokenizerConfig(kind=kind, vocabulary=600))
    shape = {"width": 16, "layers": 1, "heads": 2, "max_length": 32, "vocabulary": len(tokenizer) + 2}
    return MaskFiller(heedful.build("laptop-reader", **shape, **settings).eval(), (tokenizer,))


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "wordpiece", "words"])
def test_a_mask_stands_for_a_word_and_the_space_before_it(kind: str) -> None:
    filler = make_filler(kind)
    tokens = filler.tokenizer.encode(["The grass was green, and"])[0]
    (masked,) = filler.tokenizer.encode([" green"], at_start=False)[0][:1]
    position = tokens.index(masked)
    if filler.tokenizer.encode([" green"], at_start=False)[0] == [masked]:
        expected = [START, *tokens[:position], MASK, *tokens[position + 1 :], SEPARATOR]
        assert filler.encode("The grass was [MASK], and") == expected
        assert filler.encode("The grass was <mask>, and") == expected


def test_guesses_are_sorted_model_probabilities_without_special_tokens() -> None:
    filler = make_filler()
    (guesses,) = filler.fill("The grass was [MASK].", top=200).guesses
    ids = torch.tensor([filler.encode("The grass was [MASK].")])
    position = ids[0].tolist().index(MASK)
    logits = filler.model.apply_head("masked_token", filler.model(ids))[0, position]
    expected = logits.softmax(-1)[len(SPECIAL_TOKENS) : len(filler.tokenizer)].sort(descending=True).values
    torch.testing.assert_close(torch.tensor([probability for _, probability in guesses]), expected[:200])
    assert not {word for word, _ in guesses} & {*SPECIAL_TOKENS}
    assert sum(probability for _, probability in guesses) < 1


def test_the_batch_does_not_change_results_and_blank_texts_stay_blank() -> None:
    filler = make_filler()
    texts = ["[MASK] grass", "", "The sky was [MASK], and the [MASK] was green. All [MASK].", "was [MASK]"]
    batched = filler.fill(texts)
    assert [len(result.guesses) for result in batched] == [1, 0, 3, 1]
    assert batched[1].filled == ""
    assert [result.filled for result in filler.iter_fill(iter(texts))] == [result.filled for result in batched]
    for text, result in zip(texts, batched, strict=True):
        single = filler.fill(text)
        assert single.filled == result.filled
        for alone, together in zip(single.guesses, result.guesses, strict=True):
            assert [guess.word for guess in alone] == [guess.word for guess in together]
            assert [guess.probability for guess in alone] == pytest.approx([g.probability for g in together], rel=1e-4)


def test_the_filled_text_has_the_best_word_at_each_mask() -> None:
    filler = make_filler()
    (green,) = filler.tokenizer.encode([" green"])[0]
    with torch.no_grad():
        filler.model.heads["masked_token"].tokens.bias[green] = 1e3
    result = filler.fill("The [MASK] was [MASK].")
    assert result.filled == "The green was green."
    assert result.to_json()["guesses"][1][0] == {"word": "green", "probability": pytest.approx(1.0)}


def test_a_text_that_cannot_be_filled_is_an_error() -> None:
    filler = make_filler()
    with pytest.raises(UsageError, match=r"no \[MASK\] to fill in 'The grass'"):
        filler.fill(["The grass"])
    with pytest.raises(UsageError, match=r"tokens is longer than this model's 32"):
        filler.fill(["The grass " * 40 + "[MASK]"])
    with pytest.raises(UsageError, match="top must be between 1 and"):
        filler.fill("[MASK] grass", top=0)
