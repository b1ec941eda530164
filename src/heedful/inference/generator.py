"""Generator: continue prompts with a language model, by sampling or beam search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, overload

from heedful.data.progress import ProgressCallback
from heedful.errors import UsageError
from heedful.generation.backends.backend import SearchRequest, ignore_progress
from heedful.generation.backends.select import Backends
from heedful.generation.backends.torch_backend import DEFAULT_MAX_LENGTH, max_context
from heedful.generation.decoding_config import prompt_decoding_config
from heedful.generation.results import Continuation, hypothesis_words
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.settings import Engine, SearchSettings
from heedful.generation.streaming import FIRST_BATCH, TextStream, detokenize_stream, stream_text, until_stop_string
from heedful.inference.decoding_arguments import GenerateOptions, require_one_result
from heedful.inference.stored_model import StoredSettings
from heedful.inference.text_arguments import text_batches, text_list
from heedful.inference.trained_model import TrainedModel
from heedful.inspection.text_pass import TextPass, next_token_pass
from heedful.interventions.kinds import Intervention
from heedful.models.build import LanguageModel
from heedful.text.special_tokens import END, UNKNOWN
from heedful.text.token_rows import TokenRow, build_row, generated_row, text_row
from heedful.text.tokenizer import Tokenizer

WINDOW_TOKENS = 512
"""Maximum tokens read at once when running text is scored."""


class Generator(TrainedModel):
    """A language model that continues prompts."""

    model: LanguageModel
    kind = "a language model"
    needs_answers = False

    def __init__(
        self,
        model: LanguageModel,
        tokenizers: tuple[Tokenizer, ...] = (),
        folder: Path | None = None,
        **stored: Unpack[StoredSettings],
    ) -> None:
        super().__init__(model, tokenizers, folder, **stored)
        self.backends = Backends(model, tokenizers, folder)

    # fmt: off
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str = ..., *, progress: ProgressCallback = ..., **options: Unpack[GenerateOptions]
    ) -> str: ...
    @overload
    def generate(
        self, prompt: Iterable[str], *, progress: ProgressCallback = ..., **options: Unpack[GenerateOptions]
    ) -> list[str]: ...
    def generate(
        self, prompt: str | Iterable[str] = "", *, temperature: float | None = None, top_k: int = 0,
        top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 0, min_length: int = 0,
        max_length: int | None = None, stop: Sequence[str] = (), forbidden: Sequence[str] = (),
        beam: int | None = None, length_penalty: float = 1.0, n_best: int = 1, exact: bool = False,
        interventions: Sequence[Intervention] | None = None, engine: Engine = "auto", int8: bool = False,
        progress: ProgressCallback = ignore_progress,
    ) -> str | list[str]:
        """Continue a prompt, or a list of prompts; returns each prompt with its continuation.

        The options are those of `DecodingConfig`. `temperature` None: 0.8, or 0 with a beam. An empty prompt starts a
        new document. `iter_generate` gives alternatives, word probabilities and warnings as well.
        """
        prompts, single = text_list(prompt)
        require_one_result(n_best, "generate")
        options = GenerateOptions(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty,
            seed=seed, min_length=min_length, max_length=max_length, stop=stop, forbidden=forbidden, beam=beam,
            length_penalty=length_penalty, n_best=n_best, exact=exact, interventions=interventions,
            engine=engine, int8=int8,
        )
        results = [result.prompt + result.text for result in self.iter_generate(prompts, progress=progress, **options)]
        return results[0] if single else results
    # fmt: on

    def iter_generate(
        self,
        prompts: Iterable[str | None],
        *,
        skip_blank: bool = False,
        progress: ProgressCallback = ignore_progress,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[Continuation]:
        """Continue a stream of prompts lazily and in order, with alternatives, word probabilities and warnings.

        None in the stream flushes what came before. `skip_blank`: a blank prompt has an empty continuation instead of
        starting a new document.
        """
        interventions, settings = self._settings(options)

        def continue_batch(batch: Sequence[str]) -> list[Continuation]:
            if interventions is None or settings.edits is not None:
                return self._continue(batch, settings, skip_blank, progress)
            edited = [(text, replace(settings, edits=self.edits(interventions, text))) for text in batch]
            return [result for text, edits in edited for result in self._continue([text], edits, skip_blank, progress)]

        return (result for batch in text_batches(prompts, FIRST_BATCH) for result in continue_batch(batch))

    def stream(self, prompt: str = "", **options: Unpack[GenerateOptions]) -> TextStream:
        """Yield the continuation of a prompt piece by piece while it is generated: the same text as `generate`'s.

        The generator returns how the text ended.
        """
        interventions, settings = self._settings(options)
        if interventions is not None:
            settings = replace(settings, edits=self.edits(interventions, prompt))
        if settings.beam > 1 or settings.n_best > 1:
            raise UsageError(
                f"beam {settings.beam} with n_best {settings.n_best} cannot be streamed; use iter_generate"
            )
        request = SearchRequest(self.tokenizer.encode([prompt]), settings)
        return stream_text(
            self._token_stream(request), self.tokenizer, context=prompt, stop_strings=settings.stop_strings,
            limit=settings.max_length or DEFAULT_MAX_LENGTH,
        )  # fmt: skip

    def _token_stream(self, request: SearchRequest) -> Iterator[int]:
        """The tokens of a stream; its backend is selected when the first one is requested."""
        yield from self.backends.select(request).stream(request)

    def text_pass(
        self, text: str, target: str | None = None, *, interventions: Sequence[Intervention] | None = None
    ) -> TextPass:
        """The pass over a prompt and its continuation: `target`, or a greedy one of at most 50 tokens.

        With an empty `target` every token of the prompt itself is an output.
        """
        row = self.input_row(text)
        if target == "":
            return next_token_pass(row, 1)
        if target is None:
            options = GenerateOptions(temperature=0.0, max_length=50, engine="torch", interventions=interventions)
            checked, settings = self._settings(options)
            request = SearchRequest([row.ids], replace(settings, edits=self.edits(checked, text)))
            tokens = self.backends.select(request).generate(request)[0][0].tokens
            continued = generated_row([*row.ids, *tokens], self.tokenizer)
        else:
            continued = text_row(text + target, self.tokenizer)
        self._require_short(text, len(continued))
        return next_token_pass(continued, len(row))

    def scored_passes(self, example: str | tuple[str, str]) -> list[TextPass]:
        """The passes over running text, every token of which is predicted; a long text is read in several windows."""
        if not isinstance(example, str):
            return [self.text_pass(*example)]
        row = text_row(example, self.tokenizer, before=[END])
        window = min(max_context(self.model) or WINDOW_TOKENS, WINDOW_TOKENS)
        if len(row) <= window:
            return [next_token_pass(row, 1)]
        windows = (row.ids[start : start + window] for start in range(0, len(row), window))
        return [next_token_pass(generated_row(ids, self.tokenizer), 1) for ids in windows]

    def input_row(self, text: str) -> TokenRow:
        """The tokens of a prompt; a new document begins with END."""
        self.require_tokenizer()
        return text_row(text, self.tokenizer) if text else build_row("", [END], self.tokenizer, "words")

    def _require_short(self, text: str, tokens: int) -> None:
        limit = max_context(self.model)
        if limit is not None and tokens > limit:
            raise UsageError(f"{text!r:.60} has {tokens:,} tokens, and the model reads {limit:,}; look at a part of it")

    def prompt_warnings(self, prompt: str) -> tuple[str, ...]:
        """Warnings about tokens of a prompt that the model cannot see or does not know."""
        return tuple(self._warnings(self.tokenizer.encode([prompt])[0]))

    def _settings(self, options: GenerateOptions) -> tuple[tuple[Intervention, ...] | None, SearchSettings]:
        """The checked interventions and settings of a call; edits that are the same for all texts are resolved."""
        self.require_tokenizer()
        config = prompt_decoding_config({name: value for name, value in options.items() if value is not None})
        interventions, edits = config.interventions, None
        if interventions is not None and not any(change.depends_on_text for change in interventions):
            edits = self.edits(interventions)
        return interventions, self.backends.settings(config, default_beam=1, edits=edits)

    def _continue(
        self, prompts: Sequence[str], settings: SearchSettings, skip_blank: bool, progress: ProgressCallback
    ) -> list[Continuation]:
        indices = [index for index, prompt in enumerate(prompts) if prompt.strip() or not skip_blank]
        encoded = self.tokenizer.encode([prompts[index] for index in indices])
        results = [Continuation(prompt, "", 0.0, 0.0) for prompt in prompts]
        request = SearchRequest(encoded, settings, progress=progress)
        backend = self.backends.select(request)
        generated = backend.generate(request)
        for index, ids, hypotheses in zip(indices, encoded, generated, strict=True):
            best, *others = (self._continuation(prompts[index], beam, settings.stop_strings) for beam in hypotheses)
            warnings = tuple(self._warnings(ids))
            results[index] = replace(best, alternatives=tuple(others), warnings=warnings, backend=backend.name)
        return results

    def _continuation(self, prompt: str, hypothesis: Hypothesis, stop: Sequence[str]) -> Continuation:
        pieces = detokenize_stream(hypothesis.tokens, self.tokenizer, context=prompt)
        text = "".join(until_stop_string(pieces, stop))
        words = hypothesis_words(hypothesis, self.tokenizer)[: len(text.split())]
        score, hypotheses = hypothesis.score, (hypothesis,)
        return Continuation(prompt, text, hypothesis.log_probability, score, words, hypotheses=hypotheses)

    def _warnings(self, ids: Sequence[int]) -> Iterator[str]:
        limit = max_context(self.model)
        if limit is not None and len(ids) > limit:
            seen = max(1, limit // 2)
            yield f"the prompt has {len(ids):,} tokens, the model's context {limit:,}: only the last {seen:,} are used"
        if unknown := ids.count(UNKNOWN):
            yield f"{unknown:,} of the prompt's {len(ids):,} tokens are unknown to the model"
