"""Tags put back: around the words that came from theirs, and always inside one another as they were."""

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


def marked(source: str, target: str, origins: list[int | None]) -> str:
    """The target with the source's tags; `origins` says which source word each target word came from."""
    view = ModelInput.of(source, find_requirements(source))
    shares = np.zeros((len(view.in_words.words), len(find_words(target))))
    for column, row in enumerate(origins):
        if row is not None:
            shares[row, column] = 1.0
    placed = place_tags(view.tags, WordAlignment(view.in_words.words, find_words(target), shares), len(target))
    for place, tag in reversed(placed):
        target = target[:place] + tag + target[place:]
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
def test_tags_follow_their_words(source: str, target: str, origins: list[int | None], expected: str) -> None:
    assert marked(source, target, origins) == expected


elements = st.recursive(
    st.sampled_from(["w", "x y", "", "<br>", "<img/>"]),
    lambda inner: st.tuples(st.sampled_from("bip"), st.lists(inner, max_size=3)).map(
        lambda found: f"<{found[0]}>{' '.join(found[1])}</{found[0]}>"
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
def test_tags_lie_inside_one_another_as_in_the_source(source: str, length: int, data: st.DataObject) -> None:
    plain = len(ModelInput.of(source, find_requirements(source)).in_words.words)
    origins = (
        data.draw(st.lists(st.integers(0, plain - 1), min_size=length, max_size=length)) if plain else [None] * length
    )
    result = marked(source, " ".join("t" * length), origins)
    before, after = ([kept.text for kept in find_protected_spans(text)] for text in (source, result))
    assert tag_structure(after) == tag_structure(before)
