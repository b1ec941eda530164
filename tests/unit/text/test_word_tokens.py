"""Words and the tokens they are made of, for every kind of tokenizer."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import TokenizedWords, tokenize_words, words_from_tokens, word_probabilities, split_words

from .conftest import CORPUS, KINDS

known_text = st.text(st.sampled_from(sorted(set("".join(CORPUS)) - {"▁"})), min_size=1)
examples = settings(deadline=None, max_examples=60, derandomize=True)
units = pytest.mark.parametrize("unit", ["words", "characters"])


@units
@pytest.mark.parametrize(
    "text", ["Two dogs  are\tplaying ", "東京は日本の首都です。", " Zwei Hunde, 愛!", "a", "", "  "]
)
def test_every_word_has_tokens_and_every_token_its_words_in_order(tokenizer: Tokenizer, text: str, unit: str) -> None:
    cut = tokenize_words(text, tokenizer, unit)
    assert list(cut.words) == (text.split() if unit == "words" else [letter for letter in text if letter.strip()])
    assert len(cut.tokens) == len(cut.word_ranges)
    firsts = [place.start for place in cut.word_ranges]
    assert firsts == sorted(firsts)
    assert {word for place in cut.word_ranges for word in place} == set(range(len(cut.words)))


@units
@pytest.mark.parametrize("kind", KINDS)
@examples
@given(text=known_text)
def test_a_text_written_is_cut_as_the_same_text_given(
    tokenizers: dict[str, Tokenizer], kind: str, unit: str, text: str
) -> None:
    tokenizer = tokenizers[kind]
    given_text = tokenize_words(text, tokenizer, unit)
    written = words_from_tokens(given_text.tokens, tokenizer, unit)
    if tokenizer.decode([given_text.tokens])[0] == text:  # words that were unknown are not written
        assert written == given_text


def test_spelling_follows_the_tokens_where_encoding_would_choose_others(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_bpe"]
    whole = tokenizer.encode(["dogs are"])[0]
    split = [token for letter in "dogs are" for token in tokenizer.encode([letter])[0]]
    assert len(split) > len(whole)
    assert words_from_tokens(split, tokenizer) == TokenizedWords(("dogs", "are"), tuple(split), (*[range(1)] * 4, *[range(1, 2)] * 4))


def test_bytes_of_one_character_all_belong_to_it(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_bpe"]
    cut = words_from_tokens(tokenizer.encode(["a愛b"])[0], tokenizer, "characters")
    assert cut.words == ("a", "愛", "b")
    assert len(cut.tokens) > 3
    assert [list(place) for place in cut.word_ranges] == [[0], *[[1]] * (len(cut.tokens) - 2), [2]]


def test_a_word_is_as_likely_as_its_tokens_together_and_the_end_belongs_to_none() -> None:
    cut = TokenizedWords(("unhappy", "dogs"), (7, 8, 9), (range(1), range(1), range(1, 2)))
    found = word_probabilities(cut, [log(0.5), log(0.5), log(0.9), log(0.1)])
    assert [word for word, _ in found] == ["unhappy", "dogs"]
    assert [probability for _, probability in found] == pytest.approx([0.25, 0.9])


def test_a_token_of_two_characters_makes_both_as_likely_as_itself() -> None:
    found = word_probabilities(TokenizedWords(("日", "本"), (7,), (range(2),)), [log(0.3)])
    assert [probability for _, probability in found] == pytest.approx([0.3, 0.3])


def test_words_stand_between_blanks() -> None:
    assert split_words(" A dog,\u00a0two\tcats. ") == ["A", "dog,", "two", "cats."]
    assert split_words("a 日", "characters") == ["a", "日"]
