"""Translation with requirements: glossary terms, and placeholders and tags copied unchanged.

The model translates the text without tags and with an X for every placeholder. Each requirement then replaces the
target words aligned with its source words (`occlusion`, `insertion`), and tags are placed around the words aligned with
those they enclosed (`tag_placement`). A model trained with placeholders and tags may copy them: its translation of the
unchanged text is also a candidate, if nothing is missing. None of this relies on the model: an untrained one loses no
placeholder either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from heedful.generation.backends.backend import SearchRequest
from heedful.generation.backends.torch_backend import TorchBackend
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.settings import SearchSettings
from heedful.generation.terminology.insertion import insert_requirements, locate_terms, target_words
from heedful.generation.terminology.occlusion import normalize_scores, occlusion_scores
from heedful.generation.terminology.requirements import ModelInput, RequiredSpan
from heedful.text.markup_tags import tag_structure
from heedful.text.protected_spans import find_protected_spans
from heedful.text.tokenizer import Tokenizer

MAX_COPIED = 60
"""Characters of a placeholder or tag that a model may be expected to copy."""


class TranslationCandidate(NamedTuple):
    """A translation and the hypothesis it was made from."""

    text: str
    hypothesis: Hypothesis


def translate_with_requirements(
    backend: TorchBackend,
    tokenizers: tuple[Tokenizer, ...],
    texts: Sequence[str],
    required: Sequence[Sequence[RequiredSpan]],
    settings: SearchSettings,
    *,
    prefix: str = "",
) -> list[list[TranslationCandidate]]:
    """The best translations of each text that contain all its `required` spans, best first.

    They begin with `prefix`, ignoring tags. `find_requirements` finds the required spans.
    """

    def translate(sources: Sequence[str]) -> list[list[TranslationCandidate]]:
        ids, prefix_ids = tokenizers[0].encode(list(sources)), tokenizers[-1].encode([prefix])
        prefixes = prefix_ids * len(ids) if prefix else None
        results = backend.translate(SearchRequest(ids, settings, prefixes))
        return [
            [TranslationCandidate(tokenizers[-1].decode([hypothesis.tokens])[0], hypothesis) for hypothesis in result]
            for result in results
        ]

    inputs = [ModelInput.of(text, requirements) for text, requirements in zip(texts, required, strict=True)]
    free = translate([tagged.text for tagged in inputs])
    pairs = [
        (source.words, target_words(source, candidate.text))
        for source, candidates in zip(inputs, free, strict=True)
        for candidate in candidates
    ]
    scores = iter(occlusion_scores(backend.decoding_model(settings), tokenizers, pairs))
    results = [
        [
            TranslationCandidate(insert_requirements(source, text, normalize_scores(next(scores)), prefix), hypothesis)
            for text, hypothesis in candidates
        ]
        for source, candidates in zip(inputs, free, strict=True)
    ]
    copyable = [i for i, requirements in enumerate(required) if _may_be_copied(requirements)]
    for i, candidates in zip(copyable, translate([texts[i] for i in copyable]), strict=True):
        complete = [candidate for candidate in candidates if _is_complete(candidate.text, texts[i], required[i])]
        ranked = sorted([*complete, *results[i]], key=lambda candidate: -candidate.hypothesis.score)
        results[i] = ranked[: len(candidates)]
    return results


def _may_be_copied(required: Sequence[RequiredSpan]) -> bool:
    lengths = [len(requirement.text) for requirement in required if requirement.kind != "term"]
    return bool(lengths) and max(lengths) <= MAX_COPIED


def _is_complete(text: str, source: str, required: Sequence[RequiredSpan]) -> bool:
    """Whether a translation has every placeholder, tag and term of its source, and no other placeholder or tag."""
    spans = [find_protected_spans(side) for side in (text, source)]
    copied, expected = (Counter(span.text for span in side) for side in spans)
    structures = [tag_structure([span.text for span in side if span.kind == "tag"]) for side in spans]
    terms = [requirement for requirement in required if requirement.kind == "term"]
    return copied == expected and structures[0] == structures[1] and len(locate_terms(text, terms)) == len(terms)
