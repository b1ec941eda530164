"""What stands around a text: ours, or another vocabulary's, known by name."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models

from heedful.errors import UsageError
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.special_tokens import MASK, SEPARATOR, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig


def foreign(*tokens: str) -> Tokenizer:
    vocabulary = {token: place for place, token in enumerate(tokens)}
    return Tokenizer(RustTokenizer(models.WordLevel(vocabulary, unk_token=tokens[0])))


def test_one_text_or_two_are_framed_and_told_apart() -> None:
    frame = SpecialTokenTemplate()
    assert frame.wrap([10, 11]) == [START, 10, 11, SEPARATOR]
    assert frame.wrap([10, 11], [12]) == [START, 10, 11, SEPARATOR, 12, SEPARATOR]
    assert frame.segment_ids([10, 11], [12]) == [0, 0, 0, 0, 1, 1]
    assert len(frame.segment_ids([], [])) == len(frame.wrap([], []))


def test_our_vocabularies_have_our_ids_and_others_are_known_by_name() -> None:
    ours = Tokenizer.train(["a b"], TokenizerConfig(vocabulary=300))
    assert SpecialTokenTemplate.from_tokenizer(ours) == SpecialTokenTemplate(START, SEPARATOR, MASK)
    assert SpecialTokenTemplate.from_tokenizer(foreign("[UNK]", "a", "[MASK]", "[SEP]", "[CLS]")) == SpecialTokenTemplate(4, 3, 2)
    assert SpecialTokenTemplate.from_tokenizer(foreign("<unk>", "<mask>", "</s>", "<s>")) == SpecialTokenTemplate(3, 2, 1)
    with pytest.raises(UsageError, match=r"no tokens that start, end and mask"):
        SpecialTokenTemplate.from_tokenizer(foreign("<|endoftext|>", "a"))
