"""The six kinds of tokenizer, each assembled from parts of the Rust `tokenizers` library (E1).

A kind is a choice of pre-tokenization pattern, model, trainer and decoder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal

from pydantic import Field, model_validator
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from heedful.config import Config
from heedful.errors import UsageError
from heedful.text.special_tokens import SPECIAL_TOKENS, UNKNOWN
from heedful.text.unigram_trainer import train_unigram

# Pre-tokens of byte_bpe and unigram: a word (with combining marks and inner apostrophes), up to three digits, other
# symbols, or whitespace; a space belongs to what follows it. This is GPT-2's pattern without its list of English
# endings and with a length limit: training on a "word" of a million characters would never end. "▁" stands for a
# space. Letters never join symbols, so no trained piece can spell "<s>" and take the special token's id.
_PRE_TOKENS = (
    r"[ ▁]?[\p{L}\p{M}]{1,64}(?:['’][\p{L}\p{M}]{1,64}){0,4}|[ ▁]?\p{N}{1,3}|[ ▁]?[^\s▁\p{L}\p{M}\p{N}]{1,64}|"
)
WHITESPACE_RUNS = _PRE_TOKENS + r"[\s▁]{1,64}(?![^\s▁])|[\s▁]{1,64}"
SINGLE_WHITESPACE = _PRE_TOKENS + r"[\s▁]"  # the decoder drops every "▁" of the first piece: it may hold only one
# Pre-tokens of words and wordpiece: a number with its points, one Han character, a word with inner apostrophes and
# hyphens, one symbol, or one whitespace character.
_LETTERS = r"[\p{L}\p{M}\p{N}&&[^\p{Han}]]{1,64}"
WORDS = (
    rf"▁?(?:\p{{N}}{{1,64}}(?:[.,:/]\p{{N}}{{1,64}}){{1,8}}|\p{{Han}}|{_LETTERS}(?:['’-]{_LETTERS}){{0,8}})"
    r"|▁?[^\s▁\p{L}\p{M}\p{N}]|[\s▁]"
)

# Pre-tokens of bare_words: the same words and numbers, nothing else.
BARE_WORDS = rf"\p{{N}}{{1,64}}(?:[.,:/]\p{{N}}{{1,64}}){{1,8}}|\p{{Han}}|{_LETTERS}(?:['’-]{_LETTERS}){{0,8}}"

# GPT-2's table: the printable character that stands for each byte in a byte-level vocabulary.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + index): byte for index, byte in enumerate(_OTHERS)}


class TokenizerConfig(Config):
    """Kind and size of a tokenizer.

    - `byte_bpe`: byte-level BPE. Lossless for any text in any language; nothing is ever unknown.
    - `unigram`: the most probable subword segmentation (Kudo 2018).
    - `wordpiece`: greedy longest-match subwords from the vocabulary BPE would learn. Unlike BERT's, a piece that opens
      a word carries the word's space, so no other piece needs "##".
    - `words`: words and symbols.
    - `characters`: characters (code points).
    - `bare_words`: words without symbols and spaces, which decoding does not restore: for word vectors.

    In all but the first, what training never saw becomes <unk>, which decoding drops: a character in `characters` and
    `unigram`, a word with such a character in `wordpiece`, a word in the other two. All else is decoded exactly, spaces
    too (except by `bare_words`; "▁" (U+2581) stands for a space in all but `characters`, and is decoded as one).
    For languages written without spaces use byte_bpe, unigram or characters.
    """

    kind: Literal["byte_bpe", "unigram", "wordpiece", "words", "characters", "bare_words"] = "byte_bpe"
    vocabulary: int = Field(gt=0, le=10_000_000)
    """Maximum size, special tokens included; a small corpus gives fewer."""
    min_count: int = Field(default=1, gt=0, le=1 << 31)
    """Rarer words become <unk> (words and bare_words)."""
    lowercase: bool = False
    normalize: Literal["none", "nfc", "nfkc"] = "none"
    """Unicode normalization; decoding does not restore what it and `lowercase` change."""

    @model_validator(mode="after")
    def _fits_fixed_tokens(self) -> TokenizerConfig:
        fixed = len(SPECIAL_TOKENS) + (len(BYTES) if self.kind == "byte_bpe" else 1)
        if self.vocabulary < fixed:
            raise ValueError(f"vocabulary must be at least {fixed} for kind '{self.kind}', got {self.vocabulary}")
        return self


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train a tokenizer of the configured kind on `texts`."""
    rust, trainer = _untrained(config)
    if trainer is None:
        _train_unigram(rust, texts, config)
    else:
        rust.train_from_iterator(texts, trainer)
    if rust.get_vocab_size() > config.vocabulary:  # wordpiece takes in every character, whatever the size
        raise _too_small(config)
    return rust


def infer_config(described: dict[str, Any], size: int) -> TokenizerConfig:
    """Infer the settings a tokenizer of `size` tokens was trained with from its tokenizer.json."""
    pre_tokenizer = (described["pre_tokenizer"] or {}).get("type")
    word_level = {"FixedLength": "characters", "Split": "bare_words"}.get(pre_tokenizer or "", "words")
    kinds = {"BPE": "byte_bpe", "Unigram": "unigram", "WordPiece": "wordpiece", "WordLevel": word_level}
    steps = {step["type"] for step in (described["normalizer"] or {}).get("normalizers", ())}
    form = next((name for name in ("NFC", "NFKC") if name in steps), "none").lower()
    return TokenizerConfig(
        kind=kinds[described["model"]["type"]], vocabulary=size, lowercase="Lowercase" in steps, normalize=form
    )


def _untrained(config: TokenizerConfig) -> tuple[Tokenizer, Any]:
    """Return an untrained tokenizer and its trainer; None for unigram, which `unigram_trainer` trains."""
    unknown = SPECIAL_TOKENS[UNKNOWN]
    options: dict[str, Any] = {
        "vocab_size": config.vocabulary,
        "special_tokens": list(SPECIAL_TOKENS),
        "show_progress": False,
    }
    match config.kind:
        case "byte_bpe":
            trainer: Any = trainers.BpeTrainer(min_frequency=2, initial_alphabet=sorted(BYTES), **options)
            return _byte_level(models.BPE(), config), trainer
        case "unigram":
            return _metaspace(models.Unigram(), SINGLE_WHITESPACE, config), None
        case "wordpiece":
            # Without a prefix training is also deterministic: the library numbers "##" pieces in the order of a
            # hash table (huggingface/tokenizers#1794).
            trainer = trainers.WordPieceTrainer(min_frequency=2, continuing_subword_prefix="", **options)
            return _metaspace(models.WordPiece(unk_token=unknown), WORDS, config), trainer
        case "words" | "bare_words":
            trainer = trainers.WordLevelTrainer(min_frequency=config.min_count, **options)
            model = models.WordLevel(unk_token=unknown)
            return (_metaspace(model, WORDS, config) if config.kind == "words" else _bare_words(model, config)), trainer
        case "characters":
            return _characters(models.WordLevel(unk_token=unknown), config), trainers.WordLevelTrainer(**options)


def _train_unigram(rust: Tokenizer, texts: Iterable[str], config: TokenizerConfig) -> None:
    counts = Counter[str]()
    for text in texts:
        counts.update(word for word, _ in rust.pre_tokenizer.pre_tokenize_str(rust.normalizer.normalize_str(text)))
    size = config.vocabulary - len(SPECIAL_TOKENS)
    if len(set("".join(counts))) > size:
        raise _too_small(config)
    special = [(token, 0.0) for token in SPECIAL_TOKENS]
    rust.model = models.Unigram([*special, *train_unigram(counts, size)], unk_id=UNKNOWN, byte_fallback=False)
    rust.add_special_tokens(list(SPECIAL_TOKENS))


def _too_small(config: TokenizerConfig) -> UsageError:
    return UsageError(
        f"vocabulary {config.vocabulary} cannot hold every character of the text; ask for more, or use kind 'byte_bpe'"
    )


def _byte_level(model: models.Model, config: TokenizerConfig) -> Tokenizer:
    rust = Tokenizer(model)
    rust.normalizer = _normalizer(config)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WHITESPACE_RUNS), "isolated"), to_bytes])
    rust.decoder = decoders.ByteLevel()
    return rust


def _metaspace(model: models.Model, pattern: str, config: TokenizerConfig) -> Tokenizer:
    """A tokenizer whose words carry the space before them as "▁", so that decoding restores every space.

    The first word of a text gets one too, to be the same token as elsewhere.
    """
    rust = Tokenizer(model)
    rust.normalizer = _normalizer(config, normalizers.Prepend(" "))
    mark = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    rust.pre_tokenizer = pre_tokenizers.Sequence([mark, pre_tokenizers.Split(Regex(pattern), "isolated")])
    rust.decoder = decoders.Metaspace(prepend_scheme="always")
    return rust


def _bare_words(model: models.Model, config: TokenizerConfig) -> Tokenizer:
    rust = Tokenizer(model)
    rust.normalizer = _normalizer(config)
    rust.pre_tokenizer = pre_tokenizers.Split(Regex(BARE_WORDS), "removed", invert=True)
    return rust


def _characters(model: models.Model, config: TokenizerConfig) -> Tokenizer:
    rust = Tokenizer(model)
    rust.normalizer = _normalizer(config)
    rust.pre_tokenizer = pre_tokenizers.FixedLength(length=1)
    rust.decoder = decoders.Fuse()
    return rust


def _normalizer(config: TokenizerConfig, *last: normalizers.Normalizer) -> normalizers.Normalizer | None:
    forms: dict[str, Callable[[], normalizers.Normalizer]] = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
    steps = [forms[config.normalize]()] if config.normalize in forms else []
    steps += [normalizers.Lowercase()] if config.lowercase else []  # after NFKC, which can produce capitals: ℡ is TEL
    steps += last
    return normalizers.Sequence(steps) if steps else None
