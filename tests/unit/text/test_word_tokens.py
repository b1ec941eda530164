"""The mapping of tokens to words, for every kind of tokenizer."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import TokenizedWords, split_words, tokenize_words, word_probabilities, words_from_tokens

from .conftest import CORPUS, KINDS

known_text = st.text(st.sampled_from(sorted(set("".join(CORPUS)) - {"▁"})), min_size=1)
examples = settings(deadline=None, max_examples=60, derandomize=True)
units = pytest.mark.parametrize("unit", ["words", "characters"])


@units
@pytest.mark.parametrize(
    "text", ["Two dogs  are\tplaying ", "東京は日本の首都です。", " Zwei Hunde, 愛!", "a", "", "  "]
)
def test_every_word_has_tokens_and_every_token_words_in_order(tokenizer: Tokenizer, text: str, unit: str) -> None:
    tokenized = tokenize_words(text, tokenizer, unit)
    assert list(tokenized.words) == (text.split() if unit == "words" else [letter for letter in text if letter.strip()])
    assert len(tokenized.tokens) == len(tokenized.word_ranges)
    firsts = [word_range.start for word_range in tokenized.word_ranges]
    assert firsts == sorted(firsts)
    assert {word for word_range in tokenized.word_ranges for word in word_range} == set(range(len(tokenized.words)))


@units
@pytest.mark.parametrize("kind", KINDS)
@examples
@given(text=known_text)
def test_generated_tokens_map_to_the_same_words_as_the_text(
    tokenizers: dict[str, Tokenizer], kind: str, unit: str, text: str
) -> None:
    tokenizer = tokenizers[kind]
    input_words = tokenize_words(text, tokenizer, unit)
    generated = words_from_tokens(input_words.tokens, tokenizer, unit)
    if tokenizer.decode([input_words.tokens])[0] == text:  # words that were unknown are not generated
        assert generated == input_words


def test_words_follow_the_given_tokens_not_a_re_encoding(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_bpe"]
    encoded = tokenizer.encode(["dogs are"])[0]
    split = [token for letter in "dogs are" for token in tokenizer.encode([letter])[0]]
    assert len(split) > len(encoded)
    assert words_from_tokens(split, tokenizer) == TokenizedWords(
        ("dogs", "are"), tuple(split), (*[range(1)] * 4, *[range(1, 2)] * 4)
    )


def test_bytes_of_one_character_map_to_it(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_bpe"]
    tokenized = words_from_tokens(tokenizer.encode(["a愛b"])[0], tokenizer, "characters")
    assert tokenized.words == ("a", "愛", "b")
    assert len(tokenized.tokens) > 3
    assert [list(word_range) for word_range in tokenized.word_ranges] == [
        [0],
        *[[1]] * (len(tokenized.tokens) - 2),
        [2],
    ]


def test_word_probability_is_the_product_of_its_tokens() -> None:
    tokenized = TokenizedWords(("unhappy", "dogs"), (7, 8, 9), (range(1), range(1), range(1, 2)))
    words = word_probabilities(tokenized, [log(0.5), log(0.5), log(0.9), log(0.1)])
    assert [word for word, _ in words] == ["unhappy", "dogs"]
    assert [probability for _, probability in words] == pytest.approx([0.25, 0.9])


def test_token_of_two_characters_gives_both_its_probability() -> None:
    words = word_probabilities(TokenizedWords(("日", "本"), (7,), (range(2),)), [log(0.3)])
    assert [probability for _, probability in words] == pytest.approx([0.3, 0.3])


def test_words_are_separated_by_whitespace() -> None:
    assert split_words(" A dog,\u00a0two\tcats. ") == ["A", "dog,", "two", "cats."]
    assert split_words("a 日", "characters") == ["a", "日"]
