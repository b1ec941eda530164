"""Translator: split texts into segments the model can read, search in batches, and put translations together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Unpack, overload

from heedful.data.progress import ProgressCallback
from heedful.errors import UsageError
from heedful.generation.backends.backend import SearchRequest, ignore_progress
from heedful.generation.backends.select import Backends
from heedful.generation.decoding_config import DEFAULT_BEAM, DecodingConfig
from heedful.generation.input_splitting import INPUT_SPLITTING_FILE, InputSplitting, default_input_splitting
from heedful.generation.results import ScoredWord, Translation, hypothesis_words
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.settings import SearchSettings
from heedful.generation.streaming import until_stop_string
from heedful.generation.terminology.glossary import Glossary
from heedful.generation.terminology.required_terms import Candidate, translate_with_requirements
from heedful.generation.terminology.requirements import Requirement, find_requirements
from heedful.inference.decoding_arguments import EngineName, IterTranslateOptions, TranslateOptions
from heedful.inference.trained_model import TrainedModel, text_batches, text_list
from heedful.inspection.attention_alignment import ALIGNMENT_FILE, Alignment, align, default_alignment
from heedful.inspection.confidence import CONFIDENCE_FILE, Confidence
from heedful.text.sentence_splitter import TextSegment, join_segments
from heedful.text.special_tokens import UNKNOWN
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import split_words, tokenize_words, words_from_tokens


class Translator(TrainedModel):
    """A translation model.

    `alignment`, `confidence` and `splitting` are measured when training ends; without them, defaults are used.
    """

    kind = "a translator"
    settings_files: ClassVar = {
        "alignment": (ALIGNMENT_FILE, Alignment),
        "confidence": (CONFIDENCE_FILE, Confidence),
        "splitting": (INPUT_SPLITTING_FILE, InputSplitting),
    }

    def __init__(
        self,
        model: Any,
        tokenizers: tuple[Tokenizer, ...] = (),
        folder: Path | None = None,
        *,
        alignment: Alignment | None = None,
        confidence: Confidence | None = None,
        splitting: InputSplitting | None = None,
    ) -> None:
        super().__init__(model, tokenizers, folder)
        self.alignment, self.confidence, self.splitting = alignment, confidence, splitting
        self.backends = Backends(model, tokenizers, folder)

    # fmt: off
    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is an Iterable[str] too
        self, text: str, *, progress: ProgressCallback = ..., **options: Unpack[TranslateOptions]
    ) -> str: ...
    @overload
    def translate(
        self, text: Iterable[str], *, progress: ProgressCallback = ..., **options: Unpack[TranslateOptions]
    ) -> list[str]: ...
    def translate(
        self, text: str | Iterable[str], *, beam: int | None = None, length_penalty: float = 1.0, n_best: int = 1,
        temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
        repetition_penalty: float = 1.0, seed: int = 0, min_length: int = 0, max_length: int | None = None,
        stop: Sequence[str] = (), prefix: str = "", forbidden: Sequence[str] = (),
        glossary: str | dict[str, str] | None = None, keep: bool = True, exact: bool = False,
        engine: EngineName = "auto", int8: bool = False, progress: ProgressCallback = ignore_progress,
    ) -> str | list[str]:
        """Translate a text, or a list of texts; the options are those of `DecodingConfig`.

        `iter_translate` gives alternatives, word probabilities, alignments and warnings as well.
        """
        texts, single = text_list(text)
        options = IterTranslateOptions(
            beam=beam, length_penalty=length_penalty, n_best=n_best, temperature=temperature, top_k=top_k, top_p=top_p,
            min_p=min_p, repetition_penalty=repetition_penalty, seed=seed, min_length=min_length, max_length=max_length,
            stop=stop, prefix=prefix, forbidden=forbidden, glossary=glossary, keep=keep, exact=exact, engine=engine,
            int8=int8, word_probabilities=False,
        )
        results = [result.translation for result in self._translate(texts, self._request(options), progress)]
        return results[0] if single else results
    # fmt: on

    def iter_translate(
        self,
        texts: Iterable[str | None],
        *,
        progress: ProgressCallback = ignore_progress,
        **options: Unpack[IterTranslateOptions],
    ) -> Iterator[Translation]:
        """Translate a stream of texts lazily and in order, with alternatives, word probabilities and warnings.

        None in the stream flushes: the texts before it are translated at once.
        """
        request = self._request(options)
        return (
            translation
            for batch in text_batches(texts)
            for translation in self._results(self._translate(batch, request, progress), request)
        )

    def _request(self, options: IterTranslateOptions) -> _Request:
        """Check the options and resolve what is the same for all texts of a call."""
        self.require_tokenizer()
        config, target = DecodingConfig(**options), self.tokenizers[-1]
        settings = self.backends.settings(config, default_beam=DEFAULT_BEAM)
        prefix = target.encode([config.prefix])[0] if config.prefix else []
        if prefix and target.decode([prefix]) != [config.prefix]:
            raise UsageError(f"the tokenizer cannot represent the prefix {config.prefix!r}")
        return _Request(config, settings, prefix, Glossary.from_option(config.glossary))

    def _translate(self, texts: Sequence[str], request: _Request, progress: ProgressCallback) -> list[_SegmentedText]:
        """Split texts into segments, translate all segments together, and group them by text again."""
        splitting = self.splitting or default_input_splitting(self.model.config)
        segmented = [splitting.split(text, self.tokenizer) if text.strip() else [] for text in texts]
        inputs = [
            (segment.text, index == 0)
            for segments in segmented
            for index, segment in enumerate(segment for segment in segments if segment.text)
        ]
        encoded = self.tokenizer.encode([text for text, _ in inputs])
        candidates = self._search(
            [text for text, _ in inputs], encoded, [is_first for _, is_first in inputs], request, progress
        )
        translated = iter(zip(encoded, candidates, strict=True))
        return [
            _SegmentedText(text, segments, [next(translated) for segment in segments if segment.text])
            for text, segments in zip(texts, segmented, strict=True)
        ]

    def _search(
        self,
        texts: Sequence[str],
        encoded: Sequence[list[int]],
        is_first: Sequence[bool],
        request: _Request,
        progress: ProgressCallback,
    ) -> list[list[Candidate]]:
        """Search translations of segments; a prefix applies to the first segment of a text.

        Segments with glossary terms, placeholders or tags are searched apart, so that these appear in the translation.
        """
        required = [find_requirements(text, request.glossary, keep=request.config.keep) for text in texts]
        free = [index for index, requirements in enumerate(required) if not requirements]
        prefixes = [request.prefix if is_first[index] else [] for index in free] if request.prefix else None
        search = SearchRequest([encoded[index] for index in free], request.settings, prefixes, progress=progress)
        hypotheses = self.backends.select(search).translate(search)
        results = {index: self._candidates(each, request) for index, each in zip(free, hypotheses, strict=True)}
        for prefix, with_prefix in ((request.config.prefix, True), ("", False)):
            bound = [index for index, each in enumerate(required) if each and is_first[index] is with_prefix]
            if bound:
                candidates = self._search_required(
                    [texts[index] for index in bound], [required[index] for index in bound], prefix, request
                )
                results |= dict(zip(bound, candidates, strict=True))
                progress(len(bound))
        return [results[index] for index in range(len(texts))]

    def _search_required(
        self, texts: list[str], required: Sequence[Sequence[Requirement]], prefix: str, request: _Request
    ) -> list[list[Candidate]]:
        settings = replace(request.settings, early_stopping=False)
        backend = self.backends.select_torch(SearchRequest(settings=settings))
        texts_candidates = translate_with_requirements(
            backend, self.tokenizers, texts, required, settings, prefix=prefix
        )
        return [
            [each._replace(text=request.until_stop(each.text)) for each in candidates]
            for candidates in texts_candidates
        ]

    def _candidates(self, hypotheses: Sequence[Hypothesis], request: _Request) -> list[Candidate]:
        texts = self.tokenizers[-1].decode([hypothesis.tokens for hypothesis in hypotheses])
        return [Candidate(request.until_stop(text), each) for text, each in zip(texts, hypotheses, strict=True)]

    def _results(self, batch: Sequence[_SegmentedText], request: _Request) -> list[Translation]:
        results = [self._result(text, request) for text in batch]
        if not request.config.alignments:
            return results
        links = iter(self._align([pair for text in batch for pair in text.best_pairs]))
        joined = [_join_links([next(links) for _ in text.candidates]) for text in batch]
        return [replace(result, alignment=each) for result, each in zip(results, joined, strict=True)]

    def _result(self, text: _SegmentedText, request: _Request) -> Translation:
        warnings = tuple(self._warnings(text, request))
        if len(text.candidates) == 1:
            best, *alternatives = (self._scored(text.source, each, request) for each in text.candidates[0])
            return replace(best, text=text.translation, alternatives=tuple(alternatives), warnings=warnings)
        parts = [self._scored(text.source, best, request) for best, *_ in text.candidates]
        return Translation(
            text.source,
            text.translation,
            sum((part.log_probability for part in parts), 0.0),
            sum(part.score for part in parts) / max(1, len(parts)),
            tuple(word for part in parts for word in part.words),
            warnings=warnings,
        )

    def _scored(self, source: str, candidate: Candidate, request: _Request) -> Translation:
        """A candidate with its words' probabilities, calibrated by `confidence`."""
        text, hypothesis = candidate
        confidence = self.confidence or Confidence()
        words = hypothesis_words(hypothesis, self.tokenizers[-1], confidence.unit)
        if request.config.stop:
            words = words[: len(split_words(text, confidence.unit))]
        calibrated = tuple(ScoredWord(word.text, confidence(word.probability)) for word in words)
        return Translation(source, text, hypothesis.log_probability, hypothesis.score, calibrated)

    def _warnings(self, text: _SegmentedText, request: _Request) -> Iterator[str]:
        limit = (self.splitting or default_input_splitting(self.model.config)).max_tokens
        if text.tokens > limit:
            parts = len(text.candidates)
            yield f"{text.tokens:,} tokens exceed the model's input limit: translated in {parts:,} parts"
        if text.unknown:
            yield f"{text.unknown:,} of {text.tokens:,} tokens are unknown to the model"
        for best, *_ in text.candidates:
            output = self.tokenizers[-1].decode([best.hypothesis.tokens])[0]
            if not best.hypothesis.ended and not any(stop in output for stop in request.config.stop):
                yield f"the translation was cut off after {len(best.hypothesis.tokens):,} tokens (see --max-length)"

    def _align(self, pairs: Sequence[tuple[str, Candidate]]) -> list[_WordLinks]:
        """Word alignments by the attention head chosen in training, or by the default for a model without one."""
        alignment = self.alignment or default_alignment(self.model)
        (source_unit, target_unit), target = alignment.units, self.tokenizers[-1]
        words = [
            (
                tokenize_words(text, self.tokenizer, source_unit),
                words_from_tokens(candidate.hypothesis.tokens, target, target_unit)
                if candidate.text == target.decode([candidate.hypothesis.tokens])[0]
                else tokenize_words(candidate.text, target, target_unit),  # terms were inserted after the search
            )
            for text, candidate in pairs
        ]
        aligned = align(self.model, alignment, words)
        return [
            _WordLinks(len(source.words), len(target.words), each.links)
            for (source, target), each in zip(words, aligned, strict=True)
        ]


@dataclass(frozen=True)
class _Request:
    """What is the same for all texts of a call: settings, search, prefix token ids and glossary."""

    config: DecodingConfig
    settings: SearchSettings
    prefix: list[int]
    glossary: Glossary | None

    def until_stop(self, text: str) -> str:
        return "".join(until_stop_string([text], self.config.stop))


@dataclass(frozen=True)
class _SegmentedText:
    """A text, its segments, and for each non-blank segment its token ids and candidate translations."""

    source: str
    segments: list[TextSegment]
    translated: list[tuple[list[int], list[Candidate]]]

    @property
    def candidates(self) -> list[list[Candidate]]:
        return [candidates for _, candidates in self.translated]

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids, _ in self.translated)

    @property
    def unknown(self) -> int:
        return sum(ids.count(UNKNOWN) for ids, _ in self.translated)

    @property
    def best_pairs(self) -> list[tuple[str, Candidate]]:
        """Each non-blank segment's text with its best candidate."""
        texts = [segment.text for segment in self.segments if segment.text]
        return [(text, best) for text, (best, *_) in zip(texts, self.candidates, strict=True)]

    @property
    def translation(self) -> str:
        best = iter(self.best_pairs)
        return join_segments(self.segments, [next(best)[1].text if segment.text else "" for segment in self.segments])


class _WordLinks(NamedTuple):
    """Word counts of a source and a target segment, and the aligned pairs of words."""

    source: int
    target: int
    links: tuple[tuple[int, int], ...]


def _join_links(segments: Sequence[_WordLinks]) -> tuple[tuple[int, int], ...]:
    """Word alignments of consecutive segments, numbered over the whole text."""
    joined: list[tuple[int, int]] = []
    sources = targets = 0
    for segment in segments:
        joined += [(sources + source, targets + target) for source, target in segment.links]
        sources, targets = sources + segment.source, targets + segment.target
    return tuple(joined)
