"""Translations that hold what they must: a glossary's terms, and placeholders and tags as they were.

The model translates freely. What is then missing is put where the words stand that came from the same place in the
source (`occlusion`). The text up to there is settled, and the model writes on from it: a required term replaces the
word it would have chosen, and the rest of the sentence follows suit. Tags are put back at the end (`markup`). Nothing
of this trusts the model: an untrained one loses no placeholder either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from heedful.generation.occlusion import Debts, debts
from heedful.generation.search import Hypothesis
from heedful.generation.settling import Settling, locate
from heedful.generation.translate import translate_ids
from heedful.generation.wanted import SHOWN, Required, View, find
from heedful.text.keep import find_kept
from heedful.text.special import UNKNOWN
from heedful.text.tags import shape
from heedful.text.tokenizer import Tokenizer

__all__ = ["Answer", "Required", "find", "translate_required"]

ROUNDS = 8
"""How often the model writes on from a settled text. What is missing even then is put in without asking it again."""


class Answer(NamedTuple):
    """A translation, and what the search found last on the way to it."""

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

    They begin with `prefix`; the other options are those of `translate_ids`. A text with tags is first shown to the
    model as it is: one that was trained to copy them knows best where they go.
    """
    writer = Writer(model, tokenizers, options)
    answers: list[list[Answer]] = [[] for _ in texts]
    tagged = [i for i, found in enumerate(required) if _shown_with_tags(found)]
    for i, rivals in zip(tagged, writer.write([texts[i] for i in tagged], [prefix] * len(tagged)), strict=True):
        answers[i] = [rival for rival in rivals if _faithful(rival.text, texts[i], required[i])]

    rest = [i for i, found in enumerate(answers) if not found]
    views = [View.of(texts[i], required[i]) for i in rest]
    found = writer.write([view.text for view in views], [prefix] * len(rest))
    ways = zip(rest, views, found, strict=True)
    drafts = [(i, Settling(view, *rival, settled=len(prefix))) for i, view, rivals in ways for rival in rivals]
    writer.complete([draft for _, draft in drafts])
    placed = writer.debts([draft for _, draft in drafts if draft.view.tags])
    for i, draft in drafts:
        answers[i].append(Answer(draft.finished(next(placed) if draft.view.tags else None), draft.hypothesis))
    return answers


@dataclass(frozen=True)
class Writer:
    """A model that translates texts from given beginnings."""

    model: Any
    tokenizers: tuple[Tokenizer, ...]
    options: dict[str, Any]

    def write(self, sources: Sequence[str], beginnings: Sequence[str]) -> list[list[Answer]]:
        """Translations that begin so, to the character, whether or not the target's tokenizer can write it."""
        if not sources:
            return []
        target = self.tokenizers[-1]
        prefixes = [[token for token in ids if token != UNKNOWN] for ids in target.encode(list(beginnings))]
        ids = self.tokenizers[0].encode(list(sources))
        found = translate_ids(self.model, ids, prefixes=prefixes, **self.options)
        return [
            [Answer(beginning + self._rest(best.tokens, prefix), best) for best in rivals]
            for beginning, prefix, rivals in zip(beginnings, prefixes, found, strict=True)
        ]

    def _rest(self, tokens: Sequence[int], prefix: Sequence[int]) -> str:
        """What was written after the prefix. Decoded by itself it could lose the blank it begins with."""
        text, before, alone = self.tokenizers[-1].decode([tokens, prefix, tokens[len(prefix) :]])
        return text[len(before) :] if text.startswith(before) else alone

    def complete(self, drafts: Sequence[Settling]) -> None:
        """Bring in what is missing, one after the other in each draft."""
        for _ in range(ROUNDS):
            short = [draft for draft in drafts if draft.missing]
            for draft, owed in zip(short, self.debts(short), strict=True):
                draft.settle(owed)
            found = self.write([draft.view.text for draft in short], [draft.text for draft in short])
            for draft, (best, *_) in zip(short, found, strict=True):
                draft.go_on(best.text[draft.settled :], best.hypothesis)
        short = [draft for draft in drafts if draft.missing]
        for draft, owed in zip(short, self.debts(short), strict=True):
            draft.insert(owed)

    def debts(self, drafts: Sequence[Settling]) -> Iterator[Debts]:
        pairs = [(draft.view.in_words, draft.in_words) for draft in drafts]
        return iter(debts(self.model, self.tokenizers, pairs))


def _shown_with_tags(required: Sequence[Required]) -> bool:
    return any(found.kind == "tag" for found in required) and all(len(found.text) <= SHOWN for found in required)


def _faithful(text: str, source: str, required: Sequence[Required]) -> bool:
    """Whether a translation already holds what it must, and nothing like it besides."""
    ours, theirs = find_kept(text), find_kept(source)
    same = Counter(found.text for found in ours) == Counter(found.text for found in theirs)
    shapes = [shape([found.text for found in kept if found.kind == "tag"]) for kept in (ours, theirs)]
    terms = [found for found in required if found.kind == "term"]
    return same and shapes[0] == shapes[1] and len(locate(text, terms)) == len(terms)
