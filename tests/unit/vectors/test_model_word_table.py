"""Word tables from the vocabularies of models."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models

import heedful
from heedful.errors import UsageError
from heedful.loading import wrap_model
from heedful.text.tokenizer import Tokenizer, TokenizerConfig
from heedful.vectors.model_word_table import word_table_from_model

TEXT = ["the king and the queen walked, the king talked; walking and talking."] * 9


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "wordpiece", "words", "bare_words"])
def test_word_table_has_the_embedding_row_of_each_word(kind: str) -> None:
    tokenizer = Tokenizer.train(TEXT, TokenizerConfig(kind=kind, vocabulary=330))
    model = heedful.build("laptop-writer", vocabulary=len(tokenizer), width=16, heads=2, layers=1)
    words = wrap_model(model, (tokenizer,)).words
    assert {"king", "queen", "the"} <= set(words)
    assert not {"<unk>", "<s>", ",", "", " "} & set(words)
    (ids,) = tokenizer.encode(["and king"])
    row = model.table.weight[ids[-1]].detach().numpy()
    np.testing.assert_array_equal(words.table[words.index("king")], row)


def test_continuation_pieces_are_left_out() -> None:
    rust = Rust(models.WordPiece({"[UNK]": 0, "king": 1, "##s": 2, "!": 3}, unk_token="[UNK]"))
    rust.decoder = decoders.WordPiece()
    rust.add_special_tokens(["[UNK]"])
    model = heedful.build("laptop-reader", vocabulary=4, width=16, heads=2, layers=1)
    assert list(word_table_from_model(model, Tokenizer(rust), "it")) == ["king"]


def test_vocabulary_without_words_is_refused() -> None:
    rust = Rust(models.WordLevel({"!": 0, "?": 1}, unk_token="?"))
    model = heedful.build("laptop-reader", vocabulary=2, width=16, heads=2, layers=1)
    with pytest.raises(UsageError, match="none of its tokens is a word"):
        word_table_from_model(model, Tokenizer(rust), "it")
