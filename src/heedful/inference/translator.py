"""Translator: split texts into segments the model can read, search in batches, and put translations together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Unpack, overload

from heedful.data.progress import ProgressCallback
from heedful.errors import UsageError
from heedful.generation.backends.backend import SearchRequest, ignore_progress
from heedful.generation.backends.select import Backends
from heedful.generation.decoding_config import DEFAULT_BEAM, DecodingConfig
from heedful.generation.input_splitting import InputSplitting, default_input_splitting
from heedful.generation.results import ScoredWord, Translation, hypothesis_words
from heedful.generation.search.settings import Engine, SearchSettings
from heedful.generation.streaming import until_stop_string
from heedful.generation.terminology.glossary import Glossary
from heedful.generation.terminology.required_terms import TranslationCandidate, translate_with_requirements
from heedful.generation.terminology.requirements import RequiredSpan, find_requirements
from heedful.inference.decoding_arguments import IterTranslateOptions, TranslateOptions
from heedful.inference.trained_model import TrainedModel, text_batches, text_list
from heedful.inspection.attention_alignment import Alignment, align, default_alignment
from heedful.inspection.confidence import Confidence
from heedful.model_files import ALIGNMENT_FILE, CONFIDENCE_FILE, INPUT_SPLITTING_FILE
from heedful.syntax import argument
from heedful.text.sentence_splitter import TextSegment, join_segments
from heedful.text.special_tokens import UNKNOWN
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import TokenizedWords, split_words, tokenize_words, words_from_tokens


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
        engine: Engine = "auto", int8: bool = False, progress: ProgressCallback = ignore_progress,
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
        layouts = [splitting.split(text, self.tokenizer) if text.strip() else [] for text in texts]
        contents = [[segment.text for segment in layout if segment.text] for layout in layouts]
        tokens = iter(self.tokenizer.encode([content for each in contents for content in each]))
        batch = [_SegmentedText(text, layout) for text, layout in zip(texts, layouts, strict=True)]
        for text, each in zip(batch, contents, strict=True):
            for index, content in enumerate(each):
                required = find_requirements(content, request.glossary, keep=request.config.keep)
                text.segments.append(_Segment(content, next(tokens), index == 0, required))
        self._search([segment for text in batch for segment in text.segments], request, progress)
        return batch

    def _search(self, segments: Sequence[_Segment], request: _Request, progress: ProgressCallback) -> None:
        """Search candidate translations of segments; a prefix applies to the first segment of a text.

        Segments with glossary terms, placeholders or tags are searched apart, so that these appear in the translation.
        """
        free = [segment for segment in segments if not segment.required]
        prefixes = [request.prefix if segment.is_first else [] for segment in free] if request.prefix else None
        search = SearchRequest([segment.tokens for segment in free], request.settings, prefixes, progress=progress)
        for segment, hypotheses in zip(free, self.backends.select(search).translate(search), strict=True):
            texts = self.tokenizers[-1].decode([hypothesis.tokens for hypothesis in hypotheses])
            segment.candidates = [TranslationCandidate(*candidate) for candidate in zip(texts, hypotheses, strict=True)]
        for prefix, is_first in ((request.config.prefix, True), ("", False)):
            if bound := [segment for segment in segments if segment.required and segment.is_first is is_first]:
                self._search_required(bound, prefix, request)
                progress(len(bound))
        for segment in segments:
            segment.candidates = [each._replace(text=request.until_stop(each.text)) for each in segment.candidates]

    def _search_required(self, segments: Sequence[_Segment], prefix: str, request: _Request) -> None:
        settings = replace(request.settings, early_stopping=False)
        backend = self.backends.select_torch(SearchRequest(settings=settings))
        texts, required = [segment.text for segment in segments], [segment.required for segment in segments]
        results = translate_with_requirements(backend, self.tokenizers, texts, required, settings, prefix=prefix)
        for segment, candidates in zip(segments, results, strict=True):
            segment.candidates = candidates

    def _results(self, batch: Sequence[_SegmentedText], request: _Request) -> list[Translation]:
        results = [self._result(text, request) for text in batch]
        if not request.config.alignments:
            return results
        links = iter(self._align([segment for text in batch for segment in text.segments]))
        joined = [_join_links([next(links) for _ in text.segments]) for text in batch]
        return [replace(result, alignment=each) for result, each in zip(results, joined, strict=True)]

    def _result(self, text: _SegmentedText, request: _Request) -> Translation:
        warnings = tuple(self._warnings(text, request))
        if len(text.segments) == 1:
            best, *alternatives = (self._scored(text.source, each, request) for each in text.segments[0].candidates)
            return replace(best, text=text.translation, alternatives=tuple(alternatives), warnings=warnings)
        parts = [self._scored(text.source, segment.best, request) for segment in text.segments]
        return Translation(
            text.source,
            text.translation,
            sum((part.log_probability for part in parts), 0.0),
            sum(part.score for part in parts) / max(1, len(parts)),
            tuple(word for part in parts for word in part.words),
            warnings=warnings,
        )

    def _scored(self, source: str, candidate: TranslationCandidate, request: _Request) -> Translation:
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
            parts = len(text.segments)
            yield f"{text.tokens:,} tokens exceed the model's input limit: translated in {parts:,} parts"
        if text.unknown:
            yield f"{text.unknown:,} of {text.tokens:,} tokens are unknown to the model"
        for best in (segment.best.hypothesis for segment in text.segments):
            output = self.tokenizers[-1].decode([best.tokens])[0]
            if not best.ended and not any(stop in output for stop in request.config.stop):
                yield f"the translation was cut off after {len(best.tokens):,} tokens (see {argument('max_length')})"

    def _align(self, segments: Sequence[_Segment]) -> list[_WordLinks]:
        """Word alignments by the attention head chosen in training, or by the default for a model without one."""
        alignment = self.alignment or default_alignment(self.model)
        (source_unit, target_unit), target = alignment.units, self.tokenizers[-1]

        def target_words(best: TranslationCandidate) -> TokenizedWords:
            if best.text == target.decode([best.hypothesis.tokens])[0]:
                return words_from_tokens(best.hypothesis.tokens, target, target_unit)
            return tokenize_words(best.text, target, target_unit)  # terms were inserted after the search

        words = [
            (tokenize_words(segment.text, self.tokenizer, source_unit), target_words(segment.best))
            for segment in segments
        ]
        return [
            _WordLinks(len(sources.words), len(targets.words), each.links)
            for (sources, targets), each in zip(words, align(self.model, alignment, words), strict=True)
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


@dataclass
class _Segment:
    """A part of a text that the model reads at once, and its candidate translations, best first."""

    text: str
    tokens: list[int]
    is_first: bool
    required: Sequence[RequiredSpan]
    candidates: Sequence[TranslationCandidate] = ()

    @property
    def best(self) -> TranslationCandidate:
        return self.candidates[0]


@dataclass(frozen=True)
class _SegmentedText:
    """A text with its segments; those that are not blank are translated."""

    source: str
    layout: Sequence[TextSegment]
    segments: list[_Segment] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments)

    @property
    def unknown(self) -> int:
        return sum(segment.tokens.count(UNKNOWN) for segment in self.segments)

    @property
    def translation(self) -> str:
        best = (segment.best.text for segment in self.segments)
        return join_segments(self.layout, [next(best) if segment.text else "" for segment in self.layout])


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
