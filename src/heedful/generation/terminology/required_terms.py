"""Translations that hold what they must: a glossary's terms, and placeholders and tags as they were.

The model translates the text without tags and with an X for every placeholder, as well as it can. Then what is
required takes the place of the words that came from the same place in the source (`occlusion`, `weaving`), and tags go
around what came from what they were around (`markup`). A model that was trained with placeholders and tags may copy
them: what it makes of the text as it is counts too, if nothing is missing. Nothing of this trusts the model: an
untrained one loses no placeholder either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.sequence_to_sequence import translate_ids
from heedful.generation.terminology.insertion import locate_terms, target_words, insert_requirements
from heedful.generation.terminology.occlusion import occlusion_scores, normalise_scores
from heedful.generation.terminology.requirements import Requirement, ModelInput, find_requirements
from heedful.text.markup_tags import tag_structure
from heedful.text.protected_spans import find_protected_spans
from heedful.text.tokenizer import Tokenizer

__all__ = ["Candidate", "Requirement", "find_requirements", "translate_with_requirements"]

SHORT = 60
"""Characters of a placeholder or tag that a model could be expected to copy."""


class Candidate(NamedTuple):
    """A translation, and what the search found that it was made from."""

    text: str
    hypothesis: Hypothesis


def translate_with_requirements(
    model: Any,
    tokenizers: tuple[Tokenizer, ...],
    texts: Sequence[str],
    required: Sequence[Sequence[Requirement]],
    *,
    prefix: str = "",
    **options: Any,
) -> list[list[Candidate]]:
    """The best translations of each text with all that is `required` of it (see `find`), best first.

    They begin with `prefix`, tags aside; the other options are those of `translate_ids`.
    """

    def translate(sources: Sequence[str]) -> list[list[Candidate]]:
        ids, beginning = tokenizers[0].encode(list(sources)), tokenizers[-1].encode([prefix])
        found = translate_ids(model, ids, prefixes=beginning * len(ids) if prefix else None, **options)
        return [[Candidate(tokenizers[-1].decode([best.tokens])[0], best) for best in rivals] for rivals in found]

    views = [ModelInput.of(text, found) for text, found in zip(texts, required, strict=True)]
    free = translate([view.text for view in views])
    pairs = [(view, rival) for view, rivals in zip(views, free, strict=True) for rival in rivals]
    owed = iter(occlusion_scores(model, tokenizers, [(view.in_words, target_words(view, rival.text)) for view, rival in pairs]))
    answers = [
        [Candidate(insert_requirements(view, rival.text, normalise_scores(next(owed)), prefix), rival.hypothesis) for rival in rivals]
        for view, rivals in zip(views, free, strict=True)
    ]
    copying = [i for i, found in enumerate(required) if _could_be_copied(found)]
    for i, rivals in zip(copying, translate([texts[i] for i in copying]), strict=True):
        whole = [rival for rival in rivals if _faithful(rival.text, texts[i], required[i])]
        best = sorted([*whole, *answers[i]], key=lambda answer: -answer.hypothesis.score)
        answers[i] = best[: len(rivals)]
    return answers


def _could_be_copied(required: Sequence[Requirement]) -> bool:
    kept = [found.text for found in required if found.kind != "term"]
    return bool(kept) and max(map(len, kept)) <= SHORT


def _faithful(text: str, source: str, required: Sequence[Requirement]) -> bool:
    """Whether a translation holds what it must, and nothing like it besides."""
    ours, theirs = find_protected_spans(text), find_protected_spans(source)
    same = Counter(found.text for found in ours) == Counter(found.text for found in theirs)
    shapes = [tag_structure([found.text for found in kept if found.kind == "tag"]) for kept in (ours, theirs)]
    terms = [found for found in required if found.kind == "term"]
    return same and shapes[0] == shapes[1] and len(locate_terms(text, terms)) == len(terms)
