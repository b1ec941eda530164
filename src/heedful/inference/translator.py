"""Translator: split texts into segments the model can read, search in batches, and put translations together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Unpack, overload

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
from heedful.generation.terminology.requirements import find_requirements
from heedful.inference.decoding_arguments import IterTranslateOptions, TranslateOptions, require_one_result
from heedful.inference.segmented_text import Segment, SegmentAlignment, SegmentedText, join_alignments
from heedful.inference.stored_model import StoredSettings
from heedful.inference.text_arguments import text_batches, text_list
from heedful.inference.trained_model import TrainedModel
from heedful.inspection.attention_alignment import Alignment, align, default_alignment, has_cross_attention
from heedful.inspection.census.head_pruning import PrunedParts
from heedful.inspection.confidence import Confidence
from heedful.inspection.look_recording import align_words
from heedful.inspection.look_result import AttentionMap, HeadAlignment
from heedful.inspection.text_pass import TextPass, seq2seq_pass
from heedful.interventions.kinds import Intervention
from heedful.layers.taps import TapEdits
from heedful.model_files import ALIGNMENT_FILE, CONFIDENCE_FILE, INPUT_SPLITTING_FILE
from heedful.models.build import TranslationModel
from heedful.syntax import argument
from heedful.text.special_tokens import END, START
from heedful.text.token_rows import TokenRow, generated_row, text_row
from heedful.text.tokenizer import Tokenizer
from heedful.text.word_tokens import TokenizedWords, Unit, split_words, tokenize_words, words_from_tokens


class Translator(TrainedModel):
    """A translation model.

    `alignment`, `confidence` and `splitting` are measured when training ends; without them, defaults are used.
    """

    model: TranslationModel
    kind = "a translator"
    settings_files: ClassVar = {
        **TrainedModel.settings_files,
        "alignment": (ALIGNMENT_FILE, Alignment),
        "confidence": (CONFIDENCE_FILE, Confidence),
        "splitting": (INPUT_SPLITTING_FILE, InputSplitting),
    }

    def __init__(
        self,
        model: TranslationModel,
        tokenizers: tuple[Tokenizer, ...] = (),
        folder: Path | None = None,
        *,
        alignment: Alignment | None = None,
        confidence: Confidence | None = None,
        splitting: InputSplitting | None = None,
        **stored: Unpack[StoredSettings],
    ) -> None:
        super().__init__(model, tokenizers, folder, **stored)
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
        interventions: Sequence[Intervention] | None = None, engine: Engine = "auto", int8: bool = False,
        progress: ProgressCallback = ignore_progress,
    ) -> str | list[str]:
        """Translate a text, or a list of texts; the options are those of `DecodingConfig`.

        `iter_translate` gives alternatives, word probabilities, alignments and warnings as well.
        """
        texts, single = text_list(text)
        require_one_result(n_best, "translate")
        options = IterTranslateOptions(
            beam=beam, length_penalty=length_penalty, n_best=n_best, temperature=temperature, top_k=top_k, top_p=top_p,
            min_p=min_p, repetition_penalty=repetition_penalty, seed=seed, min_length=min_length, max_length=max_length,
            stop=stop, prefix=prefix, forbidden=forbidden, glossary=glossary, keep=keep, exact=exact,
            interventions=interventions, engine=engine, int8=int8, word_probabilities=False,
        )
        results = [result.translation for result in self._translate(texts, self._request(options), progress)]
        return results[0] if single else results
    # fmt: on

    def text_pass(
        self, text: str, target: str | None = None, *, interventions: Sequence[Intervention] | None = None
    ) -> TextPass:
        """The pass in which the decoder reads a source and its target: `target`, or the model's translation."""
        return self.text_passes([text], [target], interventions=interventions)[0]

    def text_passes(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None = None,
        *,
        interventions: Sequence[Intervention] | None = None,
    ) -> list[TextPass]:
        """The passes of several texts; those without a target are translated together."""
        inputs = [self.input_row(text) for text in texts]
        for text, row in zip(texts, inputs, strict=True):
            self._require_short(text, len(row))
        wanted = targets or [None] * len(texts)
        missing = [text for text, target in zip(texts, wanted, strict=True) if target is None]
        decoded = iter(self._translated_rows(missing, interventions) if missing else ())
        return [
            seq2seq_pass(row, next(decoded) if target is None else self.target_row(target), self.tokenizers[-1])
            for row, target in zip(inputs, wanted, strict=True)
        ]

    def _translated_rows(
        self, texts: Sequence[str], interventions: Sequence[Intervention] | None
    ) -> Iterator[TokenRow]:
        """START and the tokens of each text's best translation: those of the hypothesis that won the beam search."""
        request = self._request(IterTranslateOptions(keep=False, engine="torch", interventions=interventions))
        for translated in self._translate(texts, request, ignore_progress):
            if len(translated.segments) > 1:
                raise UsageError(
                    f"{translated.source!r:.60} is translated in {len(translated.segments)} parts; look at one of them"
                )
            tokens = translated.segments[0].best.hypothesis.tokens if translated.segments else ()
            yield generated_row(tokens, self.tokenizers[-1], self.word_units[1], before=[START])

    def target_row(self, target: str) -> TokenRow:
        """START and the tokens of a target text."""
        return text_row(target, self.tokenizers[-1], self.word_units[1], before=[START])

    @property
    def word_units(self) -> tuple[Unit, Unit]:
        """Units in which source and target are counted: words or characters."""
        return self.alignment.units if self.alignment else ("words", "words")

    def pruned_settings(self, pruned: PrunedParts) -> dict[str, Any]:
        """The settings, with the new number of the aligning head; where it is pruned, the mean of its attention."""
        settings, alignment = super().pruned_settings(pruned), self.alignment
        attention = None if alignment is None else alignment.tap.removesuffix(".weights")
        if attention in pruned.sublayers:
            settings["alignment"] = None
        elif alignment is not None and (removed := pruned.heads.get(str(attention))):
            head = alignment.head
            number = None if head is None or head in removed else head - sum(index < head for index in removed)
            unmeasured = {"error_rate": None, "mean_error_rate": None, "worst_error_rate": None}
            settings["alignment"] = alignment.with_changes(head=number, **({} if number is not None else unmeasured))
        return settings

    def word_alignment(self, text_pass: TextPass, attention: dict[str, AttentionMap]) -> HeadAlignment | None:
        """The alignment by the head selected in training, or by the default for a model without one."""
        return None if self.aligned_head is None else align_words(self.aligned_head, text_pass, attention)

    @property
    def aligned_head(self) -> Alignment | None:
        """The head selected in training, or the default for a model without one; None without cross-attention."""
        return self._default_head and (self.alignment or self._default_head)

    @cached_property
    def _default_head(self) -> Alignment | None:
        return default_alignment(self.model) if has_cross_attention(self.model) else None

    def input_row(self, text: str) -> TokenRow:
        """The tokens of a source, with END."""
        self.require_tokenizer()
        return text_row(text.strip(), self.tokenizer, self.word_units[0], after=[END])

    def _require_short(self, text: str, tokens: int) -> None:
        limit = (self.splitting or default_input_splitting(self.model.config)).max_tokens
        if tokens > limit + 1:
            raise UsageError(
                f"{text!r:.60} has {tokens - 1:,} tokens, and the model reads {limit:,} at once; look at a part of it"
            )

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
        """Check the options and resolve the settings that are the same for all texts of a call."""
        self.require_tokenizer()
        config, target = DecodingConfig(**options), self.tokenizers[-1]
        edits = None
        if config.interventions is not None and not any(change.depends_on_text for change in config.interventions):
            edits = self.edits(config.interventions)
        settings = self.backends.settings(config, default_beam=DEFAULT_BEAM, edits=edits)
        if config.alignments and self.aligned_head is None:
            raise UsageError(f"{self.name} has no attention to align words by; leave {argument('alignments')} out")
        prefix = target.encode([config.prefix])[0] if config.prefix else []
        if prefix and target.decode([prefix]) != [config.prefix]:
            raise UsageError(f"the tokenizer cannot represent the prefix {config.prefix!r}")
        return _Request(config, settings, prefix, Glossary.from_option(config.glossary))

    def _translate(self, texts: Sequence[str], request: _Request, progress: ProgressCallback) -> list[SegmentedText]:
        """Translate texts together, or each alone under interventions that depend on the text."""
        if request.settings.edits is not None or request.config.interventions is None:
            return self._translate_together(texts, request, progress)
        return [result for text in texts for result in self._translate_together([text], request, progress)]

    def _translate_together(
        self, texts: Sequence[str], request: _Request, progress: ProgressCallback
    ) -> list[SegmentedText]:
        """Split texts into segments, translate all segments together, and group them by text again."""
        splitting = self.splitting or default_input_splitting(self.model.config)
        layouts = [splitting.split(text, self.tokenizer) if text.strip() else [] for text in texts]
        contents = [[segment.text for segment in layout if segment.text] for layout in layouts]
        tokens = iter(self.tokenizer.encode([content for parts in contents for content in parts]))
        batch = [SegmentedText(text, layout) for text, layout in zip(texts, layouts, strict=True)]
        for text, parts in zip(batch, contents, strict=True):
            for index, content in enumerate(parts):
                required = find_requirements(content, request.glossary, keep=request.config.keep)
                text.segments.append(Segment(content, next(tokens), index == 0, required))
        request = self._with_edits_for(batch, request)
        segments = [segment for text in batch for segment in text.segments]
        searched = reported = 0

        def report_texts(count: int) -> None:
            """Report texts where the search counts segments, of which a text has any number."""
            nonlocal searched, reported
            searched += count
            texts_done = searched * len(batch) // len(segments)
            progress(texts_done - reported)
            reported = texts_done

        self._search(segments, request, report_texts)
        progress(len(batch) - reported)
        return batch

    def _with_edits_for(self, batch: Sequence[SegmentedText], request: _Request) -> _Request:
        """The request with the edits for one text, where its interventions depend on the text."""
        interventions = request.config.interventions
        if interventions is None or request.settings.edits is not None:
            return request
        (text,) = batch
        if len(text.segments) > 1:
            raise UsageError(
                f"{text.source!r:.60} is translated in {len(text.segments)} parts; interventions that name words or "
                "lift masks take one part at a time"
            )
        edits = self.edits(interventions, text.segments[0].text if text.segments else text.source)
        return replace(request, settings=replace(request.settings, edits=edits))

    def _search(self, segments: Sequence[Segment], request: _Request, progress: ProgressCallback) -> None:
        """Search candidate translations of segments; a prefix applies to the first segment of a text.

        Segments with glossary terms, placeholders or tags are searched separately, so that translations have them too.
        """
        free = [segment for segment in segments if not segment.required]
        prefixes = [request.prefix if segment.is_first else [] for segment in free] if request.prefix else None
        search = SearchRequest([segment.tokens for segment in free], request.settings, prefixes, progress=progress)
        backend = self.backends.select(search)
        for segment, hypotheses in zip(free, backend.translate(search), strict=True):
            segment.backend = backend.name
            texts = self.tokenizers[-1].decode([hypothesis.tokens for hypothesis in hypotheses])
            segment.candidates = [TranslationCandidate(*candidate) for candidate in zip(texts, hypotheses, strict=True)]
        for prefix, is_first in ((request.config.prefix, True), ("", False)):
            if bound := [segment for segment in segments if segment.required and segment.is_first is is_first]:
                self._search_required(bound, prefix, request)
                progress(len(bound))
        for segment in segments:
            segment.candidates = [beam._replace(text=request.until_stop(beam.text)) for beam in segment.candidates]

    def _search_required(self, segments: Sequence[Segment], prefix: str, request: _Request) -> None:
        settings = replace(request.settings, early_stopping=False)
        backend = self.backends.select_torch(SearchRequest(settings=settings))
        texts, required = [segment.text for segment in segments], [segment.required for segment in segments]
        results = translate_with_requirements(backend, self.tokenizers, texts, required, settings, prefix=prefix)
        for segment, candidates in zip(segments, results, strict=True):
            segment.candidates, segment.backend = candidates, backend.name

    def _results(self, batch: Sequence[SegmentedText], request: _Request) -> list[Translation]:
        results = [self._result(text, request) for text in batch]
        if not request.config.alignments:
            return results
        depends_on_text = request.config.interventions is not None and request.settings.edits is None
        together = [[text] for text in batch] if depends_on_text else [batch]
        links = (link for texts in together for link in self._align_edited(texts, request))
        joined = [join_alignments([next(links) for _ in text.segments]) for text in batch]
        return [replace(result, alignment=alignment) for result, alignment in zip(results, joined, strict=True)]

    def _result(self, text: SegmentedText, request: _Request) -> Translation:
        warnings = tuple(self._warnings(text, request))
        backend = text.segments[0].backend if text.segments else ""
        if len(text.segments) == 1:
            best, *alternatives = (self._scored(text.source, beam, request) for beam in text.segments[0].candidates)
            return replace(
                best, text=text.translation, alternatives=tuple(alternatives), warnings=warnings, backend=backend
            )
        parts = [self._scored(text.source, segment.best, request) for segment in text.segments]
        return Translation(
            text.source,
            text.translation,
            sum((part.log_probability for part in parts), 0.0),
            sum(part.score for part in parts) / max(1, len(parts)),
            tuple(word for part in parts for word in part.words),
            warnings=warnings,
            backend=backend,
            hypotheses=tuple(segment.best.hypothesis for segment in text.segments),
        )

    def _scored(self, source: str, candidate: TranslationCandidate, request: _Request) -> Translation:
        """A candidate with its words' probabilities, calibrated by `confidence`."""
        text, hypothesis = candidate
        confidence = self.confidence or Confidence()
        words = hypothesis_words(hypothesis, self.tokenizers[-1], confidence.unit)
        if request.config.stop:
            words = words[: len(split_words(text, confidence.unit))]
        calibrated = tuple(ScoredWord(word.text, confidence(word.probability)) for word in words)
        return Translation(
            source, text, hypothesis.log_probability, hypothesis.score, calibrated, hypotheses=(hypothesis,)
        )

    def _warnings(self, text: SegmentedText, request: _Request) -> Iterator[str]:
        limit = (self.splitting or default_input_splitting(self.model.config)).max_tokens
        if text.token_count > limit:
            parts = len(text.segments)
            yield f"{text.token_count:,} tokens exceed the model's input limit: translated in {parts:,} parts"
        if text.unknown_count:
            yield f"{text.unknown_count:,} of {text.token_count:,} tokens are unknown to the model"
        for best in (segment.best.hypothesis for segment in text.segments if not segment.best.hypothesis.ended):
            output = self.tokenizers[-1].decode([best.tokens])[0]
            if not any(stop in output for stop in request.config.stop):
                yield f"the translation was cut off after {len(best.tokens):,} tokens (see {argument('max_length')})"

    def _align_edited(self, batch: Sequence[SegmentedText], request: _Request) -> list[SegmentAlignment]:
        """The alignments of the model as it decoded: with the same interventions."""
        edits = self._with_edits_for(batch, request).settings.edits or TapEdits()
        with edits.applied(self.model):
            return self._align([segment for text in batch for segment in text.segments])

    def _align(self, segments: Sequence[Segment]) -> list[SegmentAlignment]:
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
            SegmentAlignment(len(sources.words), len(targets.words), aligned.links)
            for (sources, targets), aligned in zip(words, align(self.model, alignment, words), strict=True)
        ]


@dataclass(frozen=True)
class _Request:
    """The settings, search, prefix and glossary of a call, the same for all of its texts."""

    config: DecodingConfig
    settings: SearchSettings
    prefix: list[int]
    glossary: Glossary | None

    def until_stop(self, text: str) -> str:
        return "".join(until_stop_string([text], self.config.stop))
