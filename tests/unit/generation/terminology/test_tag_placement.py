"""Tag placement around the words aligned with the enclosed source words, with the nesting of the source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.generation.terminology.requirements import ModelInput, find_requirements
from heedful.generation.terminology.tag_placement import WordAlignment, place_tags
from heedful.text.markup_tags import tag_structure
from heedful.text.protected_spans import find_protected_spans
from heedful.text.word_boundaries import find_words

examples = settings(deadline=None, max_examples=80, derandomize=True)


def with_tags(source: str, target: str, origins: list[int | None]) -> str:
    """The target with the source's tags; `origins` is the index of the source word of each target word."""
    model_input = ModelInput.of(source, find_requirements(source))
    source_words, target_words = model_input.words.spans, find_words(target)
    shares = np.zeros((len(source_words), len(target_words)))
    for column, row in enumerate(origins):
        if row is not None:
            shares[row, column] = 1.0
    placed = place_tags(model_input.tags, WordAlignment(source_words, target_words, shares), len(target))
    for position, tag in reversed(placed):
        target = target[:position] + tag + target[position:]
    return target


@pytest.mark.parametrize(
    ("source", "target", "origins", "expected"),
    [
        ("a <b>red</b> house", "une maison rouge", [0, 2, 1], "une maison <b>rouge</b>"),
        ("<b>I</b> saw <i>you</i>", "dich sah ich", [2, 1, 0], "<i>dich</i> sah <b>ich</b>"),
        ("<p>all of <b>it</b>.</p>", "es ganz.", [2, 0, 3], "<p><b>es</b> ganz.</p>"),
        ("one<br>two", "eins zwei", [0, 1], "eins <br>zwei"),
        ("<i class='x'></i> go", "los", [0], "<i class='x'></i>los"),
        ("go <img/>", "los", [0], "los<img/>"),
        ("<b>the dog</b> ran", "Hund rannte", [1, 2], "<b>Hund</b> rannte"),
        ("take <b>it off</b> now", "zieh es jetzt aus", [0, 1, 3, 2], "zieh <b>es</b> jetzt aus"),
        ("some <b>more. And", "etwas mehr. Und", [0, 1, 2, 3], "etwas <b>mehr. Und"),
        ("less</b> of it", "weniger davon", [0, 2], "weniger</b> davon"),
        ("<b></b>", "", [], "<b></b>"),
        ("<b>a</b>", "", [], "<b></b>"),
    ],
)
def test_tags_enclose_the_aligned_words(source: str, target: str, origins: list[int | None], expected: str) -> None:
    assert with_tags(source, target, origins) == expected


elements = st.recursive(
    st.sampled_from(["w", "x y", "", "<br>", "<img/>"]),
    lambda inner: st.tuples(st.sampled_from("bip"), st.lists(inner, max_size=3)).map(
        lambda element: f"<{element[0]}>{' '.join(element[1])}</{element[0]}>"
    ),
    max_leaves=8,
)
broken = st.lists(st.sampled_from(["<b>", "</b>", "<i>", "</i>", "w ", "<br>"]), max_size=8).map("".join)


@examples
@given(
    source=st.one_of(st.lists(elements, max_size=4).map(" ".join), broken),
    length=st.integers(0, 5),
    data=st.data(),
)
def test_nesting_of_tags_equals_the_sources(source: str, length: int, data: st.DataObject) -> None:
    words = len(ModelInput.of(source, find_requirements(source)).words.spans)
    origins = (
        data.draw(st.lists(st.integers(0, words - 1), min_size=length, max_size=length)) if words else [None] * length
    )
    result = with_tags(source, " ".join("t" * length), origins)
    before, after = ([span.text for span in find_protected_spans(text)] for text in (source, result))
    assert tag_structure(after) == tag_structure(before)
