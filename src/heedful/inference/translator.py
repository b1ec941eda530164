"""From texts to translations: cut to what the model can read, searched in batches, put together again, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from heedful.errors import UsageError
from heedful.generation.decoding_config import DecodingConfig
from heedful.generation.incremental_detokenizer import until_stop_string
from heedful.generation.input_splitting import InputSplitting
from heedful.generation.results import Translation, ScoredWord
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.streaming import ProgressCallback, Search, hypothesis_words, ignore_progress
from heedful.generation.terminology.glossary import Glossary
from heedful.generation.terminology.required_terms import Candidate, Requirement, find_requirements
from heedful.text.sentence_splitter import TextSegment, join_segments
from heedful.text.special_tokens import UNKNOWN
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import Unit, split_words


class Links(NamedTuple):
    """How many words two texts have, and which of the first made which of the second."""

    source: int
    target: int
    links: tuple[tuple[int, int], ...]


class Found(NamedTuple):
    """A text, the pieces it was read in, and the answers to each piece that is more than blanks."""

    source: str
    pieces: list[TextSegment]
    answers: list[list[Candidate]]
    tokens: int
    unknown: int
    """Tokens of it that the model has never seen."""

    @property
    def read(self) -> list[str]:
        return [piece.text for piece in self.pieces if piece.text]

    @property
    def text(self) -> str:
        best = iter(self.answers)
        return join_segments(self.pieces, [next(best)[0].text if piece.text else "" for piece in self.pieces])


@dataclass(frozen=True)
class Translator:
    """Texts to translations. `search` is how one without requirements is found, `search_required` one with some."""

    search: Search
    search_required: Callable[..., list[list[Candidate]]]
    tokenizers: tuple[Tokenizer, ...]
    decoding: DecodingConfig
    reading: InputSplitting
    glossary: Glossary | None = None
    confidence: Callable[[float], float] = float
    """From a word's probability to how often such words are right."""
    unit: Unit = "words"
    align: Callable[[Sequence[tuple[str, Candidate]]], list[Links]] | None = None

    def texts(self, window: Sequence[str], progress: ProgressCallback = ignore_progress) -> list[str]:
        """The best translations alone."""
        return [found.text for found in self._find(window, progress)]

    def translations(self, window: Sequence[str], progress: ProgressCallback = ignore_progress) -> list[Translation]:
        """The translations with all that is known of them."""
        found = self._find(window, progress)
        answers = [self._translation(each) for each in found]
        if self.align is None:
            return answers
        pairs = [(text, best) for each in found for text, (best, *_) in zip(each.read, each.answers, strict=True)]
        links = iter(self.align(pairs))
        linked = [_joined([next(links) for _ in each.answers]) for each in found]
        return [replace(answer, alignment=pairs) for answer, pairs in zip(answers, linked, strict=True)]

    def _find(self, window: Sequence[str], progress: ProgressCallback) -> list[Found]:
        pieces = [self.reading.split(text, self.tokenizers[0]) if text.strip() else [] for text in window]
        parts = [(piece.text, place == 0) for each in pieces for place, piece in enumerate(_real(each))]
        ids = self.tokenizers[0].encode([text for text, _ in parts])
        answers = iter(self._answers([text for text, _ in parts], ids, [first for _, first in parts], progress))
        read = iter(ids)
        found = []
        for text, each in zip(window, pieces, strict=True):
            own = [next(read) for _ in _real(each)]
            unknown = sum(part.count(UNKNOWN) for part in own)
            found.append(Found(text, each, [next(answers) for _ in own], sum(map(len, own)), unknown))
        return found

    def _answers(
        self, parts: Sequence[str], ids: Sequence[list[int]], firsts: Sequence[bool], progress: ProgressCallback
    ) -> list[list[Candidate]]:
        """Answers to each part; what is required of some is seen to. A prefix opens the first part of a text."""
        required = [find_requirements(part, self.glossary, keep=self.decoding.keep) for part in parts]
        prefix = self._prefix()
        free = [i for i, wanted in enumerate(required) if not wanted]
        prefixes = [prefix if firsts[i] else [] for i in free] if prefix else None
        hypotheses = self.search([ids[i] for i in free], prefixes=prefixes, progress=progress)
        answers = {i: self._written(found) for i, found in zip(free, hypotheses, strict=True)}
        for opening in (True, False):
            bound = [i for i, wanted in enumerate(required) if wanted and firsts[i] is opening]
            answers |= dict(zip(bound, self._required(parts, required, bound, opening), strict=True))
            progress(len(bound))
        return [answers[i] for i in range(len(parts))]

    def _required(
        self, parts: Sequence[str], required: Sequence[Sequence[Requirement]], bound: Sequence[int], opening: bool
    ) -> list[list[Candidate]]:
        if not bound:
            return []
        prefix = self.decoding.prefix if opening else ""
        found = self.search_required([parts[i] for i in bound], [required[i] for i in bound], prefix=prefix)
        return [[Candidate(self._cut(answer.text), answer.hypothesis) for answer in answers] for answers in found]

    def _written(self, found: Sequence[Hypothesis]) -> list[Candidate]:
        texts = self.tokenizers[-1].decode([hypothesis.tokens for hypothesis in found])
        return [Candidate(self._cut(text), hypothesis) for text, hypothesis in zip(texts, found, strict=True)]

    def _cut(self, text: str) -> str:
        return "".join(until_stop_string([text], self.decoding.stop))

    def _prefix(self) -> list[int]:
        wanted = self.decoding.prefix
        ids = self.tokenizers[-1].encode([wanted])[0] if wanted else []
        if wanted and self.tokenizers[-1].decode([ids]) != [wanted]:
            raise UsageError(f"this model's vocabulary cannot write the prefix {wanted!r}")
        return ids

    def _translation(self, found: Found) -> Translation:
        warnings = tuple(self._warnings(found))
        if len(found.answers) == 1:
            best, *alternatives = (self._alone(found.source, answer) for answer in found.answers[0])
            return replace(best, text=found.text, alternatives=tuple(alternatives), warnings=warnings)
        parts = [self._alone(found.source, best) for best, *_ in found.answers]
        return Translation(
            found.source,
            found.text,
            sum((part.log_probability for part in parts), 0.0),
            sum(part.score for part in parts) / max(1, len(parts)),
            tuple(word for part in parts for word in part.words),
            warnings=warnings,
        )

    def _alone(self, source: str, answer: Candidate) -> Translation:
        text, found = answer
        words = hypothesis_words(found, self.tokenizers[-1], self.unit)
        if self.decoding.stop:
            words = words[: len(split_words(text, self.unit))]
        told = tuple(ScoredWord(word.text, self.confidence(word.probability)) for word in words)
        return Translation(source, text, found.log_probability, found.score, told)

    def _warnings(self, found: Found) -> Iterator[str]:
        if found.tokens > self.reading.max_tokens:
            parts = len(found.answers)
            yield f"{found.tokens:,} tokens are more than the model reads at once: read in {parts:,} parts"
        if found.unknown:
            yield f"{found.unknown:,} of {found.tokens:,} tokens are unknown to the model"
        for best, *_ in found.answers:
            written = self.tokenizers[-1].decode([best.hypothesis.tokens])[0]
            if not best.hypothesis.ended and not any(stop in written for stop in self.decoding.stop):
                yield f"the translation was cut off after {len(best.hypothesis.tokens):,} tokens (see --max-length)"


def _real(pieces: Sequence[TextSegment]) -> list[TextSegment]:
    """Those with words: blanks that open a text follow an empty one."""
    return [piece for piece in pieces if piece.text]


def _joined(parts: Sequence[Links]) -> tuple[tuple[int, int], ...]:
    """Links of parts as links of the whole."""
    joined: list[tuple[int, int]] = []
    before = (0, 0)
    for part in parts:
        joined += [(before[0] + source, before[1] + target) for source, target in part.links]
        before = (before[0] + part.source, before[1] + part.target)
    return tuple(joined)
