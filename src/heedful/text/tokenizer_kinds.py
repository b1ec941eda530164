"""The six kinds of tokenizer, each assembled from the parts of the Rust `tokenizers` library (E1).

A kind is a choice of where tokens may not cross (the pattern), how tokens are found (the model) and learnt (the
trainer), and how text is put together again (the decoder).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal

from pydantic import PositiveInt, model_validator
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from heedful.config import Config
from heedful.errors import UsageError
from heedful.text.special_tokens import SPECIAL_TOKENS, UNKNOWN
from heedful.text.unigram_trainer import train_unigram

# For byte_bpe and unigram: a word (with the marks that Thai and Indic vowels are, and with inner apostrophes), up to
# three digits, other signs, or blanks; a space goes with what follows it. It is GPT-2's pattern without its list of
# English endings, and with an end: learning from a "word" of a million characters would take forever. "▁" stands for
# a space. Letters never join signs, so no learnt piece can spell "<s>" and take the special token's id.
_PIECES = r"[ ▁]?[\p{L}\p{M}]{1,64}(?:['’][\p{L}\p{M}]{1,64}){0,4}|[ ▁]?\p{N}{1,3}|[ ▁]?[^\s▁\p{L}\p{M}\p{N}]{1,64}|"
RUNS_OF_BLANKS = _PIECES + r"[\s▁]{1,64}(?![^\s▁])|[\s▁]{1,64}"
SINGLE_BLANKS = _PIECES + r"[\s▁]"  # the library's decoder drops every "▁" of the first piece, so it may hold one only
# For words and wordpiece: a number with its points, one Han character, a word with inner apostrophes and hyphens,
# one sign, or one blank.
_LETTERS = r"[\p{L}\p{M}\p{N}&&[^\p{Han}]]{1,64}"
WORDS = (
    rf"▁?(?:\p{{N}}{{1,64}}(?:[.,:/]\p{{N}}{{1,64}}){{1,8}}|\p{{Han}}|{_LETTERS}(?:['’-]{_LETTERS}){{0,8}})"
    r"|▁?[^\s▁\p{L}\p{M}\p{N}]|[\s▁]"
)

# For bare_words: the same words and numbers, and nothing else.
BARE_WORDS = rf"\p{{N}}{{1,64}}(?:[.,:/]\p{{N}}{{1,64}}){{1,8}}|\p{{Han}}|{_LETTERS}(?:['’-]{_LETTERS}){{0,8}}"

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
    - `bare_words`: words alone, without signs and spaces, which do not come back: for word vectors.

    In all but the first, what training never saw becomes <unk>, which decoding drops: a character in `characters` and
    `unigram`, a word with such a character in `wordpiece`, a word in the other two. All else comes back exactly, spaces
    too (but for `bare_words`, and "▁" (U+2581): it stands for a space in all but `characters`, and turns into one).
    For languages written without spaces take byte_bpe, unigram or characters.
    """

    kind: Literal["byte_bpe", "unigram", "wordpiece", "words", "characters", "bare_words"] = "byte_bpe"
    vocabulary: PositiveInt
    """The size wished for, special tokens included; little text gives fewer."""
    min_count: PositiveInt = 1
    """Words that occur less often stay unknown (words and bare_words)."""
    lowercase: bool = False
    normalise: Literal["none", "nfc", "nfkc"] = "none"
    """Unicode normalisation; what it and `lowercase` change does not come back."""

    @model_validator(mode="after")
    def _room_for_the_fixed_part(self) -> TokenizerConfig:
        fixed = len(SPECIAL_TOKENS) + (len(BYTES) if self.kind == "byte_bpe" else 1)
        if self.vocabulary < fixed:
            raise ValueError(f"vocabulary must be at least {fixed} for kind '{self.kind}', got {self.vocabulary}")
        return self


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """A tokenizer of the kind asked for, its vocabulary learnt from `texts`."""
    rust, trainer = _untrained(config)
    if trainer is None:
        _learn_unigram(rust, texts, config)
    else:
        rust.train_from_iterator(texts, trainer)
    if rust.get_vocab_size() > config.vocabulary:  # wordpiece takes in every character, whatever the wish
        raise _too_small(config)
    return rust


def infer_config(described: dict[str, Any], size: int) -> TokenizerConfig:
    """The settings that a tokenizer of `size` tokens, as it is written down, was learnt with."""
    splitter = (described["pre_tokenizer"] or {}).get("type")
    whole = {"FixedLength": "characters", "Split": "bare_words"}.get(splitter or "", "words")
    kinds = {"BPE": "byte_bpe", "Unigram": "unigram", "WordPiece": "wordpiece", "WordLevel": whole}
    steps = {step["type"] for step in (described["normalizer"] or {}).get("normalizers", ())}
    form = next((name for name in ("NFC", "NFKC") if name in steps), "none").lower()
    return TokenizerConfig(
        kind=kinds[described["model"]["type"]], vocabulary=size, lowercase="Lowercase" in steps, normalise=form
    )


def _untrained(config: TokenizerConfig) -> tuple[Tokenizer, Any]:
    unknown = SPECIAL_TOKENS[UNKNOWN]
    wishes: dict[str, Any] = {
        "vocab_size": config.vocabulary,
        "special_tokens": list(SPECIAL_TOKENS),
        "show_progress": False,
    }
    match config.kind:
        case "byte_bpe":
            bpe = trainers.BpeTrainer(min_frequency=2, initial_alphabet=sorted(BYTES), **wishes)
            return _of_bytes(models.BPE(), config), bpe
        case "unigram":
            return _of_words(models.Unigram(), SINGLE_BLANKS, config), None
        case "wordpiece":
            # Without a prefix training is also deterministic: the library numbers "##" pieces in the order of a
            # hash table (huggingface/tokenizers#1794).
            greedy = trainers.WordPieceTrainer(min_frequency=2, continuing_subword_prefix="", **wishes)
            return _of_words(models.WordPiece(unk_token=unknown), WORDS, config), greedy
        case "words" | "bare_words":
            often = trainers.WordLevelTrainer(min_frequency=config.min_count, **wishes)
            whole = models.WordLevel(unk_token=unknown)
            return (_of_words(whole, WORDS, config) if config.kind == "words" else _bare(whole, config)), often
        case "characters":
            return _of_characters(models.WordLevel(unk_token=unknown), config), trainers.WordLevelTrainer(**wishes)


def _learn_unigram(rust: Tokenizer, texts: Iterable[str], config: TokenizerConfig) -> None:
    words = Counter[str]()
    for text in texts:
        found = rust.pre_tokenizer.pre_tokenize_str(rust.normalizer.normalize_str(text))
        words.update(word for word, _ in found)
    room = config.vocabulary - len(SPECIAL_TOKENS)
    if len(set("".join(words))) > room:
        raise _too_small(config)
    special = [(token, 0.0) for token in SPECIAL_TOKENS]
    rust.model = models.Unigram([*special, *train_unigram(words, room)], unk_id=UNKNOWN, byte_fallback=False)
    rust.add_special_tokens(list(SPECIAL_TOKENS))


def _too_small(config: TokenizerConfig) -> UsageError:
    return UsageError(
        f"vocabulary {config.vocabulary} cannot hold every character of the text; ask for more, or take kind 'byte_bpe'"
    )


def _of_bytes(model: models.Model, config: TokenizerConfig) -> Tokenizer:
    rust = Tokenizer(model)
    rust.normalizer = _normalizer(config)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(RUNS_OF_BLANKS), "isolated"), to_bytes])
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


def _bare(model: models.Model, config: TokenizerConfig) -> Tokenizer:
    rust = Tokenizer(model)
    rust.normalizer = _normalizer(config)
    rust.pre_tokenizer = pre_tokenizers.Split(Regex(BARE_WORDS), "removed", invert=True)
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
