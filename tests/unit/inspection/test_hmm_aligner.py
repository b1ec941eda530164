"""The HMM aligner on text with known alignments."""

from __future__ import annotations

from random import Random

import pytest

from heedful.data.dates_corpus import TARGET_SPANS, DatePair, dates_corpus
from heedful.inspection.hmm_aligner import WordLinks, align_words, statistical_alignments
from heedful.text.word_tokens import split_words

WORDS = [f"w{number}" for number in range(60)]


def error_rate(predicted: list[WordLinks], true: list[WordLinks]) -> float:
    correct = sum(len(a & b) for a, b in zip(predicted, true, strict=True))
    return 1 - 2 * correct / sum(len(a) + len(b) for a, b in zip(predicted, true, strict=True))


def shuffled_corpus(size: int, seed: int = 0) -> tuple[list[tuple[list[str], list[str]]], list[WordLinks]]:
    """Every word has one translation; each sentence has a random order."""
    random = Random(seed)
    pairs, links = [], []
    for _ in range(size):
        source = [random.choice(WORDS) for _ in range(random.randint(3, 9))]
        order = random.sample(range(len(source)), len(source))
        pairs.append((source, [source[index].upper() + "x" for index in order]))
        links.append(
            frozenset((index, target) for target, index in enumerate(order) if source.count(source[index]) == 1)
        )
    return pairs, links


def test_words_are_aligned_in_any_order() -> None:
    pairs, true = shuffled_corpus(400)
    unique = [
        frozenset(link for link in predicted if link in known)
        for predicted, known in zip(align_words(pairs), true, strict=True)
    ]
    assert error_rate(unique, true) < 0.02


def test_jump_model_distinguishes_repeated_words() -> None:
    """Model 1 cannot distinguish two `the`; learned jumps can."""
    random = Random(1)
    pairs, true = [], []
    for _ in range(300):
        source = [word for _ in range(4) for word in ("the", random.choice(WORDS))]
        pairs.append((source, [f"{word}o" for word in source]))
        true.append(frozenset((index, index) for index in range(8)))
    assert error_rate(align_words(pairs), true) < 0.02


def test_words_without_counterpart_stay_unlinked() -> None:
    pairs, _ = shuffled_corpus(400, seed=2)
    pairs = [(source, [*target, "indeed"]) for source, target in pairs]
    predicted = align_words(pairs)
    last = sum(
        any(target == len(pair[1]) - 1 for _, target in links) for pair, links in zip(pairs, predicted, strict=True)
    )
    assert last < 0.05 * len(pairs)


def test_alignment_is_deterministic_and_handles_long_and_empty_texts() -> None:
    pairs, _ = shuffled_corpus(80)
    long = [word for source, _ in pairs[:12] for word in source], [word for _, target in pairs[:12] for word in target]
    pairs = [*pairs, long, ([], ["W1x"]), (["w1"], [])]
    predicted = align_words(pairs)
    assert predicted == align_words(pairs)
    assert predicted[-2:] == [frozenset(), frozenset()]
    assert len(predicted[-3]) > len(long[0]) / 2


def test_case_and_edge_punctuation_are_ignored() -> None:
    pairs = [(["Dogs,", "run"], ["laufen", "Hunde."]), (["(dogs)"], ["hunde"]), (["run!"], ["Laufen"])] * 3
    assert align_words(pairs)[0] == {(0, 1), (1, 0)}


def has_separate_words(pair: DatePair) -> bool:
    """Whether year, month and day are separate words."""
    return all(
        pair.source[start - 1 : start].strip() == "" and pair.source[end : end + 1].strip(" ,.") == ""
        for start, end in pair.spans
    )


def true_links(pair: DatePair) -> WordLinks:
    """Links from the known character spans."""
    return frozenset(
        (len(split_words(pair.source[: source[0]])), digit)
        for source, target in zip(pair.spans, TARGET_SPANS, strict=True)
        for digit in range(*target)
    )


@pytest.mark.parametrize("languages", [("en", "de"), ("ru", "el", "sv")])
def test_digits_of_dates_are_aligned_to_their_words(languages: tuple[str, ...]) -> None:
    corpus = dates_corpus(train=3000, valid=300, test=1, languages=languages)
    known = [pair for pair in corpus.valid if has_separate_words(pair)]
    pairs = [(split_words(pair.source), split_words(pair.target, "characters")) for pair in (*known, *corpus.train)]
    predicted = align_words(pairs, symmetric=False)[: len(known)]
    assert error_rate(predicted, [true_links(pair) for pair in known]) < 0.25


TOWNS = {"東京": "Tokyo", "札幌": "Sapporo", "大阪": "Osaka", "奈良": "Nara", "神戸": "Kobe", "福岡": "Fukuoka"}
PAIRS = [([*first, *second], [TOWNS[second], TOWNS[first]]) for first in TOWNS for second in TOWNS if first != second]


def test_characters_align_to_words_in_both_directions() -> None:
    expected = {(0, 1), (1, 1), (2, 0), (3, 0)}
    reversed_pairs = [(target, source) for source, target in PAIRS]
    assert all(links == expected for links in statistical_alignments(PAIRS, ("characters", "words")))
    for links in statistical_alignments(reversed_pairs, ("words", "characters")):
        assert links == {(target, source) for source, target in expected}
