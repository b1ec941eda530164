"""Required terms, placeholders and tags appear in the translation, whatever the model generates around them."""

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
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.input_splitting import InputSplitting
from heedful.generation.search.settings import SearchSettings
from heedful.generation.terminology.glossary import Glossary
from heedful.generation.terminology.insertion import locate_terms
from heedful.generation.terminology.required_terms import translate_with_requirements
from heedful.generation.terminology.requirements import find_requirements
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
    """An untrained model whose vocabulary may lack the required text."""
    tokenizer = Tokenizer.train(CORPUS, TokenizerConfig(kind=kind, vocabulary=290, lowercase=kind == "words"))
    torch.manual_seed(4)
    size = {"width": 16} if name.startswith("recurrent") else {"width": 16, "heads": 2, "layers": 1}
    model = heedful.build(name, vocabulary=len(tokenizer), **size).eval()
    for weight in model.parameters():
        weight.data *= 2.5  # sharper than a fresh model, so that texts differ and end
    return model, (tokenizer,)


def translate(
    name: str, kind: str, texts: list[str], glossary: Glossary | None = None, *, beam: int = 1, prefix: str = ""
) -> list[str]:
    model, tokenizers = translator(name, kind)
    required = [find_requirements(text, glossary) for text in texts]
    settings = SearchSettings(beam=beam, max_length=16)
    results = translate_with_requirements(TorchBackend(model), tokenizers, texts, required, settings, prefix=prefix)
    return [best.text for best, *_ in results]


def protected(text: str) -> tuple[Counter[str], Any]:
    """The protected spans of a text, and the nesting of its tags."""
    spans = find_protected_spans(text)
    return Counter(span.text for span in spans), tag_structure([span.text for span in spans if span.kind == "tag"])


leaves = st.one_of(
    st.sampled_from(PLACEHOLDERS),
    st.sampled_from(TAGS),
    st.sampled_from(["the", "red dog", "runs, and", "100 %", "{", "$", "<", "&", "http:", "@a.org", "%", ".", "<a "]),
    st.text(max_size=4),
)
marked = st.recursive(
    leaves,
    lambda inner: st.tuples(st.sampled_from(ELEMENTS), st.lists(inner, max_size=3)).map(
        lambda element: element[0][0] + " ".join(element[1]) + element[0][1]
    ),
    max_leaves=4,
)
source = st.tuples(st.lists(marked, max_size=4), st.sampled_from(["", " "])).map(lambda parts: parts[1].join(parts[0]))


@pytest.mark.parametrize(("name", "kind"), KINDS)
@settings(deadline=None, max_examples=10, derandomize=True)
@given(texts=st.lists(source, min_size=1, max_size=6))
def test_placeholders_and_tags_survive_an_untrained_model(name: str, kind: str, texts: list[str]) -> None:
    for text, result in zip(texts, translate(name, kind, texts), strict=True):
        assert protected(result) == protected(text)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_glossary_term_appears_as_a_whole_word(name: str, kind: str) -> None:
    glossary = Glossary({"dog": "Köter", "red": "rot", "man": "ein Herr Ω"})
    texts = ["the red dog runs", "Dog and {name} see a dog", "a <b>man</b>, a man & a red dog", "blue"]
    for text, result in zip(texts, translate(name, kind, texts, glossary, beam=2), strict=True):
        terms = [requirement for requirement in find_requirements(text, glossary) if requirement.kind == "term"]
        assert len(locate_terms(result, terms)) == len(terms)
        assert protected(result) == protected(text)


def test_keep_false_requires_only_terms() -> None:
    text = "the dog {name} <b>runs</b>"
    assert [requirement.kind for requirement in find_requirements(text, Glossary({"dog": "Hund"}), keep=False)] == [
        "term"
    ]


def test_terms_inside_protected_spans_are_ignored() -> None:
    requirements = find_requirements("dog <dog> {dog} http://dog.org", Glossary({"dog": "Hund"}))
    assert [requirement.kind for requirement in requirements] == ["term", "tag", "placeholder", "placeholder"]


def test_every_alternative_contains_all_requirements() -> None:
    model, tokenizers = translator("laptop-translator", "byte_bpe")
    text = "the dog {name} runs"
    settings = SearchSettings(beam=3, n_best=3)
    (candidates,) = translate_with_requirements(
        TorchBackend(model), tokenizers, [text], [find_requirements(text)], settings
    )
    assert len(candidates) == 3
    assert all(protected(candidate.text) == protected(text) for candidate in candidates)


def test_forced_prefix_stays_first() -> None:
    for name, kind in KINDS:
        (result,) = translate(name, kind, ["the dog {name} runs"], prefix="der")
        assert result.startswith("der")
        assert "{name}" in result


def test_batch_does_not_change_translations_with_requirements() -> None:
    texts = ["the {name} runs", "a <b>red</b> dog", "%s, a man in blue", "https://a.org/b or %s"]
    batched = translate("laptop-translator", "byte_bpe", texts)
    assert batched == [translate("laptop-translator", "byte_bpe", [text])[0] for text in texts]


SOURCE_WORDS, TARGET_WORDS = "a red big blue dog man cat sees", "ein roter großer blauer Hund Mann Katze sieht"
LEXICON = dict(zip(SOURCE_WORDS.split(), TARGET_WORDS.split(), strict=True))


@pytest.fixture(scope="module")
def trained() -> tuple[Any, tuple[Tokenizer, Tokenizer]]:
    """A small translator trained to translate word by word in reverse order."""
    torch.manual_seed(1)
    generator = random.Random(1)
    kinds = TokenizerConfig(kind="words", vocabulary=40)
    source_tokenizer, target_tokenizer = (Tokenizer.train([text], kinds) for text in (SOURCE_WORDS, TARGET_WORDS))
    sizes = {
        "vocabulary": len(source_tokenizer),
        "target_vocabulary": len(target_tokenizer),
        "width": 64,
        "dropout": 0.0,
    }
    model = heedful.build("recurrent-translator", **sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        length = generator.randint(2, 6)
        texts = [[generator.choice(list(LEXICON)) for _ in range(length)] for _ in range(32)]
        source = source_tokenizer.encode([" ".join(text) for text in texts])
        target = target_tokenizer.encode([" ".join(LEXICON[word] for word in reversed(text)) for text in texts])
        inputs, labels = (torch.tensor([[*ids, END] for ids in side]) for side in (source, target))
        logits = model(inputs, torch.tensor([[START, *ids] for ids in target]))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), (source_tokenizer, target_tokenizer)


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
def test_tags_and_terms_follow_their_words_in_a_trained_model(
    trained: tuple[Any, tuple[Tokenizer, Tokenizer]], text: str, expected: str
) -> None:
    required = find_requirements(text, Glossary({"red": "Purpur"} if "cat" in text else {}))
    model, tokenizers = trained
    settings = SearchSettings(beam=4)
    (candidates,) = translate_with_requirements(TorchBackend(model), tokenizers, [text], [required], settings)
    assert candidates[0].text == expected


@pytest.mark.parametrize(
    "text",
    [
        "<p>The <b>dog {name} runs. A man</b> sees it! <br>See https://a.org/b. The <i>end</i>.</p>",
        "<i>One <b>two. Three</b> four.</i> Five <u>six. <x>Seven</x> eight</u>.",
        "Stray </b> here. And <b> there.\n\n<ul><li>One. Two.</li><li>{0}</li></ul>",
    ],
)
@pytest.mark.parametrize(("name", "kind"), KINDS[:2])
def test_tags_around_several_sentences_keep_their_nesting(name: str, kind: str, text: str) -> None:
    segments = InputSplitting(max_tokens=100, multi_sentence_share=0.0).split(text, translator(name, kind)[1][0])
    assert len(segments) > 2
    assert protected(
        join_segments(segments, translate(name, kind, [segment.text for segment in segments]))
    ) == protected(text)
