"""A translation on its way to holding all it must: what of it is settled, what is missing, and where that belongs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from heedful.generation.assembly import Part, assemble
from heedful.generation.glossary import sentence_starts
from heedful.generation.markup import Placing, place_tags
from heedful.generation.occlusion import Debts, InWords
from heedful.generation.search import Hypothesis
from heedful.generation.wanted import Required, View
from heedful.text.borders import LETTERS, inside_word, words

Place = tuple[int, int]


@dataclass
class Settling:
    """The best translation so far of what the model reads of a source."""

    view: View
    text: str
    hypothesis: Hypothesis
    settled: int = 0
    """Characters at its beginning that will not change any more."""

    @property
    def held(self) -> dict[int, Place]:
        """Where each of the wanted stands, as far as it does; those that read alike from left to right."""
        return locate(self.text, self.view.wanted)

    @property
    def missing(self) -> list[int]:
        held = self.held
        return [i for i in range(len(self.view.wanted)) if i not in held]

    @property
    def in_words(self) -> InWords:
        """Its words, each of the held being one."""
        return InWords(self.text, words(self.text, sorted(self.held.values())))

    def placing(self, debts: Debts) -> Placing:
        """What is held is known to have come from its own place in the source."""
        source, target = self.view.in_words.words, self.in_words.words
        for i, place in self.held.items():
            row, column = source.index(self._source_place(i)), target.index(place)
            debts[row], debts[:, column] = 0.0, 0.0
            debts[row, column] = 1.0
        return Placing(source, target, debts)

    def settle(self, debts: Debts) -> None:
        """Put the leftmost of what is missing into its place, and give up the text after it."""
        placing = self.placing(debts)
        place, i = min((self._place_for(i, placing), i) for i in self.missing)
        before = self.text[:place]
        before += " " if place == len(self.text) and before and not before[-1].isspace() else ""
        self.text = before + self._form(i, before)
        self.settled = len(self.text)

    def insert(self, debts: Debts) -> None:
        """Put all that is missing into its place, and keep the text."""
        placing = self.placing(debts)
        for place, i in sorted(((self._place_for(i, placing), i) for i in self.missing), reverse=True):
            self.text = f"{self.text[:place]} {self.view.wanted[i].text} {self.text[place:]}"

    def go_on(self, continuation: str, hypothesis: Hypothesis) -> None:
        """Take what the model wrote after the settled text; an ending it tried to give the last word is left out."""
        if inside_word(self.text + continuation[:1], len(self.text)):
            continuation = LETTERS.sub("", continuation, count=1)
        self.text, self.hypothesis = self.text + continuation, hypothesis

    def finished(self, debts: Debts | None) -> str:
        """With everything at full length, and with the tags."""
        if not self.view.tags and all(found.kind == "term" for found in self.view.wanted):
            return self.text
        tags = [] if debts is None else place_tags(self.view.tags, self.placing(debts), len(self.text))
        full = {i: self.text[slice(*place)] for i, place in self.held.items()}
        full |= {i: self.view.originals[i] for i in full if self.view.wanted[i].kind == "placeholder"}
        exact = [(tag.place, tag.place, tag.text) for tag in tags] + [(*self.held[i], full[i]) for i in full]
        parts, reached = [], 0
        for start, end, text in sorted(exact, key=lambda part: part[:2]):
            parts += [Part(self.text[reached:start], False), Part(text, True)]
            reached = end
        return assemble([*parts, Part(self.text[reached:], False)])

    def _place_for(self, i: int, placing: Placing) -> int:
        """Where one of the missing belongs: before the word that came from its source, or at the end."""
        row = placing.source.index(self._source_place(i))
        first = sum(start < self.settled for start, _ in placing.target)
        stretch = placing.stretch(range(row, row + 1), range(first, len(placing.target)))[1]
        return placing.target[stretch.start][0] if stretch else len(self.text)

    def _source_place(self, i: int) -> Place:
        return self.view.wanted[i].start, self.view.wanted[i].end

    def _form(self, i: int, before: str) -> str:
        """As required; but a sentence begins with a capital."""
        wanted = self.view.wanted[i]
        opens = wanted.kind == "term" and len(before) in sentence_starts(before + wanted.text)
        return _capital(wanted.text) if opens else wanted.text


def locate(text: str, wanted: Sequence[Required]) -> dict[int, Place]:
    """Where in a text each of these stands, none inside another; what is longer is sought first."""
    found: dict[int, Place] = {}
    openings = set(sentence_starts(text))
    for i in sorted(range(len(wanted)), key=lambda i: -len(wanted[i].text)):
        for place in _occurrences(text, wanted[i], openings):
            if all(place[0] >= end or place[1] <= start for start, end in found.values()):
                found[i] = place
                break
    return found


def _occurrences(text: str, wanted: Required, openings: Collection[int]) -> Iterator[Place]:
    """A term stands there in whole words, and may have a capital where a sentence begins."""
    forms = {wanted.text, _capital(wanted.text)} if wanted.kind == "term" else {wanted.text}
    for match in re.finditer("|".join(map(re.escape, forms)), text):
        start, end = match.span()
        if wanted.kind == "term" and (inside_word(text, start) or inside_word(text, end)):
            continue
        if match.group() == wanted.text or start in openings:
            yield start, end


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
