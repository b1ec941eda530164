"""What must come through comes through, whatever the model makes of the rest."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.generation.input_splitting import InputSplitting
from heedful.generation.terminology.glossary import Glossary
from heedful.generation.terminology.insertion import locate_terms
from heedful.generation.terminology.required_terms import find_requirements, translate_with_requirements
from heedful.text.markup_tags import tag_structure
from heedful.text.protected_spans import find_protected_spans
from heedful.text.sentence_splitter import join_segments
from heedful.text.special_tokens import END, START
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

CORPUS = [
    "the red dog runs, and a man in blue sees it",
    "der rote Hund rennt, und ein Mann in Blau sieht ihn: 100 %",
] * 3
PLACEHOLDERS = [
    "{name}", "{0}", "{{ x }}", "%s", "%(n)d", "$VAR", "${VAR}", "&amp;", "%%", "https://a.org/b?c=d_(e)", "me@a.org",
    "{n, plural, one {#} other {# of {x}}}", "https://a.org/" + "very/long/" * 20,
]  # fmt: skip
TAGS = ["<br>", "<img src='a>b'/>", "<!-- c -->"]
ELEMENTS = [("<b>", "</b>"), ('<a href="http://x.y/?q=1">', "</a>"), ("<x:y z>", "</x:y>")]
KINDS = [
    ("laptop-translator", "byte_bpe"),
    ("recurrent-translator", "words"),
    ("recurrent-bottleneck", "unigram"),
    ("laptop-translator", "characters"),
]


@cache
def translator(name: str, kind: str) -> tuple[Any, tuple[Tokenizer]]:
    """An untrained model: it writes what it likes, from a vocabulary that may lack what is required."""
    tokenizer = Tokenizer.train(CORPUS, TokenizerConfig(kind=kind, vocabulary=290, lowercase=kind == "words"))
    torch.manual_seed(4)
    size = {"width": 16} if name.startswith("recurrent") else {"width": 16, "heads": 2, "layers": 1}
    model = heedful.build(name, vocabulary=len(tokenizer), **size).eval()
    for weight in model.parameters():
        weight.data *= 2.5  # sharper than a fresh model, so that texts differ and end
    return model, (tokenizer,)


def translate(name: str, kind: str, texts: list[str], glossary: Glossary | None = None, **options: Any) -> list[str]:
    model, tokenizers = translator(name, kind)
    required = [find_requirements(text, glossary) for text in texts]
    found = translate_with_requirements(model, tokenizers, texts, required, **{"beam": 1, "at_most": 16, **options})
    return [best.text for best, *_ in found]


def of_kept(text: str) -> tuple[Counter[str], Any]:
    kept = find_protected_spans(text)
    return Counter(found.text for found in kept), tag_structure([found.text for found in kept if found.kind == "tag"])


leaves = st.one_of(
    st.sampled_from(PLACEHOLDERS),
    st.sampled_from(TAGS),
    st.sampled_from(["the", "red dog", "runs, and", "100 %", "{", "$", "<", "&", "http:", "@a.org", "%", ".", "<a "]),
    st.text(max_size=4),
)
marked = st.recursive(
    leaves,
    lambda inner: st.tuples(st.sampled_from(ELEMENTS), st.lists(inner, max_size=3)).map(
        lambda found: found[0][0] + " ".join(found[1]) + found[0][1]
    ),
    max_leaves=4,
)
source = st.tuples(st.lists(marked, max_size=4), st.sampled_from(["", " "])).map(lambda found: found[1].join(found[0]))


@pytest.mark.parametrize(("name", "kind"), KINDS)
@settings(deadline=None, max_examples=10, derandomize=True)
@given(texts=st.lists(source, min_size=1, max_size=6))
def test_placeholders_and_tags_come_through_an_untrained_model(name: str, kind: str, texts: list[str]) -> None:
    for text, result in zip(texts, translate(name, kind, texts), strict=True):
        assert of_kept(result) == of_kept(text)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_term_of_a_glossary_is_there_as_a_whole_word(name: str, kind: str) -> None:
    glossary = Glossary({"dog": "Köter", "red": "rot", "man": "ein Herr Ω"})
    texts = ["the red dog runs", "Dog and {name} see a dog", "a <b>man</b>, a man & a red dog", "blue"]
    for text, result in zip(texts, translate(name, kind, texts, glossary, beam=2), strict=True):
        terms = [found for found in find_requirements(text, glossary) if found.kind == "term"]
        assert len(locate_terms(result, terms)) == len(terms)
        assert of_kept(result) == of_kept(text)


def test_without_keeping_only_terms_are_required() -> None:
    text = "the dog {name} <b>runs</b>"
    assert [found.kind for found in find_requirements(text, Glossary({"dog": "Hund"}), keep=False)] == ["term"]


def test_no_term_is_sought_inside_what_is_kept() -> None:
    found = find_requirements("dog <dog> {dog} http://dog.org", Glossary({"dog": "Hund"}))
    assert [each.kind for each in found] == ["term", "tag", "placeholder", "placeholder"]


def test_every_rival_holds_what_is_required() -> None:
    model, tokenizers = translator("laptop-translator", "byte_bpe")
    text = "the dog {name} runs"
    rivals = translate_with_requirements(model, tokenizers, [text], [find_requirements(text)], beam=3, n_best=3)[0]
    assert len(rivals) == 3
    assert all(of_kept(rival.text) == of_kept(text) for rival in rivals)


def test_a_forced_beginning_stays_the_beginning() -> None:
    for name, kind in KINDS:
        (result,) = translate(name, kind, ["the dog {name} runs"], prefix="der")
        assert result.startswith("der")
        assert "{name}" in result


def test_a_text_gets_the_same_translation_in_any_company() -> None:
    texts = ["the {name} runs", "a <b>red</b> dog", "%s, a man in blue", "https://a.org/b or %s"]
    together = translate("laptop-translator", "byte_bpe", texts)
    assert together == [translate("laptop-translator", "byte_bpe", [text])[0] for text in texts]


READ, WRITTEN = "a red big blue dog man cat sees", "ein roter großer blauer Hund Mann Katze sieht"
LEXICON = dict(zip(READ.split(), WRITTEN.split(), strict=True))


@pytest.fixture(scope="module")
def trained() -> tuple[Any, tuple[Tokenizer, Tokenizer]]:
    """A small translator that has learnt a language: word by word, in reverse order."""
    torch.manual_seed(1)
    chance = random.Random(1)
    kinds = TokenizerConfig(kind="words", vocabulary=40)
    reading, writing = (Tokenizer.train([text], kinds) for text in (READ, WRITTEN))
    sizes = {"vocabulary": len(reading), "target_vocabulary": len(writing), "width": 64, "dropout": 0.0}
    model = heedful.build("recurrent-translator", **sizes)
    steps = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        length = chance.randint(2, 6)
        texts = [[chance.choice(list(LEXICON)) for _ in range(length)] for _ in range(32)]
        source = reading.encode([" ".join(text) for text in texts])
        target = writing.encode([" ".join(LEXICON[word] for word in reversed(text)) for text in texts])
        ends, starts = ([[*ids, END] for ids in side] for side in (source, target)), [[START, *ids] for ids in target]
        read, wanted = (torch.tensor(side) for side in ends)
        logits = model(read, torch.tensor(starts))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        steps.zero_grad()
        loss.backward()
        steps.step()
    return model.eval(), (reading, writing)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <b>red</b> dog", "Hund <b>roter</b> ein"),
        ("<i>a man</i> sees a <b>big dog</b>", "<b>Hund großer</b> ein sieht <i>Mann ein</i>"),
        ("<p>a <b>blue</b> man</p>", "<p>Mann <b>blauer</b> ein</p>"),
        ("a red man sees a cat", "Katze ein sieht Mann Purpur ein"),
        ("big cat sees <b>red</b> dog", "Hund <b>Purpur</b> sieht Katze großer"),
    ],
)
def test_in_a_trained_model_tags_and_terms_follow_their_words(
    trained: tuple[Any, tuple[Tokenizer, Tokenizer]], text: str, expected: str
) -> None:
    wanted = find_requirements(text, Glossary({"red": "Purpur"} if "cat" in text else {}))
    (answers,) = translate_with_requirements(*trained, [text], [wanted])
    assert answers[0].text == expected


@pytest.mark.parametrize(
    "text",
    [
        "<p>The <b>dog {name} runs. A man</b> sees it! <br>See https://a.org/b. The <i>end</i>.</p>",
        "<i>One <b>two. Three</b> four.</i> Five <u>six. <x>Seven</x> eight</u>.",
        "Stray </b> here. And <b> there.\n\n<ul><li>One. Two.</li><li>{0}</li></ul>",
    ],
)
@pytest.mark.parametrize(("name", "kind"), KINDS[:2])
def test_tags_around_several_sentences_lie_inside_one_another_as_before(name: str, kind: str, text: str) -> None:
    pieces = InputSplitting(max_tokens=100, multi_sentence_share=0.0).split(text, translator(name, kind)[1][0])
    assert len(pieces) > 2
    assert of_kept(join_segments(pieces, translate(name, kind, [piece.text for piece in pieces]))) == of_kept(text)
