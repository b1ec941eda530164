"""Special-token templates of our vocabularies and of imported ones."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models

from heedful.errors import UsageError
from heedful.text.special_token_template import SpecialTokenTemplate
from heedful.text.special_tokens import MASK, SEPARATOR, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig


def imported(*tokens: str) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return Tokenizer(RustTokenizer(models.WordLevel(vocabulary, unk_token=tokens[0])))


def test_wrap_and_segment_ids_of_one_and_two_texts() -> None:
    template = SpecialTokenTemplate()
    assert template.wrap([10, 11]) == [START, 10, 11, SEPARATOR]
    assert template.wrap([10, 11], [12]) == [START, 10, 11, SEPARATOR, 12, SEPARATOR]
    assert template.segment_ids([10, 11], [12]) == [0, 0, 0, 0, 1, 1]
    assert len(template.segment_ids([], [])) == len(template.wrap([], []))


def test_template_ids_of_our_vocabulary_and_of_imported_ones() -> None:
    ours = Tokenizer.train(["a b"], TokenizerConfig(vocabulary=300))
    assert SpecialTokenTemplate.from_tokenizer(ours) == SpecialTokenTemplate(START, SEPARATOR, MASK)
    assert SpecialTokenTemplate.from_tokenizer(
        imported("[UNK]", "a", "[MASK]", "[SEP]", "[CLS]")
    ) == SpecialTokenTemplate(4, 3, 2)
    assert SpecialTokenTemplate.from_tokenizer(imported("<unk>", "<mask>", "</s>", "<s>")) == SpecialTokenTemplate(
        3, 2, 1
    )
    with pytest.raises(UsageError, match=r"no tokens that start, end and mask"):
        SpecialTokenTemplate.from_tokenizer(imported("<|endoftext|>", "a"))
