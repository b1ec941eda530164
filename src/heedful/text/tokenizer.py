"""Text to token ids and back (E1).

The vocabulary is trained on the training text, and everything needed to encode and decode lives in one
`tokenizer.json`. Special tokens are never parsed from text: "<s>" in a text is three ordinary characters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders

from heedful.errors import CheckpointError, DataError, HeedfulError, UsageError
from heedful.files import write_listed
from heedful.text.tokenizer_kinds import BYTES, TokenizerConfig, infer_config, train_tokenizer
from heedful.text.tokenizer_limits import check_size, check_tokenizer
from heedful.untrusted_files import parse_json_object, read_bounded

__all__ = ["TokenSpan", "Tokenizer", "TokenizerConfig"]


class TokenSpan(NamedTuple):
    """A token and the characters it covers: text[start:end], including a leading space."""

    token: int
    start: int
    end: int


class Tokenizer:
    """Encode and decode batches of text; create with `train` or `load`."""

    def __init__(self, rust: RustTokenizer) -> None:
        rust.encode_special_tokens = True  # the library's name for: encode them as plain text
        rust.no_truncation()
        rust.no_padding()
        self._rust = rust

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
        """Train a vocabulary. `texts` is streamed once; only counts of its distinct words are held in memory.

        Deterministic: the same texts give the same tokenizer, byte for byte.
        """
        try:
            return cls(train_tokenizer(_require_text(texts), config))
        except UnicodeEncodeError as error:
            raise DataError(_surrogate_message(error)) from None

    def encode(self, texts: Sequence[str], *, at_start: bool = True) -> list[list[int]]:
        """Return the ids of each text, without special tokens; texts are encoded in parallel.

        `at_start=False`: the texts continue another, so the space that some vocabularies put before every text is left
        out.
        """
        if isinstance(texts, str):
            raise UsageError("encode takes a list of texts, got one string; put it in a list")
        rust = self._rust if at_start else self._without_prefix
        try:
            with library_errors():
                return [encoding.ids for encoding in rust.encode_batch_fast(texts, add_special_tokens=False)]
        except TypeError:
            raise _invalid_text(texts) from None

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence of ids, without special tokens."""
        for ids in batch:
            self._check(ids)
        with library_errors():
            return self._rust.decode_batch(batch, skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each token as readable text, including a leading space.

        Incomplete characters read \\xNN, special tokens their names; "##" of imported vocabularies stays.
        """
        self._check(ids)
        tokens = [self._rust.id_to_token(token) or "" for token in ids]
        if isinstance(self._rust.decoder, decoders.ByteLevel):
            return [_readable(token) for token in tokens]
        return [token.replace("▁", " ") for token in tokens]

    def token_bytes(self, ids: Sequence[int], *, at_start: bool = False) -> list[bytes]:
        """Return the UTF-8 bytes that each token adds to a text, including a leading space.

        `at_start`: for the first token of a text, where decoding drops that space.
        """
        self._check(ids)
        if isinstance(self._rust.decoder, decoders.ByteLevel):
            tokens = ["" if token in self.special_ids else self._rust.id_to_token(token) or "" for token in ids]
            return [bytes(BYTES[char] for char in token) if BYTES.keys() >= {*token} else b"" for token in tokens]
        if at_start:
            return [text.encode() for text in self.decode([[token] for token in ids])]
        previous = len(self) - 1  # any token will do
        (prefix,), pairs = self.decode([[previous]]), self.decode([[previous, token] for token in ids])
        return [pair[len(prefix) :].encode() for pair in pairs]

    @cached_property
    def _without_prefix(self) -> RustTokenizer:
        """The same tokenizer without the space put before every text."""
        described = json.loads(self.to_json())
        steps = (described["normalizer"] or {}).get("normalizers", ())
        if not any(step["type"] == "Prepend" for step in steps):
            return self._rust
        described["normalizer"]["normalizers"] = [step for step in steps if step["type"] != "Prepend"]
        return Tokenizer.from_json(json.dumps(described))._rust

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens."""
        added = self._rust.get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    @cached_property
    def has_space_prefixes(self) -> bool:
        """Whether tokens include the space before a word; a mask then stands for that space, too."""
        return any(piece[:1] == " " and piece.strip() for piece in self.pieces(range(len(self))))

    def spans(self, text: str) -> list[TokenSpan]:
        """Return the tokens of one text with the characters each covers; together they cover the text.

        Tokens that share a character (the bytes of a rare "愛") each cover all of it.
        """
        try:
            with library_errors():
                encoding = self._rust.encode(text, add_special_tokens=False)
        except TypeError:
            raise _invalid_text([text]) from None
        spans = [
            TokenSpan(token, start, end) for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
        ]
        if len(spans) > 1 and encoding.tokens[0] == "▁" and spans[1].start == 0:
            spans[0] = spans[0]._replace(end=0)  # the space put before every text is not part of it
        return spans

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write tokenizer.json atomically; in a model folder it becomes the model's."""
        file = Path(path)
        write_listed(file, self.to_file())
        return file

    def to_file(self) -> str:
        """The content of tokenizer.json."""
        return self._rust.to_str(pretty=True) + "\n"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Load a tokenizer.json, trained here or elsewhere (then with its own special tokens)."""
        file = Path(path)
        try:
            content = read_bounded(file)
        except FileNotFoundError:
            raise CheckpointError(f"{file} cannot be loaded as a tokenizer: it does not exist") from None
        return cls.from_untrusted(content, file)

    @classmethod
    def from_untrusted(cls, content: bytes, file: Path, rows: int | None = None) -> Tokenizer:
        """Load the content of an untrusted tokenizer.json, after `check_tokenizer`; `rows`: size of the token table."""
        with naming(file):
            check_size(len(content), rows)
        described = parse_json_object(content, file)
        with naming(file):
            check_tokenizer(described, rows)
            return cls.from_json(content.decode())

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Load the text of a tokenizer.json."""
        try:
            return cls(RustTokenizer.from_str(text))
        except Exception as error:  # the library raises no narrower type
            raise CheckpointError(f"not a tokenizer.json: {error}") from None

    @property
    def config(self) -> TokenizerConfig:
        """Kind, size and normalization."""
        return infer_config(json.loads(self.to_json()), len(self))

    @property
    def tokens(self) -> list[str]:
        """The vocabulary as written in tokenizer.json, by id; `pieces` are readable."""
        return [self._rust.id_to_token(token) or f"<{token}>" for token in range(len(self))]

    def to_json(self) -> str:
        """Serialize; equal tokenizers give equal text, which can be stored and hashed."""
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
        """Raise for unknown ids, which the library would silently drop."""
        if len(ids) and not 0 <= min(ids) <= max(ids) < len(self):
            raise UsageError(f"token ids go from 0 to {len(self) - 1}, got {min(ids)} to {max(ids)}")


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Name the file in errors about its content."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{file} cannot be loaded as a tokenizer: {error}") from None


@contextmanager
def library_errors() -> Iterator[None]:
    """Raise CheckpointError for an error of the Rust library, or a panic, which no `except Exception` would catch."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"the tokenizer failed on this text, its tokenizer.json may be damaged: {error}"
        ) from None


def _require_text(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts; raise if all were empty."""
    any_text = False
    for text in texts:
        any_text = any_text or bool(text.strip())
        yield text
    if not any_text:
        raise DataError("there is no text to train a tokenizer on: it is blank, or so little that all is held out")


@lru_cache(100_000)
def _readable(token: str) -> str:
    """Decode a byte-level token."""
    if not BYTES.keys() >= set(token):
        return token
    return bytes(BYTES[char] for char in token).decode("utf-8", errors="backslashreplace")


def _invalid_text(texts: Sequence[Any]) -> HeedfulError:
    """Explain why the library refused these texts."""
    for text in texts:
        if not isinstance(text, str):
            return UsageError(f"a text must be a string, got {type(text).__name__} {text!r:.60}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return DataError(_surrogate_message(error))
    return UsageError(f"texts must be a list of strings, got {type(texts).__name__}")


def _surrogate_message(error: UnicodeEncodeError) -> str:
    context = error.object[max(0, error.start - 20) : error.end + 20]
    return f"the text has an unpaired surrogate at character {error.start}, in {context!a}; decode the data as UTF-8"
