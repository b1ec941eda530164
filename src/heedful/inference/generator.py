"""Generator: continue prompts with a language model, by sampling or beam search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, overload

from heedful.data.progress import ProgressCallback
from heedful.errors import UsageError
from heedful.generation.backends.backend import SearchRequest, ignore_progress
from heedful.generation.backends.select import Backends
from heedful.generation.backends.torch_backend import max_context
from heedful.generation.decoding_config import prompt_decoding_config
from heedful.generation.results import Continuation, hypothesis_words
from heedful.generation.search.hypotheses import Hypothesis
from heedful.generation.search.settings import Engine, SearchSettings
from heedful.generation.streaming import FIRST_BATCH, detokenize_stream, until_stop_string
from heedful.inference.decoding_arguments import GenerateOptions
from heedful.inference.trained_model import TrainedModel, text_batches, text_list
from heedful.text.special_tokens import UNKNOWN
from heedful.text.tokenizer import Tokenizer


class Generator(TrainedModel):
    """A language model that continues prompts."""

    kind = "a language model"

    def __init__(self, model: Any, tokenizers: tuple[Tokenizer, ...] = (), folder: Path | None = None) -> None:
        super().__init__(model, tokenizers, folder)
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
        engine: Engine = "auto", int8: bool = False, progress: ProgressCallback = ignore_progress,
    ) -> str | list[str]:
        """Continue a prompt, or a list of prompts; returns each prompt with its continuation.

        The options are those of `DecodingConfig`. `temperature` None: 0.8, or 0 with a beam. An empty prompt starts a
        new document. `iter_generate` gives alternatives, word probabilities and warnings as well.
        """
        prompts, single = text_list(prompt)
        options = GenerateOptions(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty,
            seed=seed, min_length=min_length, max_length=max_length, stop=stop, forbidden=forbidden, beam=beam,
            length_penalty=length_penalty, n_best=n_best, exact=exact, engine=engine, int8=int8,
        )
        results = [each.prompt + each.text for each in self.iter_generate(prompts, progress=progress, **options)]
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
        settings = self._settings(options)
        batches = text_batches(prompts, FIRST_BATCH)
        return (each for batch in batches for each in self._continue(batch, settings, skip_blank, progress))

    def stream(self, prompt: str = "", **options: Unpack[GenerateOptions]) -> Iterator[str]:
        """Yield the continuation of a prompt piece by piece while it is generated: the same text as `generate`'s."""
        settings = self._settings(options)
        if settings.beam > 1 or settings.n_best > 1:
            raise UsageError(
                f"beam {settings.beam} with n_best {settings.n_best} cannot be streamed; use iter_generate"
            )
        request = SearchRequest(self.tokenizer.encode([prompt]), settings)
        tokens = self.backends.select(request).stream(request)
        return until_stop_string(detokenize_stream(tokens, self.tokenizer, context=prompt), settings.stop_strings)

    def prompt_warnings(self, prompt: str) -> tuple[str, ...]:
        """Warnings about tokens of a prompt that the model cannot see or does not know."""
        return tuple(self._warnings(self.tokenizer.encode([prompt])[0]))

    def _settings(self, options: GenerateOptions) -> SearchSettings:
        self.require_tokenizer()
        config = prompt_decoding_config({name: value for name, value in options.items() if value is not None})
        return self.backends.settings(config, default_beam=1)

    def _continue(
        self, prompts: Sequence[str], settings: SearchSettings, skip_blank: bool, progress: ProgressCallback
    ) -> list[Continuation]:
        indices = [index for index, prompt in enumerate(prompts) if prompt.strip() or not skip_blank]
        encoded = self.tokenizer.encode([prompts[index] for index in indices])
        results = [Continuation(prompt, "", 0.0, 0.0) for prompt in prompts]
        request = SearchRequest(encoded, settings, progress=progress)
        generated = self.backends.select(request).generate(request)
        for index, ids, hypotheses in zip(indices, encoded, generated, strict=True):
            best, *others = (self._continuation(prompts[index], each, settings.stop_strings) for each in hypotheses)
            results[index] = replace(best, alternatives=tuple(others), warnings=tuple(self._warnings(ids)))
        return results

    def _continuation(self, prompt: str, hypothesis: Hypothesis, stop: Sequence[str]) -> Continuation:
        pieces = detokenize_stream(hypothesis.tokens, self.tokenizer, context=prompt)
        text = "".join(until_stop_string(pieces, stop))
        words = hypothesis_words(hypothesis, self.tokenizer)[: len(text.split())]
        return Continuation(prompt, text, hypothesis.log_probability, hypothesis.score, words)

    def _warnings(self, ids: Sequence[int]) -> Iterator[str]:
        limit = max_context(self.model)
        if limit is not None and len(ids) > limit:
            seen = max(1, limit // 2)
            yield f"the prompt has {len(ids):,} tokens, the model's context {limit:,}: only the last {seen:,} are used"
        if unknown := ids.count(UNKNOWN):
            yield f"{unknown:,} of the prompt's {len(ids):,} tokens are unknown to the model"
