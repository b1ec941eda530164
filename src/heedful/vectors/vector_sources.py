"""Whose vectors: those of a table of word vectors, of any trained model's tokens, or of a file from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heedful.errors import UsageError
from heedful.interop.word2vec_format import read_word2vec
from heedful.text.tokenizer import Tokenizer
from heedful.vectors.nearest_neighbors import WordTable


def load_word_table(file: Path) -> WordTable:
    """A word2vec file, text or binary."""
    return WordTable(*read_word2vec(file), name=str(file))


def word_table_from_model(model: Any, tokenizer: Tokenizer, name: str) -> WordTable:
    """The tokens that are words, each with its row of the model's table.

    Where a vocabulary marks the tokens that begin a word (" king"), or those that do not ("##ing"), only those that
    begin one are taken; and none without a letter or a digit. Of two that read the same, the first.
    """
    found = _whole_words(tokenizer, len(model.table.weight))
    if not found:
        raise UsageError(f"{name}: none of its tokens is a word, so there is none to look up")
    table = model.table.weight.detach()[list(found.values())].float().cpu().numpy()
    return WordTable(list(found), table, name)


def _whole_words(tokenizer: Tokenizer, rows: int) -> dict[str, int]:
    ids = range(min(len(tokenizer), rows))
    pieces = tokenizer.pieces(ids)
    marked = any(piece.startswith(" ") and piece.strip() for piece in pieces)
    found: dict[str, int] = {}
    for token, piece in zip(ids, pieces, strict=True):
        begins = piece.startswith(" ") if marked else not piece.startswith("##")
        word = piece.strip()
        if begins and token not in tokenizer.special_ids and any(char.isalnum() for char in word):
            found.setdefault(word, token)
    return found
