"""Text to token ids and back (E1).

The vocabulary is learnt from the training text, and everything needed to encode and decode lives in one
`tokenizer.json`. Special tokens are never read from text: text that says "<s>" is three ordinary characters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders

from heedful.errors import CheckpointError, DataError, HeedfulError, UsageError
from heedful.files import write_atomic
from heedful.text.tokenizer_kinds import BYTES, TokenizerConfig, train_tokenizer, infer_config

__all__ = ["TokenSpan", "Tokenizer", "TokenizerConfig"]


class TokenSpan(NamedTuple):
    """A token and the characters it stands for: text[start:end], a leading space included."""

    token: int
    start: int
    end: int


class Tokenizer:
    """Encodes and decodes batches of text. Make one with `train` or `load`."""

    def __init__(self, rust: RustTokenizer) -> None:
        rust.encode_special_tokens = True  # in the library's sense: as the plain text they are
        rust.no_truncation()
        rust.no_padding()
        self._rust = rust

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
        """Learn a vocabulary. `texts` is read once, as a stream; only counts of its distinct words are held.

        The same texts give the same tokenizer, byte for byte.
        """
        try:
            return cls(train_tokenizer(_some(texts), config))
        except UnicodeEncodeError as error:
            raise DataError(_not_unicode(error)) from None

    def encode(self, texts: Sequence[str], *, at_start: bool = True) -> list[list[int]]:
        """The ids of each text, without special tokens; texts are encoded in parallel.

        Unless they are `opening`, they go on where another text stopped: the space that some vocabularies put before
        every text is left out.
        """
        if isinstance(texts, str):
            raise UsageError("encode takes a list of texts, got one string; put it in a list")
        rust = self._rust if at_start else self._going_on
        try:
            return [found.ids for found in rust.encode_batch_fast(texts, add_special_tokens=False)]
        except TypeError:
            raise _refusal(texts) from None

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids; special tokens are dropped."""
        for ids in batch:
            self._check(ids)
        return self._rust.decode_batch(batch, skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token as a person would read it, a leading space included.

        Bytes that are no whole character read \\xNN, special tokens their names; a foreign vocabulary's "##" stays.
        """
        self._check(ids)
        tokens = [self._rust.id_to_token(token) or "" for token in ids]
        if isinstance(self._rust.decoder, decoders.ByteLevel):
            return [_spelt(token) for token in tokens]
        return [token.replace("▁", " ") for token in tokens]

    def token_bytes(self, ids: Sequence[int], *, at_start: bool = False) -> list[bytes]:
        """The bytes that each token adds to a text, a leading space included.

        `opening`: to a text without any, where the space that some vocabularies put before every word is left out.
        """
        self._check(ids)
        if isinstance(self._rust.decoder, decoders.ByteLevel):
            tokens = ["" if token in self.special_ids else self._rust.id_to_token(token) or "" for token in ids]
            return [bytes(BYTES[char] for char in token) if BYTES.keys() >= {*token} else b"" for token in tokens]
        if at_start:
            return [text.encode() for text in self.decode([[token] for token in ids])]
        before = len(self) - 1  # any token will do
        (alone,), pairs = self.decode([[before]]), self.decode([[before, token] for token in ids])
        return [pair[len(alone) :].encode() for pair in pairs]

    @cached_property
    def _going_on(self) -> RustTokenizer:
        """The same, but that nothing is put before a text."""
        described = json.loads(self.to_json())
        steps = (described["normalizer"] or {}).get("normalizers", ())
        if not any(step["type"] == "Prepend" for step in steps):
            return self._rust
        described["normalizer"]["normalizers"] = [step for step in steps if step["type"] != "Prepend"]
        return Tokenizer.from_json(json.dumps(described))._rust

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of tokens that are no text."""
        added = self._rust.get_added_tokens_decoder()
        return frozenset(token for token, how in added.items() if how.special)

    def spans(self, text: str) -> list[TokenSpan]:
        """The tokens of one text, each with the characters it covers; together they cover the text.

        Tokens that share a character (the bytes of a rare "愛") each cover all of it.
        """
        try:
            found = self._rust.encode(text, add_special_tokens=False)
        except TypeError:
            raise _refusal([text]) from None
        spans = [TokenSpan(token, start, end) for token, (start, end) in zip(found.ids, found.offsets, strict=True)]
        if len(spans) > 1 and found.tokens[0] == "▁" and spans[1].start == 0:
            spans[0] = spans[0]._replace(end=0)  # the space put before every text is not in the text
        return spans

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write tokenizer.json; the file appears whole or not at all."""
        file = Path(path)
        write_atomic(file, self._rust.to_str(pretty=True) + "\n")
        return file

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer in a tokenizer.json: ours, or anyone's (with special tokens of its own)."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, CheckpointError) as error:
            raise CheckpointError(f"{os.fspath(path)} cannot be loaded as a tokenizer: {error}") from None

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The tokenizer that `to_json` wrote down."""
        try:
            return cls(RustTokenizer.from_str(text))
        except Exception as error:  # the library's own are of no narrower type
            raise CheckpointError(f"not a tokenizer.json: {error}") from None

    @property
    def config(self) -> TokenizerConfig:
        """What it was made as: kind, size and how it changes text."""
        return infer_config(json.loads(self.to_json()), len(self))

    @property
    def tokens(self) -> list[str]:
        """The vocabulary as it is spelt in tokenizer.json, by id; `pieces` are for people."""
        return [self._rust.id_to_token(token) or f"<{token}>" for token in range(len(self))]

    def to_json(self) -> str:
        """The whole tokenizer as text, the same for equal tokenizers: it can be stored and hashed."""
        return self._rust.to_str()

    def __len__(self) -> int:
        return self._rust.get_vocab_size(with_added_tokens=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self) -> tuple[Callable[[str], Tokenizer], tuple[str]]:
        return Tokenizer.from_json, (self.to_json(),)

    def _check(self, ids: Sequence[int]) -> None:
        """The library would drop an id it does not know without a word."""
        if len(ids) and not 0 <= min(ids) <= max(ids) < len(self):
            raise UsageError(f"token ids go from 0 to {len(self) - 1}, got {min(ids)} to {max(ids)}")


def _some(texts: Iterable[str]) -> Iterator[str]:
    """The same texts, and an error if there was nothing in them."""
    found = False
    for text in texts:
        found = found or bool(text.strip())
        yield text
    if not found:
        raise DataError("there is no text to train a tokenizer on: nothing was given, or blanks only")


def _spelt(token: str) -> str:
    """A byte-level token as the text its bytes spell."""
    if not BYTES.keys() >= set(token):
        return token
    return bytes(BYTES[char] for char in token).decode("utf-8", errors="backslashreplace")


def _refusal(texts: Sequence[Any]) -> HeedfulError:
    """Why the library would not take these texts."""
    for text in texts:
        if not isinstance(text, str):
            return UsageError(f"a text must be a string, got {type(text).__name__} {text!r:.60}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return DataError(_not_unicode(error))
    return UsageError(f"texts must be a list of strings, got {type(texts).__name__}")


def _not_unicode(error: UnicodeEncodeError) -> str:
    near = error.object[max(0, error.start - 20) : error.end + 20]
    return f"half a surrogate pair is not text: character {error.start}, in {near!a}; decode the data as UTF-8"
