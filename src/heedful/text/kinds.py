"""The five kinds of tokenizer, each assembled from the parts of the Rust `tokenizers` library (E1).

A kind is a choice of where tokens may not cross (the pattern), how tokens are found (the model) and learnt (the
trainer), and how text is put together again (the decoder).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from pydantic import PositiveInt, model_validator
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from heedful.config import Config
from heedful.text.special import SPECIAL_TOKENS, UNKNOWN

# For byte_bpe and unigram: a word (with the marks that Thai and Indic vowels are, and with inner apostrophes), up to
# three digits, other signs, or blanks; a space goes with what follows it. It is GPT-2's pattern without its list of
# English endings. "▁" stands for a space. Letters never join signs, so no learnt piece can spell "<s>" and take
# the special token's id.
SUBWORDS = (
    r"[ ▁]?[\p{L}\p{M}]+(?:['’][\p{L}\p{M}]+)*|[ ▁]?\p{N}{1,3}|[ ▁]?[^\s▁\p{L}\p{M}\p{N}]+"
    r"|[\s▁]+(?![^\s▁])|[\s▁]+"
)
# For words and wordpiece: a number with its points, one Han character, a word with inner apostrophes and hyphens,
# one sign, or one blank.
_LETTERS = r"[\p{L}\p{M}\p{N}&&[^\p{Han}]]+"
WORDS = (
    rf"▁?(?:\p{{N}}+(?:[.,:/]\p{{N}}+)+|\p{{Han}}|{_LETTERS}(?:['’-]{_LETTERS})*)"
    r"|▁?[^\s▁\p{L}\p{M}\p{N}]|[\s▁]"
)

# GPT-2's table: the 256 printable characters that stand for bytes in a byte-level vocabulary.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}


class TokenizerConfig(Config):
    """What a token is.

    - `byte_bpe`: byte-level BPE. Any text comes back exactly, in any language; nothing is ever unknown.
    - `unigram`: pieces of words, chosen by probability (Kudo 2018).
    - `wordpiece`: pieces of words, the longest first, from the vocabulary BPE would learn. It departs from BERT's in
      its marks: a piece that opens a word carries the word's space, so no other needs "##".
    - `words`: words and signs.
    - `characters`: characters (code points).

    In the last four, what training never saw becomes <unk>, which decoding drops: a character in `characters` and
    `unigram`, a word with such a character in `wordpiece`, a word in `words`. All else comes back exactly, spaces
    too, but for "▁" (U+2581): it stands for a space in all but `characters`, and turns into one. For languages
    written without spaces take byte_bpe, unigram or characters.
    """

    kind: Literal["byte_bpe", "unigram", "wordpiece", "words", "characters"] = "byte_bpe"
    vocabulary: PositiveInt
    """The size wished for, special tokens included; little text gives fewer."""
    lowercase: bool = False
    normalise: Literal["none", "nfc", "nfkc"] = "none"
    """Unicode normalisation; what it and `lowercase` change does not come back."""

    @model_validator(mode="after")
    def _room_for_the_fixed_part(self) -> TokenizerConfig:
        fixed = len(SPECIAL_TOKENS) + (len(BYTES) if self.kind == "byte_bpe" else 1)
        if self.vocabulary < fixed:
            raise ValueError(f"vocabulary must be at least {fixed} for kind '{self.kind}', got {self.vocabulary}")
        return self


def untrained(config: TokenizerConfig) -> tuple[Tokenizer, Any]:
    """A tokenizer of the kind asked for, and the trainer that will give it its vocabulary."""
    unknown = SPECIAL_TOKENS[UNKNOWN]
    wishes: dict[str, Any] = {
        "vocab_size": config.vocabulary,
        "special_tokens": list(SPECIAL_TOKENS),
        "show_progress": False,
    }
    match config.kind:
        case "byte_bpe":
            rust = _of_bytes(models.BPE(), config)
            trainer: Any = trainers.BpeTrainer(min_frequency=2, initial_alphabet=sorted(BYTES), **wishes)
        case "unigram":
            rust = _of_words(models.Unigram(), SUBWORDS, config)
            trainer = trainers.UnigramTrainer(unk_token=unknown, **wishes)
        case "wordpiece":
            rust = _of_words(models.WordPiece(unk_token=unknown), WORDS, config)
            # Without a prefix training is also deterministic: the library numbers "##" pieces in the order of a
            # hash table (huggingface/tokenizers#1794).
            trainer = trainers.WordPieceTrainer(min_frequency=2, continuing_subword_prefix="", **wishes)
        case "words":
            rust = _of_words(models.WordLevel(unk_token=unknown), WORDS, config)
            trainer = trainers.WordLevelTrainer(**wishes)
        case "characters":
            rust = _of_characters(models.WordLevel(unk_token=unknown), config)
            trainer = trainers.WordLevelTrainer(**wishes)
    return rust, trainer


def _of_bytes(model: models.Model, config: TokenizerConfig) -> Tokenizer:
    rust = Tokenizer(model)
    rust.normalizer = _normalizer(config)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SUBWORDS), "isolated"), to_bytes])
    rust.decoder = decoders.ByteLevel()
    return rust


def _of_words(model: models.Model, pattern: str, config: TokenizerConfig) -> Tokenizer:
    """Every word carries the space before it as "▁", so decoding puts spaces back where they were; a text's first
    word is given one, to be the same token as elsewhere."""
    rust = Tokenizer(model)
    rust.normalizer = _normalizer(config, normalizers.Prepend(" "))
    mark = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    rust.pre_tokenizer = pre_tokenizers.Sequence([mark, pre_tokenizers.Split(Regex(pattern), "isolated")])
    rust.decoder = decoders.Metaspace(prepend_scheme="always")
    return rust


def _of_characters(model: models.Model, config: TokenizerConfig) -> Tokenizer:
    rust = Tokenizer(model)
    rust.normalizer = _normalizer(config)
    rust.pre_tokenizer = pre_tokenizers.FixedLength(length=1)
    rust.decoder = decoders.Fuse()
    return rust


def _normalizer(config: TokenizerConfig, *last: normalizers.Normalizer) -> normalizers.Normalizer | None:
    forms: dict[str, Callable[[], normalizers.Normalizer]] = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
    steps = [forms[config.normalise]()] if config.normalise in forms else []
    steps += [normalizers.Lowercase()] if config.lowercase else []  # after NFKC, which can make capitals: ℡ is TEL
    steps += last
    return normalizers.Sequence(steps) if steps else None


def settle(rust: Tokenizer) -> None:
    """Take out of a trained unigram model what hash-table order left in it, so that training is deterministic.

    The library sums in that order (differences near 1e-15); and to the characters that training left without a
    probability it deals out, in that order, the least score plus 0, 1e-4, 2e-4, …: here all of them get the least.
    """
    entries = [(piece, score) for piece, score in json.loads(rust.to_str())["model"]["vocab"]]
    special, learnt = entries[: len(SPECIAL_TOKENS)], entries[len(SPECIAL_TOKENS) :]
    least = min((score for _, score in learnt), default=0.0)

    def settled(piece: str, score: float) -> float:
        steps = (score - least) / 1e-4
        left_without = len(piece) == 1 and abs(steps - round(steps)) < 1e-4
        return round(least if left_without else score, 9)

    learnt = [(piece, settled(piece, score)) for piece, score in learnt]
    learnt.sort(key=lambda entry: (-entry[1], entry[0]))
    rust.model = models.Unigram([*special, *learnt], unk_id=UNKNOWN, byte_fallback=False)
