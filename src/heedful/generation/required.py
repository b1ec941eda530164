"""Translations that hold what they must: a glossary's terms, and placeholders and tags as they were.

A model that was trained with placeholders and tags copies them, and is left alone. Otherwise it translates a text
without tags, with an X for every placeholder, as well as it can; then what is required is put in place of the words
that came from the same place in the source (`occlusion`, `weaving`), and tags around what came from what they were
around (`markup`). Nothing of this trusts the model: an untrained one loses no placeholder either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from heedful.generation.occlusion import debts, shares
from heedful.generation.search import Hypothesis
from heedful.generation.translate import translate_ids
from heedful.generation.wanted import Required, View, find
from heedful.generation.weaving import locate, target_words, weave
from heedful.text.keep import find_kept
from heedful.text.tags import shape
from heedful.text.tokenizer import Tokenizer

__all__ = ["Answer", "Required", "find", "translate_required"]

SHORT = 60
"""Characters of a placeholder or tag that a model could be expected to copy."""


class Answer(NamedTuple):
    """A translation, and what the search found that it was made from."""

    text: str
    hypothesis: Hypothesis


def translate_required(
    model: Any,
    tokenizers: tuple[Tokenizer, ...],
    texts: Sequence[str],
    required: Sequence[Sequence[Required]],
    *,
    prefix: str = "",
    **options: Any,
) -> list[list[Answer]]:
    """The best translations of each text with all that is `required` of it (see `find`), best first.

    They begin with `prefix`, tags aside; the other options are those of `translate_ids`.
    """

    def translate(sources: Sequence[str]) -> list[list[Answer]]:
        ids, beginning = tokenizers[0].encode(list(sources)), tokenizers[-1].encode([prefix])
        found = translate_ids(model, ids, prefixes=beginning * len(ids) if prefix else None, **options)
        return [[Answer(tokenizers[-1].decode([best.tokens])[0], best) for best in rivals] for rivals in found]

    answers: list[list[Answer]] = [[] for _ in texts]
    copied = [i for i, found in enumerate(required) if _could_be_copied(found)]
    for i, rivals in zip(copied, translate([texts[i] for i in copied]), strict=True):
        answers[i] = [rival for rival in rivals if _faithful(rival.text, texts[i], required[i])]

    rest = [i for i, found in enumerate(answers) if not found]
    views = [View.of(texts[i], required[i]) for i in rest]
    found = zip(rest, views, translate([view.text for view in views]), strict=True)
    drafts = [(i, view, rival) for i, view, rivals in found for rival in rivals]
    pairs = [(view.in_words, target_words(view, rival.text)) for _, view, rival in drafts]
    for (i, view, rival), owed in zip(drafts, debts(model, tokenizers, pairs), strict=True):
        answers[i].append(Answer(weave(view, rival.text, shares(owed), prefix), rival.hypothesis))
    return answers


def _could_be_copied(required: Sequence[Required]) -> bool:
    kept = [found.text for found in required if found.kind != "term"]
    return bool(kept) and max(map(len, kept)) <= SHORT


def _faithful(text: str, source: str, required: Sequence[Required]) -> bool:
    """Whether a translation holds what it must, and nothing like it besides."""
    ours, theirs = find_kept(text), find_kept(source)
    same = Counter(found.text for found in ours) == Counter(found.text for found in theirs)
    shapes = [shape([found.text for found in kept if found.kind == "tag"]) for kept in (ours, theirs)]
    terms = [found for found in required if found.kind == "term"]
    return same and shapes[0] == shapes[1] and len(locate(text, terms)) == len(terms)
