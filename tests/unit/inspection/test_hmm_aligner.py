"""The statistical aligner on text whose alignment is known."""

from __future__ import annotations

from random import Random

import pytest

from heedful.data.dates_corpus import TARGET_SPANS, DatePair, dates_corpus
from heedful.inspection.hmm_aligner import WordLinks, align_words
from heedful.text.word_tokens import split_words

WORDS = [f"w{number}" for number in range(60)]


def error_rate(found: list[WordLinks], true: list[WordLinks]) -> float:
    right = sum(len(a & b) for a, b in zip(found, true, strict=True))
    return 1 - 2 * right / sum(len(a) + len(b) for a, b in zip(found, true, strict=True))


def shuffled_corpus(size: int, seed: int = 0) -> tuple[list[tuple[list[str], list[str]]], list[WordLinks]]:
    """Every word has one translation, and each sentence an order of its own."""
    random = Random(seed)
    pairs, links = [], []
    for _ in range(size):
        source = [random.choice(WORDS) for _ in range(random.randint(3, 9))]
        order = random.sample(range(len(source)), len(source))
        pairs.append((source, [source[place].upper() + "x" for place in order]))
        links.append(
            frozenset((place, target) for target, place in enumerate(order) if source.count(source[place]) == 1)
        )
    return pairs, links


def test_words_are_found_whatever_their_order() -> None:
    pairs, true = shuffled_corpus(400)
    unique = [
        frozenset(link for link in found if link in known)
        for found, known in zip(align_words(pairs), true, strict=True)
    ]
    assert error_rate(unique, true) < 0.02


def test_order_tells_equal_words_apart() -> None:
    """Model 1 cannot know which of two `the` is which; steps can."""
    random = Random(1)
    pairs, true = [], []
    for _ in range(300):
        source = [word for _ in range(4) for word in ("the", random.choice(WORDS))]
        pairs.append((source, [f"{word}o" for word in source]))
        true.append(frozenset((place, place) for place in range(8)))
    assert error_rate(align_words(pairs), true) < 0.02


def test_words_from_nowhere_stay_unlinked() -> None:
    pairs, _ = shuffled_corpus(400, seed=2)
    pairs = [(source, [*target, "indeed"]) for source, target in pairs]
    found = align_words(pairs)
    last = sum(any(target == len(pair[1]) - 1 for _, target in links) for pair, links in zip(pairs, found, strict=True))
    assert last < 0.05 * len(pairs)


def test_the_same_pairs_give_the_same_links_and_lengths_do_not_matter() -> None:
    pairs, _ = shuffled_corpus(80)
    long = [word for source, _ in pairs[:12] for word in source], [word for _, target in pairs[:12] for word in target]
    pairs = [*pairs, long, ([], ["W1x"]), (["w1"], [])]
    found = align_words(pairs)
    assert found == align_words(pairs)
    assert found[-2:] == [frozenset(), frozenset()]
    assert len(found[-3]) > len(long[0]) / 2


def test_case_and_signs_at_the_edges_tell_no_words_apart() -> None:
    pairs = [(["Dogs,", "run"], ["laufen", "Hunde."]), (["(dogs)"], ["hunde"]), (["run!"], ["Laufen"])] * 3
    assert align_words(pairs)[0] == {(0, 1), (1, 0)}


def spelt_out(pair: DatePair) -> bool:
    """Year, month and day are words of their own."""
    return all(
        pair.source[start - 1 : start].strip() == "" and pair.source[end : end + 1].strip(" ,.") == ""
        for start, end in pair.spans
    )


def true_links(pair: DatePair) -> WordLinks:
    """From the letters that gave a part to the word they stand in."""
    return frozenset(
        (len(split_words(pair.source[: source[0]])), digit)
        for source, target in zip(pair.spans, TARGET_SPANS, strict=True)
        for digit in range(*target)
    )


@pytest.mark.parametrize("languages", [("en", "de"), ("ru", "el", "sv")])
def test_on_dates_digits_find_the_word_they_came_from(languages: tuple[str, ...]) -> None:
    corpus = dates_corpus(train=3000, valid=300, test=1, languages=languages)
    known = [pair for pair in corpus.valid if spelt_out(pair)]
    pairs = [(split_words(pair.source), split_words(pair.target, "characters")) for pair in (*known, *corpus.train)]
    found = align_words(pairs, symmetric=False)[: len(known)]
    assert error_rate(found, [true_links(pair) for pair in known]) < 0.25
