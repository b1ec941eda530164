"""Word tables from the token embeddings of trained models."""

from __future__ import annotations

from heedful.errors import UsageError
from heedful.models.build import Model
from heedful.text.tokenizer import Tokenizer
from heedful.vectors.nearest_neighbors import WordTable


def word_table_from_model(model: Model, tokenizer: Tokenizer, name: str) -> WordTable:
    """Collect the tokens that are whole words, each with its row of the model's embedding table.

    Only tokens that begin a word and contain a letter or a digit are used; vocabularies mark tokens that begin a word
    (" king") or tokens that continue one ("##ing"). If two tokens read the same, the first is used.
    """
    ids = _word_ids(tokenizer, len(model.table.weight))
    if not ids:
        raise UsageError(f"{name}: none of its tokens is a word; word vectors need a model with word tokens")
    table = model.table.weight.detach()[list(ids.values())].float().cpu().numpy()
    return WordTable(list(ids), table, name)


def _word_ids(tokenizer: Tokenizer, rows: int) -> dict[str, int]:
    ids = range(min(len(tokenizer), rows))
    pieces = tokenizer.pieces(ids)
    marks_words = any(piece.startswith(" ") and piece.strip() for piece in pieces)
    words: dict[str, int] = {}
    for token, piece in zip(ids, pieces, strict=True):
        begins_word = piece.startswith(" ") if marks_words else not piece.startswith("##")
        word = piece.strip()
        if begins_word and token not in tokenizer.special_ids and any(char.isalnum() for char in word):
            words.setdefault(word, token)
    return words
